"""The file that keeps when deferred messages are due."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.disk import Disk, RealDisk
from trionsq.storage.deferral_file import HEADER, DeferralFile, decode, encode
from trionsq.testing.disk import Crashed, SimulatedDisk

NAME = "orders:ship.diskqueue.deferred.dat"
QUEUE = "orders:ship"
RECORDED = Path(__file__).parent / "data" / "deferred-version-1.dat"

A, B, C = (b"0d86e924a6663%03x" % number for number in range(3))
NOW_NS = 1795280000000000000

ids = st.binary(min_size=16, max_size=16)
times = st.integers(0, 10**20 - 1)
entries = st.lists(st.tuples(ids, times))


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


def with_file(data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.write_file(NAME, data)
    return disk


def loaded(disk: Disk) -> dict[bytes, int]:
    return DeferralFile(disk, QUEUE).load()


@given(entries)
def test_what_was_encoded_is_decoded(wanted: list[tuple[bytes, int]]) -> None:
    """Any 16 bytes may be an id, also line ends; the last time of an id counts."""
    data = HEADER + encode(wanted)
    decoded = decode(data)
    assert decoded.due_ns == dict(wanted)
    assert (decoded.size, decoded.damaged, decoded.known) == (len(data), 0, True)


@given(entries, st.data())
def test_a_torn_end_costs_the_torn_line_only(
    wanted: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    """Cut anywhere, the file gives every message whose line is whole, and no other."""
    whole = HEADER + encode(wanted)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    decoded = decode(cut)
    assert decoded.known
    assert decoded.damaged == 0
    lines = max(0, cut.count(b"\n") - 1)
    assert decoded.due_ns == dict(wanted[:lines])
    assert decoded.size == cut.rfind(b"\n") + 1


@given(entries, st.binary(), entries)
def test_rubbish_costs_its_own_lines_only(
    before: list[tuple[bytes, int]], rubbish: bytes, after: list[tuple[bytes, int]]
) -> None:
    """What stands before and after damaged lines is read, and each of these is counted."""
    rubbish = rubbish.replace(b" ", b"")  # so that none of it is a line of ours
    decoded = decode(HEADER + encode(before) + rubbish + b"\n" + encode(after))
    assert decoded.due_ns == dict(before + after)
    assert decoded.damaged == rubbish.count(b"\n") + 1


@given(st.binary())
def test_any_file_can_be_decoded(data: bytes) -> None:
    """No content makes reading fail; what is not ours is known as such."""
    decoded = decode(data)
    assert decoded.known == (data.startswith(HEADER) or HEADER.startswith(data))


@pytest.mark.parametrize(
    "line",
    [
        b"30643836653932346136363633303030 +5",
        b"30643836653932346136363633303030 1_0",
        b"30643836653932346136363633303030  5",
        b"30643836653932346136363633303030 5\r",
        b"30643836653932346136363633303030 ",
        b"3064383665393234613636363330303 5",
        b"3064383665393234613636363330303G 5",
        b" 30643836653932346136363633303030 5",
        b"30643836653932346136363633303030 100000000000000000000",
        b"\0" * 40,
    ],
)
def test_only_exact_lines_count(line: bytes) -> None:
    """A line that is nearly right is damaged: a wrong due time is worse than none."""
    decoded = decode(HEADER + line + b"\n" + encode([(A, 5)]))
    assert decoded.due_ns == {A: 5}
    assert decoded.damaged == 1


def test_long_files_are_read_whole() -> None:
    """Neither many lines nor a damaged one of megabytes hide what follows."""
    wanted = [(b"%016x" % number, number) for number in range(50_000)]
    lines = encode(wanted)
    decoded = decode(HEADER + lines + b"\0" * 3_000_000 + b"\n" + encode([(A, 5)]))
    assert decoded.due_ns == {**dict(wanted), A: 5}
    assert decoded.damaged == 1


@pytest.mark.parametrize("entry", [(b"short", 5), (A + b"x", 5), (A, -1), (A, 10**20)])
def test_what_could_not_be_read_again_is_not_written(entry: tuple[bytes, int]) -> None:
    """An id or a time without a place in the format is an error, not a damaged line."""
    with pytest.raises(ValueError, match="not an id and a due time"):
        encode([entry])


def test_a_recorded_file_of_version_1_stays_readable() -> None:
    """Files that today's version wrote are read by every later one, foreign ids included."""
    decoded = decode(RECORDED.read_bytes())
    assert decoded.due_ns == {
        A: NOW_NS + 9_000_000_000,
        B: NOW_NS + 500_000_000,
        bytes.fromhex("0a20ff00") * 4: NOW_NS + 1_000_000_000,
    }
    assert decoded.damaged == 0


def test_appended_messages_are_loaded(disk: Disk) -> None:
    """The first append makes the file, later ones add, also after a restart."""
    file = DeferralFile(disk, QUEUE)
    assert file.load() == {}
    file.append([(A, 1)])
    file.append([(B, 2)])
    assert loaded(disk) == {A: 1, B: 2}
    DeferralFile(disk, QUEUE).append([(C, 3), (A, 4)])
    assert loaded(disk) == {A: 4, B: 2, C: 3}
    assert disk.names() == [NAME]


def only(kept: dict[bytes, int]) -> Callable[[bytes, int], bool]:
    """What `keep_only` is given to keep these."""
    return lambda id_, due_ns: kept.get(id_) == due_ns


def test_keep_only_keeps_exactly_what_it_is_told(disk: Disk) -> None:
    """It shrinks the file; appending goes on behind; without messages there is none."""
    file = DeferralFile(disk, QUEUE)
    file.append([(A, 1), (B, 2), (B, 5)])
    assert file.lines == 3
    file.keep_only(only({B: 5}))
    assert file.lines == 1
    file.append([(C, 3)])
    assert loaded(disk) == {B: 5, C: 3}
    file.keep_only(only({}))
    assert file.lines == 0
    assert disk.names() == []
    file.append([(A, 6)])
    assert loaded(disk) == {A: 6}


def test_remove_leaves_nothing_and_may_be_repeated(disk: Disk) -> None:
    """Also where there is no file, and a new one can be begun."""
    file = DeferralFile(disk, QUEUE)
    file.remove()
    file.append([(A, 1)])
    file.remove()
    file.remove()
    assert disk.names() == []
    file.append([(B, 2)])
    assert loaded(disk) == {B: 2}


@pytest.mark.parametrize("torn", [b"3064", b"\0" * 5000, encode([(C, 9)])[:-1]])
def test_a_torn_end_is_written_over(torn: bytes) -> None:
    """New lines never join what a crash left at the end, however long that is."""
    disk = with_file(HEADER + encode([(A, 1)]) + torn)
    file = DeferralFile(disk, QUEUE)
    assert file.load() == {A: 1}
    file.append([(B, 2)])
    assert disk.files()[NAME] == HEADER + encode([(A, 1), (B, 2)])


@pytest.mark.parametrize("start", [b"", HEADER[:5], HEADER[:-1]])
def test_a_torn_header_is_no_other_version(start: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A file that was cut off in its first line is begun anew, quietly."""
    disk = with_file(start)
    DeferralFile(disk, QUEUE).append([(A, 1)])
    assert disk.files() == {NAME: HEADER + encode([(A, 1)])}
    assert not caplog.records


def test_damaged_lines_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning tells how many there are."""
    disk = with_file(HEADER + b"x\n" * 3 + encode([(A, 1)]))
    assert loaded(disk) == {A: 1}
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"/simulated/{NAME}: skipped 3 damaged lines")
    ]


def test_another_version_is_kept_aside(caplog: pytest.LogCaptureFixture) -> None:
    """Reading leaves it alone, writing renames it, never over one that was renamed before."""
    foreign = b"trionsq deferred 2\nsomething\n"
    disk = with_file(foreign)
    disk.write_file(f"{NAME}.bad", b"older")
    file = DeferralFile(disk, QUEUE)
    assert file.load() == {}
    assert disk.files()[NAME] == foreign
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert file.lines == 0
    file.append([(A, 1)])
    assert disk.files() == {
        NAME: HEADER + encode([(A, 1)]),
        f"{NAME}.bad": b"older",
        f"{NAME}.1.bad": foreign,
    }


@pytest.mark.parametrize("operation", ["open", "size", "write", "sync"])
def test_a_failed_append_can_be_repeated(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error reaches the caller; the next append is durable together with all before it."""
    for seed in range(20):
        disk = SimulatedDisk(random=Random(seed))
        file = DeferralFile(disk, QUEUE)
        file.append([(A, 1)])
        disk.fail(errno.EIO, only={operation})
        with pytest.raises(OSError, match="Input/output error"):
            file.append([(B, 2), (C, 3)])
        assert disk.faults[operation] == 1
        file.append([(B, 4)])
        found = loaded(disk.after_power_loss())
        assert {A: 1, B: 4}.items() <= found.items()
        assert disk.open_files == 0
    assert not caplog.records  # nothing is damaged either


def test_a_file_whose_sync_failed_is_not_written_to_again() -> None:
    """What it holds is in doubt: the next append puts a new file in its place."""
    disk = SimulatedDisk(logged=True)
    file = DeferralFile(disk, QUEUE)
    file.append([(A, 1)])
    disk.fail(errno.EIO, only={"sync"})
    with pytest.raises(OSError, match="Input/output error"):
        file.append([(B, 2)])
    disk.log.clear()
    file.append([(C, 3)])
    assert ("write", NAME) not in disk.log
    assert loaded(disk) == {A: 1, C: 3}


def test_a_file_that_went_away_is_begun_anew() -> None:
    """If somebody removes or shortens it, one append fails and the next one works."""
    disk = SimulatedDisk()
    file = DeferralFile(disk, QUEUE)
    file.append([(A, 1)])
    disk.unlink(NAME)
    with pytest.raises(FileNotFoundError):
        file.append([(B, 2)])
    file.append([(B, 2)])
    assert loaded(disk) == {B: 2}
    disk.write_file(NAME, HEADER)
    with pytest.raises(OSError, match="shorter"):
        file.append([(C, 3)])
    file.append([(C, 3)])
    assert loaded(disk) == {C: 3}


def test_a_crash_loses_only_what_was_not_confirmed() -> None:
    """At whatever operation the power fails, each append that returned is there afterwards."""

    def work(disk: SimulatedDisk, done: dict[bytes, int]) -> None:
        file = DeferralFile(disk, QUEUE)
        for number, message_id in enumerate((A, B, A, C)):
            file.append([(message_id, number)])
            done[message_id] = number
        file.keep_only(only(done))
        file.append([(B, 9)])
        done[B] = 9

    work(counted := SimulatedDisk(), {})
    for seed in range(10):
        for at in range(1, counted.operations + 1):
            disk = SimulatedDisk(random=Random(seed))
            disk.crash_at(at)
            done: dict[bytes, int] = {}
            with pytest.raises(Crashed):
                work(disk, done)
            for found in (loaded(disk.after_kill()), loaded(disk.after_power_loss())):
                assert found.keys() >= done.keys()
                assert all(found[key] >= done[key] for key in done)
