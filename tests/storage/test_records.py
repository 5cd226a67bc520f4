"""Records of disk queue files (trionsq.storage.records), compared with plain ones."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from struct import pack, unpack_from

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.subscription import Delivery
from trionsq.storage.records import (
    RECORD_OVERHEAD_BYTES,
    EncodedRecords,
    RecordBatch,
    RecordBlock,
    encode,
    parse,
)
from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies, StridedBodies
from trionsq.wire.frames import message_frame

GOLDEN = Path(__file__).parent.parent / "golden" / "data" / "diskqueue"
BODY_MAX = 5000
NS = 1_795_263_063_880_871_234


@dataclass(frozen=True)
class Message:
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


# The plain reading of the format.


def plain_record(message: Message) -> bytes:
    length = 26 + len(message.body)
    fields = pack(">iqH", length, message.timestamp_ns, message.attempts)
    return fields + message.id + message.body


@dataclass
class Plain:
    """What data means, one record at a time; `ends` begins with 0."""

    messages: list[Message]
    ends: list[int]
    needed: int = 0
    corrupt: bool = False


def plain_parse(data: bytes, body_max: int) -> Plain:
    plain = Plain([], [0])
    while plain.ends[-1] < len(data):
        at = plain.ends[-1]
        if len(data) - at < 4:
            plain.needed = 4
            break
        (length,) = unpack_from(">i", data, at)
        if length < 26 or length > body_max + 26:
            plain.corrupt = True
            break
        if len(data) - at < 4 + length:
            plain.needed = 4 + length
            break
        stamp, attempts = unpack_from(">qH", data, at + 4)
        end = at + 4 + length
        plain.messages.append(
            Message(stamp, attempts, data[at + 14 : at + 30], data[at + 30 : end])
        )
        plain.ends.append(end)
    return plain


# What the codec made, brought to the same terms.


def messages_of(block: RecordBlock) -> list[Message]:
    batch = block.batch
    if batch is None:
        return []
    attempts = [tries for first, last, tries in block.runs for _ in range(first, last)]
    if batch.stamps is None:
        stamps = [batch.timestamp_ns] * batch.count
    else:
        cut = batch.stamps.slice(0, batch.count)
        stamps = [int.from_bytes(stamp, "big", signed=True) for stamp in cut]
    ids, bodies = batch.ids.slice(0, batch.count), batch.bodies.slice(0, batch.count)
    return [Message(*fields) for fields in zip(stamps, attempts, ids, bodies, strict=True)]


def check_parse(data: bytes, body_max: int = BODY_MAX) -> RecordBlock:
    """Parse, and compare everything with the plain reading."""
    plain, block = plain_parse(data, body_max), parse(data, body_max)
    assert messages_of(block) == plain.messages
    assert (block.needed, block.corrupt) == (plain.needed, plain.corrupt)
    assert (block.count, block.size) == (len(plain.messages), plain.ends[-1])
    assert [block.end(index) for index in range(block.count + 1)] == plain.ends
    assert (block.batch is None) == (not plain.messages)
    # Runs are whole: one begins only where the attempts change.
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in pairwise(block.runs))
    if block.batch is not None:
        assert block.batch.timestamp_ns == plain.messages[0].timestamp_ns
        assert block.batch.bodies.nbytes == sum(len(message.body) for message in plain.messages)
    return block


def bodies_of(messages: list[Message]) -> Bodies:
    """In the form in which they would come from a socket."""
    bodies = [message.body for message in messages]
    sizes = [len(body) for body in bodies]
    joined = b"".join(b"gap" + body for body in bodies)
    if len(bodies) == 1:
        return ListBodies(bodies)
    if sizes[0] and len(set(sizes)) == 1:
        return StridedBodies(joined, 3, sizes[0])
    return PackedBodies(joined, list(accumulate((3 + size for size in sizes), initial=0)), 3)


def batch_of(messages: list[Message], stamped: bool) -> MessageBatch:
    """A batch as of a publish; with ``stamped`` each message has its own timestamp."""
    first_ns = messages[0].timestamp_ns
    ids = ListColumn([message.id for message in messages])
    stamps = [pack(">q", message.timestamp_ns) for message in messages]
    return MessageBatch(
        bodies_of(messages), ids, first_ns, stamps=ListColumn(stamps) if stamped else None
    )


def encoded_in_runs(block: RecordBlock) -> bytes:
    assert block.batch is not None
    parts = [encode(Segment(block.batch, *run)).data for run in block.runs]
    return b"".join(parts)


def make(random: Random, sizes: list[int], attempts: list[int], stamps: list[int]) -> list[Message]:
    """A message for each size; attempts and stamps are used in turn."""
    return [
        Message(
            stamps[index % len(stamps)],
            attempts[index % len(attempts)],
            random.randbytes(16),
            random.randbytes(size),
        )
        for index, size in enumerate(sizes)
    ]


some_sizes = (
    st.integers(0, BODY_MAX) | st.integers(0, 3) | st.sampled_from([4069, 4070, 4095, 4096])
)
sizes_lists = st.one_of(
    st.builds(lambda size, count: [size] * count, some_sizes, st.integers(1, 30)),
    st.lists(some_sizes, min_size=1, max_size=20),
    st.builds(
        lambda size, count, others: [size] * count + others,
        some_sizes,
        st.integers(1, 20),
        st.lists(some_sizes, min_size=1, max_size=4),
    ),
    # Sizes that differ only in one byte of the length, or only now and then.
    st.lists(st.sampled_from([230, 230 + 256, 231]), min_size=1, max_size=20),
)
some_stamps = st.integers(-(2**63), 2**63 - 1) | st.integers(NS, NS + 2)
some_attempts = st.integers(0, 65535) | st.sampled_from([0, 1, 256, 257])
message_lists = st.builds(
    make,
    st.builds(Random, st.integers(0, 2**32)),
    sizes_lists,
    st.lists(some_attempts, min_size=1, max_size=4),
    st.lists(some_stamps, min_size=1, max_size=4),
)


@given(message_lists, st.booleans(), st.integers(0, 200_000), st.data())
@settings(deadline=None)
def test_encoding_agrees_with_records_made_one_by_one(
    messages: list[Message], stamped: bool, attempts: int, data: st.DataObject
) -> None:
    """For any part of any batch; the attempts are the segment's, modulo 2**16."""
    first = data.draw(st.integers(0, len(messages) - 1))
    last = data.draw(st.integers(first + 1, len(messages)))
    records = encode(Segment(batch_of(messages, stamped), first, last, attempts))
    expected = [
        plain_record(
            Message(
                message.timestamp_ns if stamped else messages[0].timestamp_ns,
                attempts % 2**16,
                message.id,
                message.body,
            )
        )
        for message in messages[first:last]
    ]
    check_records(records, expected)


def check_records(records: EncodedRecords, expected: list[bytes]) -> None:
    """Bytes, figures, `end` at each record and `fit` around each end."""
    assert records.data == b"".join(expected)
    assert (records.count, records.size) == (len(expected), len(records.data))
    ends = list(accumulate(map(len, expected), initial=0))
    assert [records.end(count) for count in range(len(ends))] == ends
    for count, end in enumerate(ends):
        assert records.count_within(end) == count
        assert records.count_within(end - 1) == max(count - 1, 0)
    assert records.count_within(-5) == 0
    assert records.count_within(2**40) == len(expected)


@given(message_lists, st.data())
@settings(deadline=None)
def test_parsing_agrees_with_a_walk_wherever_the_data_ends(
    messages: list[Message], data: st.DataObject
) -> None:
    """Cut at any byte: the whole records, and how much the next one needs."""
    whole = b"".join(map(plain_record, messages))
    check_parse(whole)
    check_parse(whole[: data.draw(st.integers(0, len(whole)))])


@given(message_lists, st.sampled_from([-(2**31), -1, 0, 25, BODY_MAX + 27, 2**31 - 1]), st.data())
@settings(deadline=None)
def test_a_length_out_of_range_ends_the_records(
    messages: list[Message], length: int, data: st.DataObject
) -> None:
    """Wherever it stands, and whether or not its record would be whole."""
    at = data.draw(st.integers(0, len(messages)))
    before = b"".join(map(plain_record, messages[:at]))
    behind = b"".join(map(plain_record, messages[at:])) + bytes(40)
    damaged = before + pack(">i", length) + behind[4:]
    block = check_parse(damaged)
    assert block.corrupt
    assert (block.count, block.size, block.needed) == (at, len(before), 0)


@pytest.mark.parametrize("bit", range(32))
def test_one_bit_of_a_length_is_enough_to_see(bit: int) -> None:
    """Equal records of which one has a damaged length are not taken for equal ones."""
    messages = make(Random(5), [200] * 5, [0], [NS])
    data = bytearray(b"".join(map(plain_record, messages)))
    data[3 * 230 + 3 - bit // 8] ^= 1 << bit % 8
    assert check_parse(bytes(data)).end(3) == 3 * 230


@pytest.mark.parametrize("bit", range(80))
def test_one_bit_of_a_timestamp_or_of_the_attempts_is_not_lost(bit: int) -> None:
    """Fields that are almost equal are not taken for equal ones."""
    messages = make(Random(6), [200] * 5, [0], [NS])
    data = bytearray(b"".join(map(plain_record, messages)))
    data[3 * 230 + 4 + bit // 8] ^= 1 << bit % 8
    assert encoded_in_runs(check_parse(bytes(data))) == bytes(data)


@pytest.mark.parametrize("sizes", [[50], [50, 50], [49, 50], [50, 49], [0, 50, 50]])
def test_bodies_of_just_the_limit_are_read(sizes: list[int]) -> None:
    """The limit belongs to the valid sizes, whatever the other records have."""
    messages = make(Random(7), sizes, [0], [NS])
    assert check_parse(b"".join(map(plain_record, messages)), 50).count == len(sizes)


@given(message_lists, st.integers(0, BODY_MAX))
@settings(deadline=None)
def test_a_lower_limit_makes_larger_records_corrupt(messages: list[Message], limit: int) -> None:
    """The records before the first one above the limit are still read."""
    block = check_parse(b"".join(map(plain_record, messages)), limit)
    assert block.corrupt == any(len(message.body) > limit for message in messages)


@given(st.binary(max_size=200), st.integers(0, 100))
@example(b"", 0)
@example(b"\x00\x00\x00\x1a", 0)
@example(b"\x80\x00\x00\x1a" + bytes(60), 100)
def test_any_bytes_are_read_as_a_walk_reads_them(data: bytes, limit: int) -> None:
    """Rubbish raises nothing."""
    check_parse(data, limit)


@given(st.lists(st.integers(26, 60), max_size=12), st.integers(0, 40), st.integers(0, 40))
def test_bodies_that_look_like_lengths_deceive_nobody(
    lengths: list[int], size: int, cut: int
) -> None:
    """Equal sizes are seen in the length fields only, at the places where records begin."""
    body = (pack(">i", 26 + size) * 20)[: size or 1]
    records = [pack(">i", length) + (body * 60)[:length] for length in [26 + size, *lengths]]
    check_parse(b"".join(records) + body[:cut], 100)


def test_records_of_equal_size_stay_in_one_object() -> None:
    """Data of equal records is not walked, and is not copied if it holds nothing else."""
    messages = make(Random(1), [200] * 50, [0], [NS])
    data = b"".join(map(plain_record, messages))
    for there in (data, data + data[:100]):
        block = check_parse(there)
        assert block.batch is not None
        assert isinstance(block.batch.bodies, StridedBodies)
        assert block.batch.stamps is None, "equal timestamps need no column"
        assert block.runs == [(0, 50, 0)]
        assert block.batch.raw(0, 50) == data
    assert parse(data, BODY_MAX).batch.raw(0, 50) is data  # type: ignore[union-attr]


def test_equal_records_before_others_are_all_read() -> None:
    """One odd record behind many equal ones does not end the block."""
    messages = make(Random(2), [200] * 50 + [199] + [200] * 3, [3], [NS])
    assert check_parse(b"".join(map(plain_record, messages))).count == 54


@pytest.mark.parametrize("count", [1, 2, 7])
def test_records_without_bodies_are_read(count: int) -> None:
    """The least record is valid, although no command publishes an empty body."""
    messages = make(Random(3), [0] * count, [0, 1], [NS])
    block = check_parse(b"".join(map(plain_record, messages)), 0)
    assert block.batch is not None
    assert block.count == count
    assert isinstance(block.batch.bodies, PackedBodies), "a stride needs bodies"


@given(message_lists)
@settings(deadline=None)
def test_what_was_read_is_written_back_byte_for_byte(messages: list[Message]) -> None:
    """Run by run, as the records are handed on with the attempts they had."""
    data = b"".join(map(plain_record, messages))
    assert encoded_in_runs(check_parse(data)) == data


@given(message_lists, st.integers(0, 70_000), st.data())
@settings(deadline=None)
def test_raw_records_equal_encoded_ones(
    messages: list[Message], attempts: int, data: st.DataObject
) -> None:
    """Any part of a batch from disk, whether its bytes can be taken as they stand or not."""
    batch = parse(b"".join(map(plain_record, messages)), BODY_MAX).batch
    assert batch is not None
    first = data.draw(st.integers(0, len(messages) - 1))
    last = data.draw(st.integers(first + 1, len(messages)))
    part = messages[first:last]
    assert batch.raw(first, last) == b"".join(map(plain_record, part))
    for tries in (attempts, messages[first].attempts, messages[first].attempts + 2**16):
        from_disk = encode(Segment(batch, first, last, tries))
        plain = encode(Segment(batch_of(messages, stamped=True), first, last, tries))
        assert from_disk.data == plain.data
        check_records(from_disk, [plain_record_with(message, tries % 2**16) for message in part])


def plain_record_with(message: Message, attempts: int) -> bytes:
    return plain_record(Message(message.timestamp_ns, attempts, message.id, message.body))


def test_records_not_attempted_since_are_not_made_anew() -> None:
    """A batch that passes from one disk queue to another whole is the same bytes object."""
    data = b"".join(map(plain_record, make(Random(4), [5, 6], [2], [NS, NS + 1])))
    batch = parse(data, BODY_MAX).batch
    assert batch is not None
    assert encode(Segment(batch, 0, 2, 2)).data is data
    assert encode(Segment(batch, 0, 2, 3)).data is not data


@given(message_lists, st.integers(0, 70_000), st.data())
@settings(deadline=None)
def test_frames_are_those_of_messages_that_were_never_on_disk(
    messages: list[Message], attempts: int, data: st.DataObject
) -> None:
    """A consumer cannot tell where a message was."""
    batch = parse(b"".join(map(plain_record, messages)), BODY_MAX).batch
    assert batch is not None
    first = data.draw(st.integers(0, len(messages) - 1))
    last = data.draw(st.integers(first + 1, len(messages)))
    frames = Delivery(Segment(batch, first, last, attempts), 0.0, 1.0).frames()
    plain = batch_of(messages, stamped=True)
    assert frames == Delivery(Segment(plain, first, last, attempts), 0.0, 1.0).frames()
    assert frames == b"".join(
        message_frame(message.timestamp_ns, (attempts + 1) % 2**16, message.id, message.body)
        for message in messages[first:last]
    )


def reachable(root: object) -> list[object]:
    """The objects that ``root`` keeps alive, classes and what they hold aside."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in found and not isinstance(thing, type):
            found[id(thing)] = thing
            waiting += gc.get_referents(thing)
    return list(found.values())


@given(message_lists, st.data())
@settings(deadline=None, max_examples=30)
def test_extracted_messages_pin_nothing_of_the_block(
    messages: list[Message], data: st.DataObject
) -> None:
    """They are copies in a plain batch, with their own timestamps."""
    buffer = b"".join(map(plain_record, messages))
    batch = parse(buffer, BODY_MAX).batch
    assert batch is not None
    indexes = data.draw(
        st.lists(st.integers(0, len(messages) - 1), min_size=1, max_size=5, unique=True)
    )
    chosen = [messages[index] for index in indexes]
    extract = batch.extract(indexes, [message.id for message in chosen])
    assert type(extract) is MessageBatch
    kept = reachable(extract)
    assert not any(thing is buffer or isinstance(thing, RecordBatch) for thing in kept)
    assert sum(len(thing) for thing in kept if isinstance(thing, bytes)) <= sum(
        RECORD_OVERHEAD_BYTES + len(message.body) for message in chosen
    )
    again = encode(Segment(extract, 0, len(chosen), 9)).data
    assert again == b"".join(plain_record_with(message, 9) for message in chosen)


# The folders that were recorded from nsqd itself.


def golden_queues() -> list[tuple[str, str]]:
    return [
        (path.parent.name, queue)
        for path in sorted(GOLDEN.glob("*/expected.json"))
        for queue in json.loads(path.read_text())["queues"]
    ]


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("*/data/*.diskqueue.[0-9]*.dat*"))


@pytest.mark.parametrize(("folder", "queue"), golden_queues())
def test_recorded_queues_are_read(folder: str, queue: str) -> None:
    """The unread records of all files of a queue, in order, are the messages that it holds."""
    expected = json.loads((GOLDEN / folder / "expected.json").read_text())["queues"][queue]
    depth, read, written = expected["meta"].split()
    number, position = map(int, read.split(","))
    messages: list[Message] = []
    for file in range(number, int(written.split(",")[0]) + 1):
        path = GOLDEN / folder / "data" / f"{queue}.diskqueue.{file:06}.dat"
        if path.exists():
            data = path.read_bytes()[position if file == number else 0 :]
            messages += messages_of(check_parse(data, 2**20))
    assert len(messages) >= int(depth), "a meta file may lag behind, never be ahead"
    assert messages[: expected["depth"]] == [
        Message(
            message["timestamp"],
            message["attempts"],
            message["id"].encode(),
            message["body"].encode("latin-1"),
        )
        for message in expected["messages"]
    ]


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_recorded_files_are_written_back_byte_for_byte(path: Path) -> None:
    """As far as they hold whole records."""
    data = path.read_bytes()
    block = check_parse(data, 2**20)
    assert block.count
    assert encoded_in_runs(block) == data[: block.size]
    messages = messages_of(block)
    made = [
        encode(Segment(batch_of(messages, stamped=True), first, last, attempts)).data
        for first, last, attempts in block.runs
    ]
    assert b"".join(made) == data[: block.size]


def test_there_are_recorded_files() -> None:
    """The tests above have something to read."""
    assert len(golden_queues()) >= 8
    assert len(golden_files()) >= 15
