"""Messages from a disk queue: written back unchanged, delivered, extracted; recorded files."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.record_samples import (
    BODY_MAX,
    GOLDEN,
    NS,
    Message,
    batch_of,
    check_parse,
    check_records,
    encoded_in_runs,
    make,
    message_lists,
    messages_of,
    plain_record,
)
from trionsq.core.batch import MessageBatch, Segment
from trionsq.core.subscription import Delivery
from trionsq.storage.records import (
    RECORD_OVERHEAD_BYTES,
    RecordBatch,
    encode,
    parse,
)
from trionsq.wire.frames import message_frame


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
