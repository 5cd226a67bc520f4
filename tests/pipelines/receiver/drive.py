"""Shared by the receiver's tests: publish messages by HTTP, and find them in the log."""

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.receiver import Receiver, ReceiverConfig
from pipelines.wal import Wal, read_segment
from trionsq.testing.disk import SimulatedDisk

LIMIT_S = 180.0


class SlowDisk(SimulatedDisk):
    """A disk on which segments get their names when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()

    def rename(self, name: str, new_name: str) -> None:
        if ".arrow" in name:
            self.may_sync.wait(LIMIT_S)
        super().rename(name, new_name)


def post(http_address: str, path: str, body: bytes = b"") -> None:
    """Send a request to nsqd."""
    urllib.request.urlopen(f"http://{http_address}/{path}", data=body, timeout=60).read()


def publish(http_address: str, numbers: Iterable[int], topic: str = "t") -> None:
    """Publish messages with these numbers."""
    post(http_address, f"mpub?topic={topic}", b"\n".join(b"%d" % number for number in numbers))


def channel_of(http_address: str, topic: str = "t", channel: str = "c") -> dict[str, Any]:
    """nsqd's statistics of the channel."""
    url = f"http://{http_address}/stats?format=json&topic={topic}&channel={channel}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = json.load(answer)["topics"][0]["channels"][0]
    assert isinstance(found, dict)
    return found


def until(condition: Callable[[], object], receiver: Receiver | None = None) -> None:
    """Wait for a condition; fail when the receiver has failed, or after a limit."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if receiver is not None:
            receiver.check()
        assert time.monotonic() < deadline_s, receiver
        time.sleep(0.01)


def reach(receiver: Receiver, end: int) -> None:
    """Wait until the log has reached a position."""
    until(lambda: receiver.end >= end, receiver)


def config(*addresses: str, **options: Any) -> ReceiverConfig:
    """A configuration for topic t and channel c, with further options."""
    given: dict[str, Any] = {
        "topics": ("t",),
        "channel": "c",
        "nsqd_tcp_addresses": addresses,
        "connections_per_nsqd": 2,
        "probe_s": 0.05,
    }
    return ReceiverConfig(**(given | options))


@contextmanager
def running(wal: Wal, *addresses: str, **options: Any) -> Iterator[Receiver]:
    """A started receiver, stopped at the end."""
    receiver = Receiver(config(*addresses, **options), wal)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def stored(wal: Wal) -> list[int]:
    """The numbers in the log, in its order."""
    found: list[int] = []
    for ref in wal.segments(wal.first, wal.end):
        for batch in read_segment(ref, ref.first, ref.end):
            found += [int(body) for body in batch.column("body").to_pylist()]
    return found


def stored_at(path: Path) -> list[int]:
    """The numbers in a log that is not open."""
    with Wal.open(path, create=False) as wal:
        return stored(wal)
