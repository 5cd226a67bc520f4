"""A look at a disk queue (trionsq.storage.peek), beside a queue that is written and read."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.helpers import WALL_NS, batch, body_of, message_ids
from trionsq.core.batch import Segment
from trionsq.core.peek import Page, Peeked, PeekStale, PeekTooFar
from trionsq.storage import peek
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk

BIG = 2**30
SIZES = (16, 100, 33)


def folder_on(disk: SimulatedDisk, max_file_bytes: int = 1000) -> DataFolder:
    return DataFolder(disk, InlineBackground(), max_file_bytes=max_file_bytes)


def filled(disk: SimulatedDisk, count: int, sizes: tuple[int, ...] = SIZES) -> DiskQueue:
    """A queue with messages in several files."""
    queue = DiskQueue("t", folder_on(disk))
    queue.append(Segment(batch(0, count, sizes), 0, count, 3))
    return queue


def look(queue: DiskQueue, skip: int = 0, max_count: int = BIG, max_bytes: int = BIG) -> Page:
    page = Page(max_count, max_bytes)
    view = queue.peek()
    if view is not None:
        view.read(skip, page)
    return page


def ids_of(page: Page) -> list[bytes]:
    return [message.id for message in page.messages]


def drain(queue: DiskQueue) -> list[bytes]:
    """Read the rest of the queue."""
    ids: list[bytes] = []
    while (segment := queue.read(BIG, BIG)) is not None:
        ids += segment.ids()
    return ids


@given(
    st.integers(1, 60), st.integers(0, 59), st.integers(0, 70), st.integers(1, 30), st.booleans()
)
def test_a_look_shows_what_a_reader_would_get(
    count: int, taken: int, skip: int, max_count: int, equal: bool
) -> None:
    """From any offset, through several files; the reader goes on where it was."""
    disk = SimulatedDisk()
    queue = filled(disk, count, (50,) if equal else SIZES)
    read = 0
    while read < min(taken, count):
        segment = queue.read(min(taken, count) - read, BIG)
        assert segment is not None
        read += segment.count
    depth = queue.depth
    left = message_ids(read, count - read)
    page = look(queue, skip, max_count)
    assert ids_of(page) == left[skip : skip + max_count]
    assert page.more == (len(left) > skip + max_count)
    assert page.trouble is None
    assert queue.depth == depth
    assert drain(queue) == left


def test_all_of_a_message_is_shown() -> None:
    """Attempts, time of publishing, body and its size; and when it is due, if it is deferred."""
    queue = DiskQueue("t", folder_on(SimulatedDisk()))
    queue.append(Segment(batch(7, 2, (20, 30)), 0, 2, attempts=5), [WALL_NS + 9, WALL_NS + 10])
    queue.append(Segment(batch(9, 1, (10,)), 0, 1))
    first, second, third = look(queue, max_bytes=55).messages + look(queue, skip=2).messages
    ids = message_ids(7, 3)
    assert first == Peeked(
        ids[0], WALL_NS + 7, 5, body_of(ids[0], 20), 20, WALL_NS + 9, on_disk=True
    )
    assert second.due_ns == WALL_NS + 10
    assert (third.attempts, third.due_ns, third.body) == (0, None, body_of(ids[2], 10))


def test_what_comes_after_the_view_is_not_in_it() -> None:
    """A look ends where the queue ended at the moment of asking."""
    queue = filled(SimulatedDisk(), 5)
    view = queue.peek()
    assert view is not None
    queue.append(Segment(batch(100, 50), 0, 50))
    page = Page(BIG, BIG)
    view.read(0, page)
    assert ids_of(page) == message_ids(0, 5)


@pytest.mark.parametrize("size", [peek._BLOCK_BYTES - 30, peek._BLOCK_BYTES, 700_000])
def test_a_long_body_is_read_no_further_than_shown(size: int) -> None:
    """One that is longer than a block: its beginning, the whole of it, or past it."""
    queue = DiskQueue("t", folder_on(SimulatedDisk(), max_file_bytes=BIG))
    queue.append(Segment(batch(0, 3, (size,)), 0, 3, 4))
    ids = message_ids(0, 3)
    (message,) = look(queue, max_bytes=100).messages
    assert message == Peeked(ids[0], WALL_NS, 4, body_of(ids[0], size)[:100], size, on_disk=True)
    page = look(queue, skip=1)
    assert [one.body for one in page.messages] == [body_of(id_, size) for id_ in ids[1:]]
    (message,) = look(queue, skip=2, max_bytes=size - 1).messages
    assert message.body == body_of(ids[2], size)[: size - 1]


def test_a_far_offset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """When so much was read for nothing; what lies before that is shown."""
    monkeypatch.setattr(peek, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(peek, "MAX_SCANNED_BYTES", 5000)
    queue = filled(SimulatedDisk(), 1000, (70,))
    assert ids_of(look(queue, skip=45, max_count=1)) == message_ids(45, 1)
    with pytest.raises(PeekTooFar):
        look(queue, skip=900)
    # What is shown, and not passed, has the bounds of its page.
    assert len(look(queue).messages) == 1000


def test_long_bodies_are_passed_at_little_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not read does not count."""
    monkeypatch.setattr(peek, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(peek, "MAX_SCANNED_BYTES", 50_000)
    queue = DiskQueue("t", folder_on(SimulatedDisk(), max_file_bytes=100_000))
    queue.append(Segment(batch(0, 40, (50_000,)), 0, 40))
    assert ids_of(look(queue, skip=39)) == message_ids(39, 1)


def damaged(disk: SimulatedDisk, number: int, data: bytes) -> None:
    disk.write_file(f"t.diskqueue.{number:06d}.dat", data)


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-7], "is cut short"),
        (lambda data: data[:80] + b"\xff" * 4 + data[84:], "no record begins at offset"),
        (lambda data: b"\x00" * len(data), "no record begins at offset 0"),
    ],
)
def test_a_damaged_file_ends_the_look(damage: Damage, why: str) -> None:
    """What comes before the damage is shown, then it is told where and why it ended."""
    disk = SimulatedDisk()
    queue = filled(disk, 40, (50,))
    name = "t.diskqueue.000001.dat"
    whole = disk.files()[name]
    disk.write_file(name, damage(whole))
    page = look(queue)
    assert page.trouble is not None
    assert page.trouble.startswith(name)
    assert why in page.trouble
    count = len(page.messages)
    assert 0 < count < 40
    assert ids_of(page) == message_ids(0, count)
    disk.write_file(name, whole)
    assert drain(queue) == message_ids(0, 40), "the look moved or renamed something"


@given(st.randoms(use_true_random=False))
def test_any_damage_is_survived(random: Random) -> None:
    """Random bytes anywhere in the files: an answer with what was found, never another error."""
    disk = SimulatedDisk()
    queue = filled(disk, 40)
    for name, data in disk.files().items():
        if name.endswith("0.dat") or random.random() < 0.5:
            place = random.randrange(len(data))
            noise = random.randbytes(random.randrange(1, 9))
            disk.write_file(name, (data[:place] + noise + data[place:])[: random.randrange(2000)])
    page = look(queue, skip=random.randrange(40))
    assert len(page.messages) <= 40 + 2000 // 30


def test_an_error_of_the_disk_ends_the_look() -> None:
    """It is told; the queue is not in doubt for it."""
    disk = SimulatedDisk()
    queue = filled(disk, 40)
    disk.fail(errno.EIO, only=("read",))
    page = look(queue)
    assert page.trouble is not None
    assert "Input/output error" in page.trouble
    assert disk.faults
    assert drain(queue) == message_ids(0, 40)


def test_files_that_were_read_meanwhile_make_the_view_stale() -> None:
    """They are removed as soon as they are read to their end; the next view begins behind."""
    queue = filled(SimulatedDisk(), 40)
    view = queue.peek()
    assert view is not None
    read = 0
    while read < 30:
        segment = queue.read(10, BIG)
        assert segment is not None
        read += segment.count
    queue.sync()
    with pytest.raises(PeekStale, match="No such file"):
        view.read(0, Page(BIG, BIG))
    assert ids_of(look(queue)) == message_ids(read, 40 - read)


def test_emptying_makes_the_view_stale() -> None:
    """Also if the files have names that were in use again by then."""
    disk = SimulatedDisk()
    queue = filled(disk, 40)
    view = queue.peek()
    assert view is not None
    queue.delete()
    filled(disk, 40)
    with pytest.raises(PeekStale):
        view.read(0, Page(BIG, BIG))


def test_a_look_leaves_no_file_open() -> None:
    """Neither after its end, nor after trouble or a stop in the middle."""
    disk = SimulatedDisk()
    queue = filled(disk, 40)
    before = disk.open_files
    look(queue)
    look(queue, max_count=3)
    disk.fail(errno.EIO, only=("read",))
    look(queue)
    assert disk.open_files == before
