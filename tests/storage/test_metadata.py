"""nsqd.dat: what either nsqd wrote, the other one reads."""

import errno
import json
import stat
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.disk import Disk, RealDisk
from trionsq.storage.metadata import (
    METADATA_FILE,
    ChannelRecord,
    MetadataError,
    TopicRecord,
    load_metadata,
    remove_drafts,
    save_metadata,
)
from trionsq.testing.disk import Crashed, SimulatedDisk

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("data/diskqueue/*/data/nsqd.dat"))


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


def with_file(data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.write_file(METADATA_FILE, data)
    return disk


def load(text: str) -> list[TopicRecord]:
    return load_metadata(with_file(text.encode()))


def test_what_was_saved_is_loaded(disk: Disk) -> None:
    """Topics, channels, their order and what is paused; no file is no topics."""
    topics = [
        TopicRecord("b", True, (ChannelRecord("y", True), ChannelRecord("x"))),
        TopicRecord("a"),
    ]
    assert load_metadata(disk) == []
    save_metadata(disk, [])
    assert load_metadata(disk) == []
    save_metadata(disk, topics)
    assert load_metadata(disk) == topics
    assert disk.names() == [METADATA_FILE]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parts[-3])
def test_recorded_files_are_written_again_to_the_byte(path: Path) -> None:
    """A file of the original is the same after our nsqd has loaded and saved it."""
    disk = with_file(path.read_bytes())
    save_metadata(disk, load_metadata(disk))
    assert disk.files() == {METADATA_FILE: path.read_bytes()}


def test_recorded_files_are_there() -> None:
    """The test above has something to look at."""
    assert GOLDEN


def test_the_text_is_that_of_the_original(tmp_path: Path) -> None:
    """Compact, null where a list is empty, readable by the owner only, ephemeral left out."""
    disk = RealDisk(tmp_path)
    save_metadata(disk, [])
    assert (tmp_path / METADATA_FILE).read_text() == '{"topics":null,"version":"1.3.0"}'
    hidden = ChannelRecord("c#ephemeral")
    save_metadata(
        disk,
        [
            TopicRecord("e#ephemeral", False, (ChannelRecord("x"),)),
            TopicRecord("ok", False, (hidden, ChannelRecord("good", True))),
            TopicRecord("none", True, (hidden,)),
        ],
    )
    assert (tmp_path / METADATA_FILE).read_text() == (
        '{"topics":[{"name":"ok","paused":false,"channels":[{"name":"good","paused":true}]},'
        '{"name":"none","paused":true,"channels":null}],"version":"1.3.0"}'
    )
    assert stat.S_IMODE((tmp_path / METADATA_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text", ["null", "{}", '{"topics":null}', ' \n{"topics":[]}\n', '{"version":null,"x":[1]}']
)
def test_nothing_in_it_is_no_topics(text: str) -> None:
    """null and what is missing are the same, as the original reads them."""
    assert load(text) == []


def test_null_and_missing_values_are_false_and_empty() -> None:
    """A name is all that an entry needs; unknown keys are ignored, keys are found in any case."""
    assert load('{"topics":[{"name":"a","paused":null,"channels":null},{"name":"b","x":1}]}') == [
        TopicRecord("a"),
        TopicRecord("b"),
    ]
    assert load('{"Topics":[{"NAME":"a","Paused":true,"channels":[{"Name":"c"}]}]}') == [
        TopicRecord("a", True, (ChannelRecord("c"),))
    ]


def test_entries_that_repeat_a_name_are_joined() -> None:
    """The first gives the place, all give channels, any can pause, none can unpause."""
    text = """{"topics":[
        {"name":"a","paused":true,"channels":[{"name":"c","paused":true},{"name":"c"}]},
        {"name":"b"},
        {"name":"a","channels":[{"name":"d"},{"name":"c"}]}]}"""
    channels = (ChannelRecord("c", True), ChannelRecord("d"))
    assert load(text) == [TopicRecord("a", True, channels), TopicRecord("b")]


def test_ephemeral_entries_are_loaded() -> None:
    """A file that names them, by hand, is taken at its word, as the original does."""
    text = '{"topics":[{"name":"e#ephemeral","channels":[{"name":"c#ephemeral"}]}]}'
    assert load(text) == [TopicRecord("e#ephemeral", False, (ChannelRecord("c#ephemeral"),))]


def test_invalid_names_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The texts are the original's; the channels of an invalid topic go with it, silently."""
    text = r"""{"topics":[null, {"name":"a b","channels":[{"name":"x y"}]}, {"name":"z\ud800"},
        {"name":"n\n"}, {"name":"ok","channels":[{"name":"b@d"},null,{"name":"good"}]}]}"""
    assert load(text) == [TopicRecord("ok", False, (ChannelRecord("good"),))]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "skipping creation of invalid topic "),
        ("WARNING", "skipping creation of invalid topic a b"),
        ("WARNING", "skipping creation of invalid topic z\ufffd"),
        ("WARNING", "skipping creation of invalid topic n\\n"),
        ("WARNING", "skipping creation of invalid channel b@d"),
        ("WARNING", "skipping creation of invalid channel "),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unexpected end of JSON input"),
        ('{"topics":', "unexpected end of JSON input"),
        ("{bad", "Expecting property name"),
        ('{"topics":[]} x', "Extra data: line 1 column 15"),
        ('\ufeff{"topics":[]}', "BOM"),
        ('{"topics":[{"name":"ok","paused":NaN}]}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "metadata: expected an object, not an array"),
        ('"abc"', "metadata: expected an object, not a string"),
        ('{"topics":5}', "topics: expected an array, not a number"),
        ('{"topics":[5]}', "topic: expected an object, not a number"),
        ('{"topics":[{"name":5}]}', "name of a topic: expected a string, not a number"),
        ('{"topics":[{"name":"a","paused":"x"}]}', "paused of a topic: expected true or false"),
        ('{"topics":[{"name":"a b","channels":{}}]}', "channels: expected an array"),
        ('{"topics":[{"name":"a","channels":[true]}]}', "channel: expected an object"),
        ('{"topics":[{"name":"a","channels":[{"name":[]}]}]}', "name of a channel"),
    ],
)
def test_a_file_of_the_wrong_shape_is_fatal(text: str, reason: str) -> None:
    """The text begins like the original's; the file stays as it is."""
    disk = with_file(text.encode())
    with pytest.raises(MetadataError) as caught:
        load_metadata(disk)
    start = "failed to load metadata - failed to parse metadata in /simulated/nsqd.dat - "
    assert str(caught.value).startswith(start)
    assert reason in str(caught.value)
    assert disk.files() == {METADATA_FILE: text.encode()}


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
NAMES = st.sampled_from(["a", "b", "c#ephemeral", "a b", ""])
FLAGS = st.booleans() | st.none()


def often(likely: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The likely values, and sometimes anything."""
    return st.sampled_from([likely] * 9 + [ANY_JSON]).flatmap(lambda values: values)


CHANNELS = st.fixed_dictionaries({}, optional={"name": often(NAMES), "paused": often(FLAGS)})
TOPICS = st.fixed_dictionaries(
    {"name": often(NAMES)},
    optional={
        "paused": often(FLAGS),
        "channels": often(st.none() | st.lists(often(CHANNELS), max_size=3)),
    },
)
DOCUMENTS = st.fixed_dictionaries({"topics": often(st.lists(often(TOPICS), max_size=3))})


def test_any_content_is_loaded_or_refused() -> None:
    """No bytes cause any other error than MetadataError, and what is loaded has the topics with
    valid names, in their order."""
    outcomes: Counter[str] = Counter()

    @given(st.binary() | DOCUMENTS.map(lambda value: json.dumps(value).encode()))
    def load_or_refuse(data: bytes) -> None:
        try:
            topics = load_metadata(with_file(data))
        except MetadataError:
            outcomes["refused"] += 1
            return
        outcomes["loaded" if topics else "empty"] += 1
        entries = (json.loads(data) or {}).get("topics") or []
        names = [entry.get("name") for entry in entries if entry]
        assert [topic.name for topic in topics] == [
            name for name in dict.fromkeys(names) if name in ("a", "b", "c#ephemeral")
        ]

    load_or_refuse()
    assert min(outcomes[kind] for kind in ("refused", "empty", "loaded")) > 5, outcomes


def test_a_file_that_cannot_be_read_is_fatal(tmp_path: Path) -> None:
    """Not having read it is never taken for an empty one."""
    (tmp_path / METADATA_FILE).mkdir()
    with pytest.raises(MetadataError) as caught:
        load_metadata(RealDisk(tmp_path))
    path = tmp_path / METADATA_FILE
    assert str(caught.value) == (
        f"failed to load metadata - failed to read metadata from {path} - "
        f"open {path}: is a directory"
    )
    disk = with_file(b"{}")
    disk.fail(errno.EIO, only={"read"})
    with pytest.raises(MetadataError, match="input/output error"):
        load_metadata(disk)
    assert disk.faults["read"] == 1
    assert disk.open_files == 0


def test_a_crash_leaves_the_old_or_the_new_topics() -> None:
    """At whatever operation of saving the power fails, and only drafts are left behind."""
    old, new = [TopicRecord("old")], [TopicRecord("new")]
    save_metadata(counted := SimulatedDisk(), new)
    for seed in range(10):
        for at in range(1, counted.operations + 1):
            disk = SimulatedDisk(random=Random(seed))
            save_metadata(disk, old)
            disk.crash_at(at)
            with pytest.raises(Crashed):
                save_metadata(disk, new)
            for after in (disk.after_kill(), disk.after_power_loss()):
                assert load_metadata(after) in (old, new)
                remove_drafts(after)
                assert after.names() == [METADATA_FILE]


def test_only_drafts_are_removed() -> None:
    """Drafts of the files that are written anew go; whatever else looks like one stays."""
    drafts = [
        "nsqd.dat.123.tmp",
        "t.diskqueue.meta.dat.1.tmp",
        "t:c.diskqueue.meta.dat.987654321.tmp",
        "t#ephemeral:c#ephemeral.diskqueue.meta.dat.5.tmp",
        "trionsq.dat.77.tmp",
        "t.diskqueue.deferred.dat.8.tmp",
        "t.diskqueue.000000.dat.1.tmp",
        "t:c.diskqueue.deferred.dat.9.tmp",
    ]
    others = [
        "nsqd.dat",
        "nsqd.dat.tmp",
        "nsqd.dat.x1.tmp",
        "nsqd.dat.-1.tmp",
        "nsqd.dat.1.tmp.bak",
        "xnsqd.dat.1.tmp",
        "nsqdxdat.1.tmp",
        "nsqd.dat.\u0661.tmp",
        "my file.diskqueue.meta.dat.1.tmp",
        "t.diskqueue.meta.dat",
        "t.diskqueue.000000.dat",
        "xtrionsq.dat.1.tmp",
        "t.diskqueue.deferred.dat.1.bad",
        "nsqd.dat.1.tmp.diskqueue.meta.dat",
        "notes.1.tmp",
    ]
    disk = SimulatedDisk()
    for name in drafts + others:
        disk.write_file(name, b"")
    remove_drafts(disk)
    assert set(disk.names()) == set(others)


def test_a_draft_that_stays_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """One that can't be removed keeps neither the others nor the broker."""
    disk = SimulatedDisk()
    for number in range(3):
        disk.write_file(f"nsqd.dat.{number}.tmp", b"")
    disk.fail(errno.EIO, only={"unlink"})
    remove_drafts(disk)
    assert disk.faults["unlink"] == 1
    assert len(disk.names()) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_many_topics_are_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of the encoder is given more than one topic or channel: it holds up all threads. The
    text is the same as that of one call, however many topics or channels there are."""
    channels = tuple(ChannelRecord(f"channel_{number}", number % 2 == 0) for number in range(9_000))
    topics = [TopicRecord(f"topic_{number}") for number in range(5_000)]
    topics.append(TopicRecord("large", True, channels))
    expected = {
        "topics": [
            {
                "name": topic.name,
                "paused": topic.paused,
                "channels": [{"name": one.name, "paused": one.paused} for one in topic.channels]
                or None,
            }
            for topic in topics
        ],
        "version": "1.3.0",
    }
    longest = 0
    dumps = json.dumps

    def noting(value: object, **options: Any) -> str:
        nonlocal longest
        text = dumps(value, **options)
        longest = max(longest, len(text))
        return text

    disk = SimulatedDisk(logged=True)
    monkeypatch.setattr(json, "dumps", noting)
    save_metadata(disk, topics)
    assert disk.files()[METADATA_FILE].decode() == dumps(expected, separators=(",", ":"))
    assert longest < 200
    assert [operation for operation, _ in disk.log].count("write") > 5
