"""Where a sweep runs a tool in this process: brokers in memory, its clients, and its user."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from tests.broker.support import publish
from tests.cancellation import CancelAt, run_counted
from tests.client.accounts import check_closed
from tests.client.network import ADDRESS, Network
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.client import Config, Consumer, Producer
from trionsq.durations import SECOND_NS
from trionsq.tools.nsq_stat import ChannelCounts

__all__ = ["BODIES", "CONFIG", "LARGE", "LOOKUPD", "OPTIONS", "OTHER", "SECOND", "Stage"]

BODIES = [b"%d" % number * 20 for number in range(8)]
LARGE = BODIES[2] = b"large" * 40
CONFIG = Config(
    max_in_flight=3, max_attempts=0, default_requeue_delay_s=0.1, backoff_multiplier_s=0.1
)
OPTIONS: dict[str, Any] = {"msg_timeout_ns": 3 * SECOND_NS}
OTHER = "other.test:4150"
LOOKUPD = "lookupd.test:4161"
SECOND = "second.test:4150"


class Stage:
    """A network that has ``source`` at ADDRESS, and LOOKUPD that knows of it.

    Attributes:
        is_complete: whether the tool came to its end.
        requests: URLs that were requested.
    """

    def __init__(self, patch: pytest.MonkeyPatch, source: Broker, *others: Broker) -> None:
        self.network = Network.of(source)
        self.brokers = (source, *others)
        for host, broker in zip((OTHER, SECOND), others, strict=False):
            self.network.hosts[host] = broker.connect
        self.is_complete = False
        self.requests: list[str] = []
        self._patch = patch
        for broker in self.brokers:
            broker.topic("t").channel("c")
        publish(source, "t", *BODIES)
        self._open_files = os.listdir("/proc/self/fd")
        patch.setattr("trionsq.httpget.get", self.get)

    def connect_tools(self, *modules: str) -> None:
        """Let the clients of these modules dial into the network."""
        consumer = partial(Consumer, dial=self.network.dial, get=self.get, random=Random(1))
        producer = partial(Producer, dial=self.network.dial)
        for module in modules:
            name = f"trionsq.tools.{module}"
            self._patch.setattr(f"{name}.Consumer", consumer, raising=False)
            self._patch.setattr(f"{name}.Producer", producer, raising=False)

    async def get(self, url: str, *_positional: object, **_named: object) -> httpget.Answer:
        """`trionsq.httpget.get`."""
        self.requests.append(url)
        await trio.sleep(0.01)
        host, _, port = ADDRESS.partition(":")
        node = {"broadcast_address": host, "tcp_port": int(port), "http_port": 4151}
        if "/topics" in url:
            content: object = {"topics": ["t"]}
        elif "/lookup" in url:
            content = {"producers": [node]}
        else:
            counts = {field.name: 1 for field in dataclasses.fields(ChannelCounts)}
            channels = [{"channel_name": "c", **counts}]
            content = {"topics": [{"topic_name": "t", "channels": channels}]}
        headers = {"x-nsq-content-type": "nsq; version=1.0"}
        return httpget.Answer(200, headers, json.dumps(content).encode())

    async def run(
        self,
        cancel_at: CancelAt,
        work: Callable[[], Awaitable[int]],
        *signals: tuple[float, signal.Signals],
        code: int = 0,
    ) -> None:
        """Run the tool, and send it signals at these times. It must leave nothing open."""

        async def tool() -> None:
            assert await work() == code
            self.is_complete = True

        with _harmless_signals():
            async with trio.open_nursery() as user:
                user.start_soon(_send_signals, signals)
                await run_counted(cancel_at, tool)
                user.cancel_scope.cancel()
        assert self.is_complete or cancel_at.has_fired
        await check_closed(self.network, *self.brokers)

    def check_files(self, *opened: int) -> None:
        """No file is open that was not, but for those that the test opened."""
        for fd in opened:
            os.close(fd)
        assert os.listdir("/proc/self/fd") == self._open_files


async def _send_signals(signals: Sequence[tuple[float, signal.Signals]]) -> None:
    for at_s, signum in signals:
        await trio.sleep_until(at_s)
        os.kill(os.getpid(), signum)


@contextmanager
def _harmless_signals() -> Iterator[None]:
    """A signal that the tool does not handle, or that it gives back as it ends, does nothing."""
    signums = (signal.SIGHUP, signal.SIGTERM)
    earlier = [signal.signal(signum, lambda *_: None) for signum in signums]
    try:
        yield
    finally:
        for signum, handler in zip(signums, earlier, strict=True):
            signal.signal(signum, handler)
