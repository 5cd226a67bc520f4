"""Messages as plain records, made and read one by one, for tests of records in bulk."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from struct import pack, unpack_from

from hypothesis import strategies as st

from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.storage.records import (
    EncodedRecords,
    RecordBlock,
    encode,
    parse,
)
from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies, StridedBodies

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
