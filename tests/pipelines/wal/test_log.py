"""What the log stores, returns and refuses."""

import json
import pickle
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import WalDamagedError, WalError, WalLockedError, WalRangeError
from pipelines.schema import ARROW_SCHEMA
from pipelines.wal import Block, SegmentRef, Wal, WalLimits, read_segment
from tests.pipelines.wal.logs import block, numbers_on, open_log
from trionsq.testing.disk import SimulatedDisk


def rows(log: Wal, start: int, end: int) -> list[dict[str, object]]:
    """The messages at these positions, as an executor reads them."""
    found = []
    for ref in log.segments(start, end):
        for batch in read_segment(pickle.loads(pickle.dumps(ref)), start, end):
            assert batch.schema == ARROW_SCHEMA
            found += batch.to_pylist()
    return found


def test_what_is_appended_comes_back_in_every_column(tmp_path: Path) -> None:
    """All seven columns are read as written, with any bytes and several topics and nsqds."""
    blocks = [
        Block("t", "c", "n:1", [b"a" * 16], [1_234_567], [65535], [b"\x00\xff"]),
        Block("u", "c", "n:2", [b"b" * 16, b"\xff" * 16], [-1001, 2**62], [1, 2], [b"", b"x"]),
    ]
    with Wal.open(tmp_path / "log") as log:
        assert log.append(blocks) == 3
        found = rows(log, 0, 3)
    assert [row["topic"] for row in found] == ["t", "u", "u"]
    assert [row["nsqd"] for row in found] == ["n:1", "n:2", "n:2"]
    assert [row["channel"] for row in found] == ["c"] * 3
    assert [row["body"] for row in found] == [b"\x00\xff", b"", b"x"]
    assert [row["attempts"] for row in found] == [65535, 1, 2]
    assert [row["id"] for row in found] == ["a" * 16, "b" * 16, "\\xff" * 16]
    assert str(found[0]["timestamp"]) == "1970-01-01 00:00:00.001234+00:00"


@given(
    sizes=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_any_range_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], data: st.DataObject
) -> None:
    """Any range, across blocks and segments, has its messages in order, each once."""
    with Wal.open(tmp_path_factory.mktemp("log")) as log:
        for counts in sizes:
            blocks = []
            first = log.end
            for stream, count in enumerate(counts):
                blocks.append(block(*range(first, first + count), nsqd=f"n:{stream}"))
                first += count
            if first > log.end:
                assert log.append(blocks) == first
        start = data.draw(st.integers(0, log.end))
        end = data.draw(st.integers(start, log.end))
        assert [int(str(row["id"]), 16) for row in rows(log, start, end)] == [*range(start, end)]


def test_one_process_has_the_log(tmp_path: Path) -> None:
    """A second `open` fails and says what to do; after `close` it succeeds."""
    first = Wal.open(tmp_path)
    with pytest.raises(WalLockedError, match="walPath of its own"):
        Wal.open(tmp_path)
    first.close()
    first.close()
    with pytest.raises(WalError, match="closed"):
        first.append([block(1)])
    with pytest.raises(WalError, match="closed"):
        first.commit(0)
    with pytest.raises(WalError, match="closed"):
        first.probe(1)
    Wal.open(tmp_path).close()


def test_an_open_that_fails_holds_no_lock(tmp_path: Path) -> None:
    """After an error of the disk, or of the log, the same process can open the log."""
    meta = tmp_path / "META.json"
    meta.mkdir()
    with pytest.raises(WalError, match="can't be opened") as failed:
        Wal.open(tmp_path)
    meta.rmdir()
    meta.write_text("{")
    with pytest.raises(WalDamagedError) as damaged:
        Wal.open(tmp_path)
    meta.unlink()
    Wal.open(tmp_path).close()
    for kept in (failed.value, damaged.value):
        assert kept.__traceback__ is not None, "it keeps all that its call had"


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    """A path below a file is a WalError, as each failure of the disk is."""
    (tmp_path / "file").touch()
    with pytest.raises(WalError, match="file/log can't be opened"):
        Wal.open(tmp_path / "file" / "log")


def test_an_append_of_nothing_is_refused(tmp_path: Path) -> None:
    """No segment is written for it, and the next append is as if it had not been."""
    with Wal.open(tmp_path) as log:
        for blocks in ([], [block()]):
            with pytest.raises(ValueError, match="nothing to append"):
                log.append(blocks)
        assert (log.end, log.segment_count) == (0, 0)
        assert log.append([block(1)]) == 1


@pytest.mark.parametrize("wal_id", [None, "", 7])
def test_a_log_without_an_id_is_refused(wal_id: object, tmp_path: Path) -> None:
    """META.json must name the log: a segment of another one would not be noticed."""
    (tmp_path / "META.json").write_text(json.dumps({"version": 1, "id": wal_id}))
    with pytest.raises(WalDamagedError, match=r"META\.json has no id"):
        Wal.open(tmp_path)


def test_a_log_keeps_its_id_and_positions(tmp_path: Path) -> None:
    """A reopened log is the same; without `create` a folder without a log is an error."""
    with pytest.raises(WalError, match="no log"):
        Wal.open(tmp_path / "none", create=False)
    with Wal.open(tmp_path) as log:
        log.append([block(1, 2, 3)])
        log.commit(2)
        wal_id = log.id
    with Wal.open(tmp_path, create=False) as log:
        assert (log.id, log.first, log.end, log.committed) == (wal_id, 0, 3, 2)
        assert log.segment_count == 1


def test_a_new_log_begins_without_the_remains_of_a_creation_that_was_cut_off() -> None:
    """Drafts are removed before the first files are made; other files stay."""
    disk = SimulatedDisk()
    for name in ("META.json.tmp", "00000000000000000000-00000000000000000001.arrow.tmp", "other"):
        disk.write_file(name, b"x")
    open_log(disk)
    assert set(disk.files()) == {"COMMITTED.json", "META.json", "OWNER.json", "other"}


def test_commit_goes_forward_only_and_not_beyond_the_end() -> None:
    """An older position has no effect, a position after the end is an error."""
    log = open_log(SimulatedDisk())
    log.append([block(1, 2, 3)])
    log.commit(2)
    log.commit(1)
    assert log.committed == 2
    with pytest.raises(WalRangeError, match="ends at 3"):
        log.commit(4)


def test_committed_segments_go_after_the_retention_but_never_the_newest() -> None:
    """Trimmed is what is wholly committed and old enough; after a restart the time begins anew."""
    now_s = 0.0
    disk = SimulatedDisk()
    log = open_log(disk, WalLimits(retention_s=10), lambda: now_s)
    for number in range(4):
        now_s = number
        log.append([block(number)])
    log.commit(3)
    assert log.first == 0
    now_s = 11.5
    log.commit(3)
    assert (log.first, numbers_on(disk)) == (2, [2, 3])
    now_s = 100
    log.commit(3)
    assert numbers_on(disk) == [3]
    log.commit(4)
    assert (numbers_on(disk), log.first, log.end) == ([3], 3, 4), "the newest tells the end"
    with pytest.raises(WalRangeError, match="3 to 4, not 2 to 4"):
        log.segments(2, 4)
    with pytest.raises(WalRangeError, match="not 3 to 5"):
        log.segments(3, 5)


def test_a_trimmed_segment_is_named_as_such(tmp_path: Path) -> None:
    """Reading a trimmed segment raises WalRangeError."""
    with Wal.open(tmp_path, limits=WalLimits(retention_s=0)) as log:
        log.append([block(1)])
        log.append([block(2)])
        ref = log.segments(0, 1)[0]
        log.commit(1)
        with pytest.raises(WalRangeError, match="trimmed"):
            list(read_segment(ref, 0, 1))


@pytest.mark.parametrize("there", [False, True])
def test_who_does_not_see_the_log_is_told_so(tmp_path: Path, there: bool) -> None:
    """A machine without the log's folder gets an error that says so."""
    with Wal.open(tmp_path / "log") as log:
        log.append([block(1)])
        (ref,) = log.segments(0, 1)
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    if there:
        (tmp_path / "log").mkdir()
    with pytest.raises(WalError, match=r"does not see the log in .*/log: walPath must") as caught:
        list(read_segment(ref, 0, 1))
    # A batch read with failOnDataLoss=false passes over this one.
    assert not isinstance(caught.value, WalRangeError)


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "renamed", "foreign"])
def test_a_damaged_newest_segment_is_an_error_that_says_what_to_do(
    how: str, tmp_path: Path
) -> None:
    """A damaged segment is never skipped, and none is removed."""
    with Wal.open(tmp_path) as log:
        log.append([block(1, 2)])
        log.append([block(3)])
        path = Path(log.segments(2, 3)[0].path)
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[:-20])
    elif how == "flipped":
        path.write_bytes(content[:-40] + bytes(20) + content[-20:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "renamed":
        path.rename(path.with_name(path.name.replace("3.arrow", "4.arrow")))
    else:
        with Wal.open(tmp_path / "other") as other:
            other.append([block(1, 2)])
            other.append([block(3)])
            path.write_bytes(Path(other.segments(2, 3)[0].path).read_bytes())
    before = sorted(entry.name for entry in tmp_path.iterdir())
    with pytest.raises(WalDamagedError, match="Nothing was changed") as caught:
        Wal.open(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert before == sorted(entry.name for entry in tmp_path.iterdir())
    with pytest.raises(WalDamagedError):
        Wal.open(tmp_path)


def test_an_older_damaged_segment_is_an_error_for_who_reads_it(tmp_path: Path) -> None:
    """Truncated, or full of zeros: WalDamagedError rather than an exception of Arrow."""
    path = tmp_path / "00000000000000000000-00000000000000000001.arrow"
    for content in (b"", b"ARROW1", bytes(500)):
        path.write_bytes(content)
        with pytest.raises(WalDamagedError):
            list(read_segment(SegmentRef(str(path), 0, 1), 0, 1))


@pytest.mark.parametrize(("first", "text"), [(1, "lacks the segments of 2 to 3"), (0, "of 0 to 2")])
def test_a_missing_segment_is_an_error(first: int, text: str) -> None:
    """A segment in the middle, or the oldest uncommitted one, must not be missing."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for numbers in ((1, 2), (3,), (4,)):
        log.append([block(*numbers)])
    name = sorted(name for name in disk.files() if name.endswith(".arrow"))[first]
    disk.unlink(name)
    with pytest.raises(WalDamagedError, match=text):
        open_log(disk)


def test_without_its_small_files_a_log_is_refused_or_starts_at_what_it_has() -> None:
    """META.json is required; without COMMITTED.json nothing counts as committed."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for number in range(3):
        log.append([block(number)])
        log.commit(number)
    disk.write_file("COMMITTED.json", b"{")
    with pytest.raises(WalDamagedError, match=r"COMMITTED\.json is damaged .* remove it"):
        open_log(disk)
    disk.unlink("COMMITTED.json")
    assert open_log(disk).committed == log.first > 0
    disk.unlink("META.json")
    with pytest.raises(WalDamagedError, match=r"without META\.json"):
        open_log(disk)


def test_a_newer_format_is_refused() -> None:
    """The error has the version that this program supports."""
    disk = SimulatedDisk()
    open_log(disk)
    disk.write_file("META.json", json.dumps({"version": 2, "id": "x"}).encode())
    with pytest.raises(WalError, match=r"version 2 .* up to 1: use a newer one"):
        open_log(disk)


def test_a_segment_of_a_newer_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who opens the log and by who reads the segment; it is not called damaged."""
    with Wal.open(tmp_path) as log, monkeypatch.context() as patch:
        patch.setattr("pipelines.wal.segments.FORMAT_VERSION", 2)
        log.append([block(1)])
        (ref,) = log.segments(0, 1)
    text = r"arrow has version 2 .* up to 1: use a newer one"
    for read in (partial(Wal.open, tmp_path), lambda: list(read_segment(ref, 0, 1))):
        with pytest.raises(WalError, match=text) as caught:
            read()
        assert not isinstance(caught.value, WalDamagedError)


def test_the_first_format_stays_readable() -> None:
    """A segment and META.json of version 1 remain readable."""
    folder = Path(__file__).parent / "data" / "version1"
    disk = SimulatedDisk.load(folder)
    log = open_log(disk)
    assert (log.id, log.first, log.end, log.committed) == ("c0ffee" * 5 + "00", 5, 8, 5)
    assert numbers_on(disk) == [5, 6, 7]
    ref = log.segments(5, 8)[0]
    real = SegmentRef(str(folder / Path(ref.path).name), 5, 8)
    assert sum(batch.num_rows for batch in read_segment(real, 6, 8)) == 2


def change_streams(path: Path, streams: list[list[object]]) -> None:
    """Write a segment's file again, with these streams in its header."""
    with pa.ipc.open_file(path) as reader:
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        [(key, header)] = reader.schema.metadata.items()
    changed = json.loads(header) | {"streams": streams}
    schema = reader.schema.with_metadata({key: json.dumps(changed).encode()})
    with pa.ipc.new_file(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


@pytest.mark.parametrize(
    "streams",
    [
        [["t", "c", "n:1", 2], ["t", "c", "n:2", 2]],
        [["t", "c", "n:1", 1], ["t", "c", "n:2", 1]],
        [["t", "c", "n:1", 3]],
        [["t", "c", "n:1", 1], ["t", "c", "n:2", 1], ["t", "c", "n:3", 1]],
    ],
)
def test_a_header_that_does_not_fit_its_segment_is_damage(
    streams: list[list[object]], tmp_path: Path
) -> None:
    """Too many or too few messages or streams, each alone as well as both."""
    with Wal.open(tmp_path) as log:
        log.append([block(1, 2, nsqd="n:1"), block(3, nsqd="n:2")])
        (ref,) = log.segments(0, 3)
    change_streams(Path(ref.path), streams)
    for read in (partial(Wal.open, tmp_path), lambda: list(read_segment(ref, 0, 3))):
        with pytest.raises(WalDamagedError, match="do not add up"):
            read()


def test_a_stream_of_the_newest_segment_has_as_many_messages_as_its_header_says(
    tmp_path: Path,
) -> None:
    """Counts that are wrong by stream and right in sum are damage: messages would get the topic of
    another stream."""
    with Wal.open(tmp_path) as log:
        log.append([block(1, 2, topic="t"), block(3, topic="u")])
        (ref,) = log.segments(0, 3)
    change_streams(Path(ref.path), [["t", "c", "n:1", 1], ["u", "c", "n:1", 2]])
    with pytest.raises(WalDamagedError, match="2 messages instead of 1"):
        Wal.open(tmp_path)


@pytest.mark.parametrize("schema", [ARROW_SCHEMA, pa.schema([("x", pa.int8())])])
def test_a_file_of_another_program_is_damage(schema: pa.Schema, tmp_path: Path) -> None:
    """Whatever its columns are, without our header it is no segment."""
    path = tmp_path / "00000000000000000000-00000000000000000001.arrow"
    with Wal.open(tmp_path):
        pass
    with pa.ipc.new_file(path, schema):
        pass
    ref = SegmentRef(str(path), 0, 1)
    for read in (partial(Wal.open, tmp_path), lambda: list(read_segment(ref, 0, 1))):
        with pytest.raises(WalDamagedError, match="no header"):
            read()


def test_others_may_read_a_log_and_not_write_it(tmp_path: Path) -> None:
    """Executors may run as another user: each file can be read by all, and run by none."""
    with Wal.open(tmp_path) as log:
        log.append([block(1)])
        log.commit(1)
        for name in ("META.json", "COMMITTED.json", Path(log.segments(0, 1)[0].path).name):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o644, name
