"""The text that keeps a disk queue's positions, and what a start makes of it."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.queues import META, QUEUE, disk_with, folder_on, join, messages, records_name
from trionsq.storage.positions import Positions, PositionsFile, QueueFiles, QueueStart
from trionsq.storage.recovery import find_start

FILES = QueueFiles(QUEUE)
numbers = st.integers(0, 10**18 - 1)


@given(st.integers(-9, 10**18 - 1), *[numbers] * 4)
def test_what_is_written_is_parsed(depth: int, one: int, two: int, three: int, four: int) -> None:
    """Any positions with the reader not ahead; a negative count of messages is written as 0."""
    reader, writer = sorted([(one, two), (three, four)])
    positions = Positions(depth, *reader, *writer)
    assert Positions.parse(positions.text()) == Positions(max(0, depth), *reader, *writer)


@given(st.binary(max_size=60))
def test_any_text_is_positions_or_refused(text: bytes) -> None:
    """No content does anything else than parse or raise ValueError."""
    try:
        positions = Positions.parse(text)
    except ValueError:
        return
    assert positions.read_file <= positions.write_file


@pytest.mark.parametrize(
    "text", [b"", b"1", b"1\n0,0\n0,9", b"1\n0;0\n0,9\n", b"1\n-1,0\n0,9\n", b"1\n0,10\n0,9\n"]
)
def test_what_is_not_positions_is_refused(text: bytes) -> None:
    """Cut short, of another form, or with the reader ahead of the writer."""
    with pytest.raises(ValueError, match=r"positions|ahead"):
        Positions.parse(text)


def test_positions_are_written_unless_the_file_has_them() -> None:
    """What a sync has stored since is no longer what was written before."""
    disk = disk_with(None, {})
    file = PositionsFile(disk, FILES, QueueStart(Positions()))
    file.write()
    first = disk.files()[META]
    file.positions.depth = 1
    text = file.text_to_store()
    assert text is not None
    disk.write_file(META, text)
    file.mark_stored(text)
    file.positions.depth = 0
    file.write()
    assert disk.files()[META] == first


def test_names_have_six_digits_or_more() -> None:
    """Numbers are padded to six digits, and read back from the name whatever their size."""
    for number in (0, 7, 999_999, 12_345_678):
        assert FILES.number(FILES.records(number)) == number
    assert FILES.records(7) == "t:c.diskqueue.000007.dat"
    assert FILES.records(12_345_678) == "t:c.diskqueue.12345678.dat"


def test_a_clean_stop_is_gone_on_from() -> None:
    """Positions that the files bear out are taken as they are, and nothing is changed."""
    disk = disk_with(b"2\n3,40\n4,40\n", {3: join(messages(0, 2)), 4: join(messages(2, 1))})
    before = disk.files()
    start = find_start(folder_on(disk), FILES)
    assert start.positions == Positions(2, 3, 40, 4, 40)
    assert (start.moved, len(start.finished)) == (False, 0)
    assert disk.files() == before
    assert disk.open_files == 0


def test_later_and_earlier_files_are_seen() -> None:
    """Writing goes on behind the last one there is, also with gaps; those before the one that is
    read are finished."""
    data = join(messages(0, 1))
    disk = disk_with(b"1\n3,0\n3,40\n", dict.fromkeys((0, 2, 3, 5, 6), data))
    disk.write_file("t.diskqueue.000009.dat", data)
    start = find_start(folder_on(disk), FILES)
    assert start.positions == Positions(1, 3, 0, 7, 0)
    assert start.moved
    assert list(start.finished) == [0, 2]


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_disk_that_hides_the_positions_costs_no_message(operation: str) -> None:
    """An error is no content: then all files are read from their beginnings."""
    disk = disk_with(b"1\n3,40\n4,40\n", {3: join(messages(0, 2)), 4: join(messages(2, 1))})
    disk.fail(errno.EIO, only={operation}, name=META)
    start = find_start(folder_on(disk), FILES)
    assert disk.faults[operation] == 1
    assert start.positions == Positions(0, 3, 0, 5, 0)
    assert records_name(3) in disk.files()


@pytest.mark.parametrize("operation", ["open", "size"])
def test_a_file_that_can_not_be_looked_at_is_not_written_on(operation: str) -> None:
    """Its end is unknown: writing goes on in the next one."""
    disk = disk_with(b"1\n0,0\n0,40\n", {0: join(messages(0, 1))})
    disk.fail(errno.EIO, only={operation}, name=records_name(0))
    assert find_start(folder_on(disk), FILES).positions == Positions(1, 0, 0, 1, 0)


def test_the_folder_is_listed_once_for_all_queues() -> None:
    """Thousands of queues do not mean thousands of listings."""
    disk = disk_with(b"1\n0,0\n0,40\n", {0: join(messages(0, 1))})
    folder = folder_on(disk)
    disk.fail(errno.EIO, at=2, forever=True, only={"names"})
    for name in (QUEUE, "a", "b:c", "d"):
        find_start(folder, QueueFiles(name))
    assert not disk.faults
