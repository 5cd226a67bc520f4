"""The writer of a log on a disk that fails."""

from __future__ import annotations

import errno

import pytest

from trionsq.core.batch import MessageBatch
from trionsq.core.ids import IdSource
from trionsq.histogram import Histogram
from trionsq.storage.log.batches import MAX_JOINED_BYTES
from trionsq.storage.log.names import is_draft_name
from trionsq.storage.log.reading import read_block
from trionsq.storage.log.segments import scan_segment
from trionsq.storage.log.segmentwriter import SegmentWriter
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.bodies import ListBodies

_IDS = IdSource(0)


def batch(*bodies: bytes) -> MessageBatch:
    return MessageBatch(ListBodies(list(bodies)), _IDS.next_ids(len(bodies), 10**18), 10**18)


def stored(disk: SimulatedDisk, writer: SegmentWriter) -> list[bytes]:
    """The bodies that its segments have."""
    (segments, ends), bodies = writer.pop_changes(), list[bytes]()
    for segment, end in ends:
        segment.end = end
    for segment in segments:
        block = read_block(disk, segments, segment.first, 1000, 100)
        for found in block.batches:
            bodies += found.bodies.slice(0, found.count)
    return bodies


def test_what_was_written_unsynced_outlives_two_failures() -> None:
    """An OK of `interval` holds: what no fsync has reached is written again when the disk works."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**6, Histogram((1.0,)))
    writer.write_round([(batch(b"synced"), 0)], sync=True)
    writer.write_round([(batch(b"counts"), 1)], sync=False)
    disk.fail(errno.EIO, forever=True, only=("sync",))
    with pytest.raises(OSError, match="error"):
        writer.write_round([(batch(b"refused"), 2)], sync=True)
    disk.heal()
    writer.write_round([(batch(b"new"), 3)], sync=True)
    assert not writer.has_unsynced
    assert stored(disk, writer) == [b"synced", b"counts", b"new"]


@pytest.mark.parametrize("has_unsynced", [True, False])
def test_a_probe_fails_as_long_as_the_disk_does(has_unsynced: bool) -> None:
    """So a fault that a round met is shown until messages would be taken again."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**6, Histogram((1.0,)))
    if has_unsynced:
        writer.write_round([(batch(b"counts"), 0)], sync=False)
    disk.fail(errno.EIO, forever=True, only=("write", "sync"))
    with pytest.raises(OSError, match="error"):
        writer.write_round([(batch(b"refused"), 1)], sync=True)

    def try_again() -> None:
        writer.write_round([], sync=True)
        writer.probe(2)

    for _ in range(2):
        with pytest.raises(OSError, match="error"):
            try_again()
    disk.heal()
    try_again()
    writer.write_round([(batch(b"new"), 2)], sync=True)
    bodies = [b"counts", b"new"] if has_unsynced else [b"new"]
    assert stored(disk, writer) == bodies


def test_a_draft_that_could_not_be_removed_is_in_nobodys_way() -> None:
    """What a failed round left takes the name of the next segment; the topic goes on all the
    same."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**6, Histogram((1.0,)))
    disk.fail(errno.EIO, forever=True, only=("sync",))
    disk.fail(errno.EIO, at=4, only=("unlink",))
    with pytest.raises(OSError, match="error"):
        writer.write_round([(batch(b"refused"), 0)], sync=True)
    assert [name for name in disk.files() if is_draft_name(name)]
    disk.heal()
    writer.write_round([(batch(b"new"), 0)], sync=True)
    assert stored(disk, writer) == [b"new"]


def test_single_publishes_are_joined_up_to_a_size() -> None:
    """Who reads one message of a round reads no more than `MAX_JOINED_BYTES` with it."""
    writer = SegmentWriter(SimulatedDisk(), "t", 1, 10**9, Histogram((1.0,)))
    size = MAX_JOINED_BYTES // 4
    entries = [(batch(bytes(size)), number) for number in range(11)]
    records = writer.write_round(entries, sync=True)
    assert [record.count for record in records] == [4, 4, 3]
    [large] = writer.write_round([(batch(bytes(2 * MAX_JOINED_BYTES)), 11)], sync=True)
    assert large.count == 1


def test_a_round_is_in_one_segment() -> None:
    """Of two, the first would count for a start, though the second failed and all was refused."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 1000, Histogram((1.0,)))
    large = bytes(2 * MAX_JOINED_BYTES)
    writer.write_round([(batch(b"small"), 0)], sync=True)
    writer.write_round([(batch(large), 1), (batch(large), 2), (batch(large), 3)], sync=True)
    assert writer.encode_round([(batch(b"next"), 4)], sync=True) is None
    writer.write_round([(batch(b"next"), 4)], sync=True)
    segments, _ = writer.pop_changes()
    assert [segment.first for segment in segments] == [0, 4]


def test_refused_rounds_leave_no_files() -> None:
    """A full disk is not filled by what it refuses."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**6, Histogram((1.0,)))
    writer.write_round([(batch(b"counts"), 0)], sync=True)
    disk.fail(errno.ENOSPC, forever=True, only=("write", "sync"))
    for sequence in range(1, 5):
        with pytest.raises(OSError, match="space"):
            writer.write_round([(batch(b"refused"), sequence)], sync=True)
    assert len(disk.files()) == 1


@pytest.mark.parametrize("sync", [True, False])
def test_refused_rounds_leave_no_files_where_a_header_has_room(sync: bool) -> None:
    """Nor segments that were begun for them; what counts stays, also if it is not durable yet."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**6, Histogram((1.0,)))
    writer.write_round([(batch(b"counts"), 0)], sync=sync)
    for sequence in range(1, 5):
        disk.capacity = sum(map(len, disk.files().values())) + 200
        with pytest.raises(OSError, match="space"):
            writer.write_round([(batch(bytes(30_000)), sequence)], sync=True)
    assert len(disk.files()) == 1
    disk.capacity = None
    writer.write_round([(batch(b"new"), 5)], sync=True)
    assert stored(disk, writer) == [b"counts", b"new"]


def test_small_rounds_that_are_synced_find_room() -> None:
    """Few of their fsyncs have to make a new size durable; the others cost a third."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**9, Histogram((1.0,)))
    sizes: list[int] = []
    for number in range(3_000):
        writer.write_round([(batch(b"x" * 200), number)], sync=True)
        [content] = disk.files().values()
        sizes.append(len(content))
        assert len(content) <= 2 * writer.offset + 4096
    assert len(set(sizes)) < 12
    [segment], _ = writer.pop_changes()
    file = disk.open(segment.name)
    scan = scan_segment(file, segment.header, check_bodies=True)
    assert sum(head.count for head in scan.records) == 3_000
    assert scan.torn is None
    assert scan.end == writer.offset < scan.limit
    file.write(b"x", scan.limit - 1)
    scan = scan_segment(file, segment.header, check_bodies=True)
    assert sum(head.count for head in scan.records) == 3_000
    assert scan.torn is not None


@pytest.mark.parametrize(("size", "sync"), [(100, False), (100_000, True)])
def test_other_rounds_need_no_room(size: int, sync: bool) -> None:
    """A large one would be written twice, and one that is synced later has its size by then."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**9, Histogram((1.0,)))
    for number in range(3):
        writer.write_round([(batch(bytes(size)), number)], sync=sync)
    [content] = disk.files().values()
    assert len(content) == writer.offset


def test_a_disk_without_room_takes_what_counts() -> None:
    """A round that fits is not refused since the room behind it does not."""
    disk = SimulatedDisk()
    writer = SegmentWriter(disk, "t", 1, 10**9, Histogram((1.0,)))
    writer.write_round([(batch(bytes(3_900)), 0)], sync=True)
    [content] = disk.files().values()
    disk.capacity = len(content) + 2_500
    for number in range(1, 3):
        writer.write_round([(batch(bytes(5_000)), number)], sync=True)
    [segment], _ = writer.pop_changes()
    assert writer.offset > len(content)
    scan = scan_segment(disk.open(segment.name), segment.header, check_bodies=True)
    assert sum(head.count for head in scan.records) == 3
    assert scan.torn is None
