"""The command with a defect in it: a patch that makes a part of nsqd raise TypeError."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from tests.local.test_stop import LIMIT_S, mpub, running
from tests.processes import split_address

# The fan-out of the topic "bad" fails.
_FAN_OUT_FAILS = """
import trionsq.core.topic
original = trionsq.core.topic.TopicState.pump
def pump(self, now_s, now_ns):
    if self.name == "bad" and self.store.depth:
        raise TypeError("injected")
    return original(self, now_s, now_ns)
trionsq.core.topic.TopicState.pump = pump
"""
# A TCP connection ends its listener.
_LISTENER_FAILS = """
import trionsq.broker.broker
def accept(self, transport):
    raise TypeError("injected")
trionsq.broker.broker.Broker.accept = accept
"""
# A TCP connection ends the broker's own tasks.
_BROKER_FAILS = """
import trionsq.broker.broker
async def fail():
    raise TypeError("injected")
def accept(self, transport):
    self._tasks.start_soon(fail)
trionsq.broker.broker.Broker.accept = accept
"""


def command(patch: str) -> list[str]:
    """An nsqd with ``patch`` in it."""
    program = f"{patch}\nfrom trionsq.local.nsqd import main\nraise SystemExit(main())"
    return [sys.executable, "-c", program]


def test_a_topic_that_fails_costs_that_topic_only(tmp_path: Path) -> None:
    """The others are served, /ping and /metrics tell, and a stop saves every message."""
    with running(tmp_path, command=command(_FAN_OUT_FAILS)) as nsqd:
        for topic in ("bad", "good"):
            assert nsqd.ask("POST", f"/topic/create?topic={topic}")[0] == 200
            assert nsqd.ask("POST", f"/channel/create?topic={topic}&channel=c")[0] == 200
        for topic in ("bad", "good"):
            assert mpub(nsqd, topic, 10) == (200, b"OK")
        status, text = nsqd.ask("GET", "/ping")
        assert status == 500
        assert b"TOPIC(bad) is stopped by a defect of nsqd: TypeError: injected" in text
        metrics = nsqd.ask("GET", "/metrics")[1]
        assert b'nsqd_defects_total{part="channel"} 0' in metrics
        assert b'nsqd_defects_total{part="topic"} 0' not in metrics
        assert b"TOPIC(bad): TypeError: injected" in nsqd.ask("GET", "/debug/loop?seconds=0.1")[1]
        assert nsqd.depths() == {"bad": 10, "bad:c": 0, "good": 0, "good:c": 10}
        assert nsqd.end(signal.SIGTERM) == 0
    assert len([line for line in nsqd.log if "Traceback" in line]) == 1
    with running(tmp_path) as nsqd:
        assert nsqd.depths() == {"bad": 0, "bad:c": 10, "good": 0, "good:c": 10}
        assert nsqd.end(signal.SIGTERM) == 0


def check_saved_at_its_end(tmp_path: Path, patch: str) -> None:
    with running(tmp_path, command=command(patch)) as nsqd:
        assert nsqd.ask("POST", "/topic/create?topic=t")[0] == 200
        assert nsqd.ask("POST", "/channel/create?topic=t&channel=c")[0] == 200
        assert mpub(nsqd, "t", 30) == (200, b"OK")
        assert mpub(nsqd, "u", 20) == (200, b"OK")
        [address] = [line.split()[-1] for line in nsqd.log if "TCP: listening" in line]
        with socket.create_connection(split_address(address), LIMIT_S):
            assert nsqd.end() == 1
    assert any("TypeError: injected" in line for line in nsqd.log)
    assert not [line for line in nsqd.log if "could not save" in line]
    with running(tmp_path) as nsqd:
        assert nsqd.depths() == {"t": 0, "t:c": 30, "u": 20}
        assert nsqd.end(signal.SIGTERM) == 0


def test_a_listener_that_fails_ends_nsqd_after_the_save(tmp_path: Path) -> None:
    """Exit 1 with the error in the log, and no message is lost."""
    check_saved_at_its_end(tmp_path, _LISTENER_FAILS)


def test_a_broker_that_fails_ends_nsqd_after_the_save(tmp_path: Path) -> None:
    """Exit 1 with the error in the log, and no message is lost."""
    check_saved_at_its_end(tmp_path, _BROKER_FAILS)
