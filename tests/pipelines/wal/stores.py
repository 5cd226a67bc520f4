"""An object store in memory that fails as asked, and logs in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from pipelines.wal import LogView, SegmentRef, Wal, WalLimits
from pipelines.wal.store import StorePlace, StoreSource
from tests.pipelines.wal.logs import LIMITS

URL = "s3://bucket/log"


class FaultyStore:
    """A store in memory, shared by many clients.

    Attributes:
        before, after: called with the name of each request and its arguments, before it has an
            effect and before it is answered; may raise.
        requests: the number of requests by name.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.before: Callable[..., None] = lambda name, *arguments: None
        self.after: Callable[..., None] = lambda name, *arguments: None
        self.requests: list[str] = []
        self.is_conditional = True

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.store, name)

        def request(*arguments: Any, **options: Any) -> Any:
            self.requests.append(name)
            if not self.is_conditional:
                options.pop("mode", None)
            self.before(name, *arguments)
            answer = real(*arguments, **options)
            self.after(name, *arguments)
            return answer

        return request

    def names(self) -> list[str]:
        """The names of all objects, sorted."""
        return sorted(item["path"] for chunk in self.store.list() for item in chunk)


class FakeTime:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> float:
        return self.now_s


def open_stored(
    store: FaultyStore,
    limits: WalLimits = LIMITS,
    time: FakeTime | None = None,
    *,
    create: bool = True,
) -> Wal:
    """The log in that store; a new one if there is none."""
    fake = time or FakeTime()
    place = StorePlace(URL, store, sleep=fake.sleep, clock=fake.clock)
    return Wal(place, create=create, limits=limits, clock=fake.clock)


def view_of(store: FaultyStore) -> LogView:
    """The log in that store, for a reader."""
    fake = FakeTime()
    return LogView(StoreSource(URL, store, sleep=fake.sleep, clock=fake.clock))


def numbers_in(store: FaultyStore, refs: Sequence[SegmentRef]) -> list[int]:
    """The numbers of all messages in segments, in order."""
    found = []
    for ref in refs:
        data = bytes(store.store.get(ref.path.removeprefix(f"{URL}/")).bytes())
        reader = pa.ipc.open_file(pa.BufferReader(data))
        for index in range(reader.num_record_batches):
            bodies = reader.get_batch(index).column("body").to_pylist()
            found += [int(body) for body in bodies]
    return found


def unreachable(*_: object) -> None:
    """For `FaultyStore.before` and ``after``."""
    raise GenericError("error sending request")
