"""What the tests of the disk queue share: messages that tell who they are, and queues of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.disk import Disk
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import Background, DataFolder
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.bodies import ListBodies

QUEUE = "t:c"
META = f"{QUEUE}.diskqueue.meta.dat"
DEFERRAL_FILE = f"{QUEUE}.diskqueue.deferred.dat"
STAMP_NS = 1_700_000_000_000_000_000
NS_PER_MS = 1_000_000
EVERYTHING = 1 << 30


class Message(NamedTuple):
    """A message as a queue keeps it."""

    id: bytes
    body: bytes
    stamp_ns: int = STAMP_NS
    attempts: int = 0
    due_ns: int | None = None

    @property
    def record(self) -> bytes:
        """As the files have it."""
        length = 26 + len(self.body)
        return struct.pack(">iqH16s", length, self.stamp_ns, self.attempts, self.id) + self.body


def messages(
    first: int,
    count: int,
    sizes: Sequence[int] = (10,),
    *,
    attempts: int = 0,
    due_ns: int | None = None,
) -> list[Message]:
    """Messages with numbers as ids, and bodies of these sizes in turn that tell the number."""
    made = []
    for number in range(first, first + count):
        size = sizes[number % len(sizes)]
        body = (b"%d." % number * size)[:size]
        made.append(Message(b"%016x" % number, body, STAMP_NS + number, attempts, due_ns))
    return made


def segment(wanted: Sequence[Message]) -> Segment:
    """Messages with the same attempts, in the middle of a batch."""
    padded = [wanted[0], *wanted, wanted[-1]]
    stamps = [message.stamp_ns.to_bytes(8, signed=True) for message in padded]
    batch = MessageBatch(
        ListBodies([message.body for message in padded]),
        ListColumn([message.id for message in padded]),
        padded[0].stamp_ns,
        stamps=ListColumn(stamps),
    )
    return Segment(batch, 1, len(padded) - 1, wanted[0].attempts)


def contents(got: Segment) -> list[Message]:
    """The messages of what a queue gave."""
    batch = got.batch
    due_ns = batch.timestamp_ns + batch.defer_ms * NS_PER_MS if batch.defer_ms else None
    return [
        Message(
            batch.ids.slice(index, index + 1)[0],
            batch.bodies.body_at(index),
            int.from_bytes(batch.stamp(index), signed=True),
            got.attempts,
            due_ns,
        )
        for index in range(got.first, got.last)
    ]


def folder_on(
    disk: Disk,
    background: Background | None = None,
    *,
    max_file_bytes: int = 10_000,
    max_body_bytes: int = 1_000,
    sync_every: int = 100,
) -> DataFolder:
    """A data folder with small limits."""
    return DataFolder(
        disk,
        InlineBackground() if background is None else background,
        max_file_bytes,
        max_body_bytes,
        sync_every,
    )


def queue_on(disk: Disk, *, max_file_bytes: int = 10_000, max_body_bytes: int = 1_000) -> DiskQueue:
    """The queue of that disk, in a folder of its own."""
    return DiskQueue(
        QUEUE,
        folder_on(disk, max_file_bytes=max_file_bytes, max_body_bytes=max_body_bytes),
    )


def put(queue: DiskQueue, wanted: Sequence[Message]) -> None:
    """Append in one batch; deferred ones must all be."""
    due_ns = [message.due_ns for message in wanted if message.due_ns is not None]
    queue.append(segment(wanted), due_ns or None)


def drain(queue: DiskQueue, count_max: int = 7, nbytes_max: int = EVERYTHING) -> list[Message]:
    """All that it gives."""
    got: list[Message] = []
    while (one := queue.read(count_max, nbytes_max)) is not None:
        assert 1 <= one.count <= count_max
        got += contents(one)
    return got


def records_name(number: int, queue: str = QUEUE) -> str:
    return f"{queue}.diskqueue.{number:06d}.dat"


def join(wanted: Sequence[Message]) -> bytes:
    """The records of messages, one behind the other."""
    return b"".join(message.record for message in wanted)


def disk_with(meta: bytes | None, files: dict[int, bytes]) -> SimulatedDisk:
    """A disk with a positions file and files of records."""
    disk = SimulatedDisk()
    if meta is not None:
        disk.write_file(META, meta)
    for number, data in files.items():
        disk.write_file(records_name(number), data)
    return disk
