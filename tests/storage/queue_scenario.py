"""One life of a disk queue, which tests of crashes and faults go through again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.storage.queues import (
    NS_PER_MS,
    QUEUE,
    STAMP_NS,
    Message,
    contents,
    folder_on,
    messages,
    put,
)
from trionsq.core.queue import BackendError
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataPathError
from trionsq.testing.background import HeldBackground, InlineBackground
from trionsq.testing.disk import SimulatedDisk

DUE_NS = STAMP_NS + 60_000 * NS_PER_MS


class Over(Exception):
    """The disk failed for good before the stop that the scenario has in its middle."""


class Scenario:
    """The life, and the account of it. Files of 300 bytes, a sync after 20 operations.

    Attributes:
        accepted: messages whose append returned, since the queue was emptied.
        trying: those of an append that did not return, or was refused.
        emptied: those that an `empty` or `delete` drops that did not return.
        handed: how many of ``accepted`` were read, or were being read.
        read: those that were.
        durable: how many of ``accepted`` the last sync that was completed made durable.
        refused: appends that were.
        starts: operations in which the queue was opened.
    """

    def __init__(self, disk: SimulatedDisk, *, held: bool, forever: bool = False) -> None:
        """``held``: jobs of the background run later than they come.

        ``forever``: with a disk that failed it is over before the stop.
        """
        self.forever = forever
        self.accepted: list[Message] = []
        self.trying: list[Message] = []
        self.emptied: list[Message] = []
        self.dropped: list[Message] = []
        self.read: list[Message] = []
        self.handed = 0
        self.durable = 0
        self.refused = 0
        self.starts: list[int] = []
        self.disk = disk
        self.background = HeldBackground() if held else InlineBackground()
        self.folder = folder_on(disk, self.background, max_file_bytes=300, sync_every=20)
        self.next_number = 0

    def run(self) -> None:
        """All of it."""
        self.start()
        self.put(3)
        self.put(2, due_ns=DUE_NS)
        self.sync()
        self.take(2)
        self.put(12, sizes=(20, 50))
        self.take(4)
        self.put(1, sizes=(400,))
        self.sync()
        self.take(9)
        self.put(4, due_ns=DUE_NS)
        self.empty()
        self.put(9)
        self.take(3)
        self.run_jobs()
        self.put(9, sizes=(1, 30))
        self.reopen()
        self.put(2)
        self.sync()
        self.take(8)
        self.put(5)
        self.put(2, due_ns=DUE_NS)
        self.delete()
        self.put(3)
        self.take(1)
        self.run_jobs()
        self.sync()
        self.put(2)
        self.take(2)

    def put(self, count: int, sizes: tuple[int, ...] = (10,), due_ns: int | None = None) -> None:
        wanted = messages(self.next_number, count, sizes, due_ns=due_ns)
        self.next_number += count
        self.trying += wanted
        try:
            put(self.queue, wanted)
        except BackendError:
            self.refused += 1
            assert self.folder.fault is not None
        else:
            del self.trying[-count:]
            self.accepted += wanted

    def take(self, count: int) -> None:
        self.handed = min(len(self.accepted), len(self.read) + count)
        while len(self.read) < self.handed:
            one = self.queue.read(self.handed - len(self.read), 1 << 30)
            if one is None:
                assert self.folder.fault is not None
                return
            self.read += contents(one)

    def sync(self) -> None:
        for _ in range(2):  # what came during a sync that was under way, too
            self.folder.sync_all()
            self.run_jobs()
        if self.folder.fault is None:
            self.durable = len(self.accepted)

    def run_jobs(self) -> None:
        if isinstance(self.background, HeldBackground):
            self.background.run_all()

    def empty(self) -> None:
        self._drop_all()
        self.queue.empty()
        self.emptied = []

    def delete(self) -> None:
        """And make it anew at once."""
        self._drop_all()
        self.queue.delete()
        self.start()
        self.emptied = []

    def _drop_all(self) -> None:
        self.emptied, self.accepted, self.trying = self.accepted + self.trying, [], []
        self.dropped += self.emptied
        self.read, self.handed, self.durable = [], 0, 0

    def reopen(self) -> None:
        """A clean stop and start."""
        self.run_jobs()
        if self.forever and self.disk.faults:
            raise Over
        self.queue.close()
        self.durable = len(self.accepted)
        if self.forever and self.disk.faults:
            raise BackendError("without a disk nothing starts")
        self.start()

    def start(self) -> None:
        first = self.disk.operations + 1
        try:
            self.queue = DiskQueue(QUEUE, self.folder)
        except DataPathError:  # nsqd does not start, and is started again
            self.queue = DiskQueue(QUEUE, self.folder)
        self.starts += range(first, self.disk.operations + 1)

    @property
    def unread(self) -> list[Message]:
        """What was accepted and handed to nobody."""
        return self.accepted[self.handed :]


def plain(wanted: list[Message]) -> list[Message]:
    """Without due times."""
    return [message._replace(due_ns=None) for message in wanted]


@contextmanager
def told(what: str) -> Iterator[None]:
    """Say with a failure in which of many runs it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(what)
        raise
