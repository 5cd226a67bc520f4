"""Logs for tests: on a simulated disk, with blocks of known messages."""

from collections.abc import Callable

import pyarrow as pa

from pipelines.wal import Block, Wal, WalLimits
from pipelines.wal.folder import FolderPlace
from pipelines.wal.segments import positions_of
from trionsq.testing.disk import SimulatedDisk

LIMITS = WalLimits(max_bytes=1 << 20, retention_s=0)


def block(*numbers: int, topic: str = "t", nsqd: str = "n:1") -> Block:
    """A block of messages whose ids and bodies are these numbers."""
    return Block(
        topic,
        "c",
        nsqd,
        [b"%016x" % number for number in numbers],
        [1_700_000_000_000_000_000 + number for number in numbers],
        [1] * len(numbers),
        [b"%d" % number for number in numbers],
    )


def open_log(
    disk: SimulatedDisk,
    limits: WalLimits = LIMITS,
    clock: Callable[[], float] = lambda: 0.0,
) -> Wal:
    """The log on that disk; a new one if there is none."""
    return Wal(FolderPlace(disk), create=True, limits=limits, clock=clock)


def numbers_on(disk: SimulatedDisk) -> list[int]:
    """The numbers of all messages in segments, in order; each segment is well formed."""
    found = []
    for name, data in disk.files().items():
        if positions_of(name) is not None:
            reader = pa.ipc.open_file(pa.BufferReader(data))
            for index in range(reader.num_record_batches):
                bodies = reader.get_batch(index).column("body").to_pylist()
                found += [int(body) for body in bodies]
    return found


__all__ = ["LIMITS", "block", "numbers_on", "open_log"]
