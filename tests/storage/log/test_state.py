"""The log engine's state in a SQLite file: content, limits, unusable files, full disks."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.storage.log.sqlite_disk import open_state
from tests.storage.log.state_model import KINDS, Candidates, history
from trionsq.disk import RealDisk
from trionsq.storage.log.reserve import RESERVE_FILE
from trionsq.storage.log.rows import (
    AddChannel,
    AddTopic,
    Change,
    DropTopic,
    ForgetTopic,
    PutHeld,
    PutMeta,
    State,
    StateContent,
    StateError,
    StoredChannel,
    StoredHeld,
    StoredTopic,
    UpdateChannel,
)
from trionsq.storage.log.state import STATE_FILE, WAL_FILE, SqliteState
from trionsq.storage.log.tables import SCHEMA_VERSION
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import MemoryState

LAST = 2**63 - 1

each_kind = pytest.mark.parametrize("open_it", KINDS.values(), ids=KINDS)


def real(path: Path, *, reserve_bytes: int = 0) -> SqliteState:
    return SqliteState(RealDisk(path), reserve_bytes=reserve_bytes)


def topic(number: int, name: str = "t") -> StoredTopic:
    return StoredTopic(number, name, "always", False, None, 0, 0)


def channel(number: int, of: int = 1, position: int = 0, data: bytes = b"") -> StoredChannel:
    return StoredChannel(number, of, "c", False, position, position, data)


def test_a_file_keeps_a_history(tmp_path: Path) -> None:
    """SQLite of the module sqlite3, in a real file, has what the model has, also after restarts."""
    candidates = Candidates(real(tmp_path))
    for place, changes in enumerate(history(Random(1), 60)):
        assert candidates.apply(changes)
        assert candidates.state.load() == candidates.model.content()
        if place % 7 == 6:
            candidates.state.checkpoint()
        if place % 10 == 9:
            candidates.state.close()
            assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
            candidates = candidates.reopened(real(tmp_path))
    assert len(candidates.model.channels) > 3
    assert len(candidates.model.held) > 3
    candidates.state.close()


def test_thousands_of_rows_take_few_statements(tmp_path: Path) -> None:
    """A commit costs statements by its kinds of rows and by each 500 of them: each statement takes
    the GIL anew, and with one a row the event loop would stand still."""
    state = real(tmp_path)
    statements: list[str] = []
    numbers = range(2, 2_002)
    state.apply([AddTopic(topic(1)), *(AddChannel(channel(number)) for number in numbers)])
    assert isinstance(state._connection, sqlite3.Connection)
    state._connection.set_trace_callback(statements.append)
    rows = [channel(number, 1, number, b"%d" % number) for number in numbers]
    state.apply([UpdateChannel(row) for row in rows])
    assert len([text for text in statements if not text.lstrip().startswith("--")]) <= 6
    assert state.load().channels == rows
    state.close()


@each_kind
def test_bytes_and_numbers_of_any_size_come_back(
    open_it: Callable[[SimulatedDisk], State],
) -> None:
    """Empty and large data, first and last numbers: each row gets its own part of what is sent."""
    state = open_it(SimulatedDisk())
    random = Random(1)
    sizes = (0, 1, 3 << 20, 0, 2 << 20, 5 << 20, 7)
    held = [
        StoredHeld(2, chunk, 1, LAST, random.randbytes(size)) for chunk, size in enumerate(sizes)
    ]
    gaps = ((0, 1), (LAST - 1, LAST))
    row = StoredTopic(1, "a.b-c#é", "interval", True, LAST, LAST, LAST, gaps)
    first = StoredChannel(2, 1, "c", True, LAST, 0, b"", -LAST)
    state.apply([AddTopic(row), AddChannel(first), *map(PutHeld, held), PutMeta("empty", b"")])
    assert state.load() == StateContent([row], [first], held, {}, {"empty": b""}, 3)


@each_kind
def test_what_does_not_fit_changes_nothing(open_it: Callable[[SimulatedDisk], State]) -> None:
    """A sequence beyond 63 bits fails the whole commit, and the next one works."""
    state = open_it(SimulatedDisk())
    state.apply([AddTopic(topic(1)), AddChannel(channel(2))])
    before = state.load()
    with pytest.raises(StateError, match=f"{STATE_FILE}: .*CHECK"):
        state.apply([PutMeta("key", b"value"), UpdateChannel(channel(2, 1, LAST + 1))])
    assert state.load() == before
    state.apply([UpdateChannel(channel(2, 1, LAST))])
    assert state.load().channels == [channel(2, 1, LAST)]


@each_kind
@pytest.mark.parametrize("together", [True, False])
def test_a_deleted_topic_is_a_tombstone_until_its_files_are_gone(
    open_it: Callable[[SimulatedDisk], State], together: bool
) -> None:
    """Its name stays with its number, beside a new topic of that name, until it is forgotten."""
    state = open_it(SimulatedDisk())
    changes: list[Change] = [AddTopic(topic(1)), AddChannel(channel(2))]
    changes += [PutHeld(StoredHeld(2, 0, 1, 0, b"x")), DropTopic(1)]
    changes += [AddTopic(topic(3)), UpdateChannel(channel(2)), ForgetTopic(3)]
    for part in [changes] if together else [[change] for change in changes]:
        state.apply(part)
    assert state.load() == StateContent([topic(3)], [], [], {1: "t"}, {}, 4)
    state.apply([ForgetTopic(1), DropTopic(1)])
    assert state.load().tombstones == {}
    state.apply([ForgetTopic(3), DropTopic(3)])
    assert state.load() == StateContent([], [], [], {3: "t"}, {}, 4)


# Files that cannot be used


def _write_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def _make_foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE topics (name)")


def _damage_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:4200] = bytes(104)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (_write_version, "has schema version 2; this nsqd knows versions up to 1"),
        (_make_foreign, "is no state of nsqd"),
        (_damage_page, "malformed|damaged"),
        (lambda path: path.write_bytes(b"abc" * 4096), "not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:9000]), "malformed|damaged"),
        (lambda path: path.write_bytes(b""), "is no state of nsqd"),
        (lambda path: path.rename(path.with_name(WAL_FILE)), f"missing, but there is {WAL_FILE}"),
    ],
    ids=["newer", "foreign", "damaged page", "garbage", "truncated", "empty", "only the WAL"],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, harm: Callable[[Path], object], text: str
) -> None:
    """The error names the file and the reason, and the file stays as it is."""
    state = real(tmp_path)
    state.apply([AddTopic(topic(1)), *(AddChannel(channel(number)) for number in range(2, 99))])
    state.close()
    harm(tmp_path / STATE_FILE)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StateError, match=f"{STATE_FILE}.*({text})"):
        real(tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: data for name, data in after.items() if data or name in before} == before


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    """There is never a second connection."""
    state = real(tmp_path)
    with pytest.raises(StateError, match="locked"):
        real(tmp_path)
    state.apply([PutMeta("key", b"value")])
    state.close()


def test_the_memory_state_reads_a_real_file(tmp_path: Path) -> None:
    """A simulation may begin with the folder of a real nsqd; and its damage is an error as well."""
    state = real(tmp_path)
    state.apply([AddTopic(topic(1))])
    state.close()
    disk = SimulatedDisk.load(tmp_path)
    memory = MemoryState(disk)
    assert memory.load().topics == [topic(1)]
    memory.apply([AddChannel(channel(2))])
    memory.close()
    assert open_state(disk).load().channels == [channel(2)]
    disk = SimulatedDisk()
    disk.write_file(STATE_FILE, b"abc" * 4096)
    with pytest.raises(StateError, match=STATE_FILE):
        MemoryState(disk)


# Full disks

OPENINGS: dict[str, Callable[..., State]] = {"SQLite": open_state, "in memory": MemoryState}
RESERVE_BYTES = 1 << 20


def gave_up(state: State) -> bool:
    """For mypy, which takes a property for a constant."""
    return state.reserve_given_up


@pytest.mark.parametrize("open_it", OPENINGS.values(), ids=OPENINGS)
def test_a_full_disk_costs_the_reserve_and_not_the_commit(open_it: Callable[..., State]) -> None:
    """When the disk is full the state goes on in the space of the reserve and says so; when there
    is room again, the next checkpoint makes the reserve anew."""
    disk = SimulatedDisk()
    state = open_it(disk, reserve_bytes=RESERVE_BYTES)
    assert len(disk.files()[RESERVE_FILE]) == RESERVE_BYTES
    assert not gave_up(state)
    disk.capacity = sum(map(len, disk.files().values())) + 1_000
    state.apply([AddTopic(topic(1)), AddChannel(channel(2, 1, 5, bytes(20_000)))])
    assert gave_up(state)
    assert RESERVE_FILE not in disk.files()
    state.checkpoint()
    assert gave_up(state)
    assert len(state.load().channels) == 1
    disk.capacity = sum(map(len, disk.files().values())) + RESERVE_BYTES + 100_000
    state.checkpoint()
    assert gave_up(state), "it would be given up again soon"
    disk.capacity += RESERVE_BYTES
    state.checkpoint()
    assert not gave_up(state)
    assert len(disk.files()[RESERVE_FILE]) == RESERVE_BYTES


@pytest.mark.parametrize("open_it", OPENINGS.values(), ids=OPENINGS)
def test_without_a_reserve_a_full_disk_fails_the_commit_until_there_is_room(
    open_it: Callable[..., State],
) -> None:
    """The error says what is wrong, nothing is changed, and the same commit works later."""
    disk = SimulatedDisk()
    state = open_it(disk)
    disk.capacity = sum(map(len, disk.files().values())) + 1_000
    assert not gave_up(state)
    with pytest.raises(StateError, match=r"full|No space"):
        state.apply([AddTopic(topic(1)), PutMeta("key", bytes(20_000))])
    assert state.load() == StateContent()
    disk.capacity = None
    state.apply([AddTopic(topic(1)), PutMeta("key", bytes(20_000))])
    assert state.load().topics == [topic(1)]


@pytest.mark.parametrize("open_it", OPENINGS.values(), ids=OPENINGS)
@pytest.mark.parametrize(("operation", "free_bytes"), [("sync", 1_000), ("write", 1 << 30)])
def test_a_disk_may_say_in_several_ways_that_it_is_full(
    operation: str, free_bytes: int, open_it: Callable[..., State]
) -> None:
    """The fsync finds no room, which SQLite takes for any error; or a quota ends where the disk
    has room."""
    disk = SimulatedDisk()
    state = open_it(disk, reserve_bytes=RESERVE_BYTES)
    disk.capacity = sum(map(len, disk.files().values())) + free_bytes
    disk.fail(errno.ENOSPC, only={operation, "sync"}, name=WAL_FILE)
    state.apply([AddTopic(topic(1))])
    assert gave_up(state)
    assert state.load().topics == [topic(1)]


@pytest.mark.parametrize("open_it", OPENINGS.values(), ids=OPENINGS)
def test_another_error_costs_no_reserve(open_it: Callable[..., State]) -> None:
    """Room does not help a disk that is broken."""
    disk = SimulatedDisk()
    state = open_it(disk, reserve_bytes=RESERVE_BYTES)
    disk.fail(errno.EIO, only={"sync"})
    with pytest.raises(StateError, match=STATE_FILE):
        state.apply([AddTopic(topic(1))])
    assert not gave_up(state)
    state.apply([AddTopic(topic(1))])
    assert state.load().topics == [topic(1)]


def test_a_start_on_a_full_disk_uses_the_reserve() -> None:
    """What stands in the WAL goes into the file at a start, in the space of the reserve."""
    disk = SimulatedDisk()
    state = open_state(disk, reserve_bytes=RESERVE_BYTES)
    state.apply([AddTopic(topic(1)), PutMeta("key", bytes(200_000))])
    disk = disk.after_kill()
    disk.capacity = sum(map(len, disk.files().values()))
    state = open_state(disk, reserve_bytes=RESERVE_BYTES)
    assert gave_up(state)
    assert state.load().topics == [topic(1)]


def test_a_reserve_of_another_size_is_made_anew() -> None:
    """A changed size counts from the next start; without room there is none, and it says so."""
    disk = SimulatedDisk()
    open_state(disk, reserve_bytes=RESERVE_BYTES).close()
    open_state(disk, reserve_bytes=2 * RESERVE_BYTES).close()
    assert len(disk.files()[RESERVE_FILE]) == 2 * RESERVE_BYTES
    disk.capacity = 3 * RESERVE_BYTES
    state = open_state(disk, reserve_bytes=3 * RESERVE_BYTES)
    assert gave_up(state)
    assert RESERVE_FILE not in disk.files()
    state.apply([AddTopic(topic(1))])
