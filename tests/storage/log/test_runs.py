"""Reading a log without a channel (trionsq.storage.log.runs), and its tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.log.test_reading import RECORDS, Written
from tests.storage.log.test_retention import Served
from trionsq.core.batch import Segment
from trionsq.http.loglines import Frames, slice_end
from trionsq.storage.log import seeking
from trionsq.storage.log.peek import LogPart
from trionsq.storage.log.ranges import Gaps
from trionsq.storage.log.reading import Place
from trionsq.storage.log.runs import LostRange, durable_end, read_run
from trionsq.storage.log.segmentfile import sequences_of
from trionsq.storage.log.tokens import ForeignTokenError, ReadToken, check_token, token_at
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.logstream import LogMessages, LogStreamDecoder


def gaps_of(log: Written, emptied: list[tuple[int, int]]) -> Gaps:
    """The sequences that nobody had, and those that were emptied."""
    gaps = Gaps((at, at + 1) for at in range(log.end) if at not in log.bodies)
    for first, count in emptied:
        gaps.add(first, min(first + count, log.end))
    return gaps


@given(
    records=RECORDS,
    segment_bytes=st.sampled_from([400, 2_000, 1 << 20]),
    max_bytes=st.sampled_from([1, 200, 1_000]),
    emptied=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=3),
    is_started=st.booleans(),
    keeps_place=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_a_range_is_read_whole(
    records: list[tuple[int, list[int]]],
    segment_bytes: int,
    max_bytes: int,
    emptied: list[tuple[int, int]],
    is_started: bool,
    keeps_place: bool,
    data: st.DataObject,
) -> None:
    """From wherever to wherever, in blocks of any size: each message that is in no gap once, in
    order, and nothing is said to be lost. No index is made for it."""
    log = Written(records, segment_bytes)
    if is_started:
        log.forget_indexes()
    gaps = gaps_of(log, emptied)
    part = LogPart(log.disk, log.segments, log.end, gaps)
    first = data.draw(st.integers(0, log.end))
    end = data.draw(st.integers(first, log.end))
    found: list[tuple[int, bytes]] = []
    place: Place | None = None
    at = first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeking, "_WALK_BYTES", 300)
        while at < end:
            run = read_run(part, at, end, max_bytes, place)
            assert at < run.next <= end
            for one in run.parts:
                assert isinstance(one, Segment)
                bodies = one.batch.bodies.slice(one.first, one.last)
                found += zip(sequences_of(one.batch)[one.first : one.last], bodies, strict=True)
            at, place = run.next, run.place if keeps_place else None
    wanted = [at for at in sorted(log.bodies) if first <= at < end and gaps.end_at(at) is None]
    assert found == [(at, log.bodies[at]) for at in wanted]
    assert not is_started or all(segment.index is None for segment in log.segments)


@given(
    records=RECORDS,
    segment_bytes=st.sampled_from([400, 2_000, 1 << 20]),
    max_bytes=st.sampled_from([1, 200, 1_000]),
    is_started=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_what_is_damaged_is_named(
    records: list[tuple[int, list[int]]],
    segment_bytes: int,
    max_bytes: int,
    is_started: bool,
    data: st.DataObject,
) -> None:
    """Wherever a byte has changed: what does not come is named, in its place, and nothing comes
    that was not there."""
    log = Written(records, segment_bytes)
    if is_started:
        log.forget_indexes()
    assert isinstance(log.disk, SimulatedDisk)
    hit = data.draw(st.sampled_from(log.segments))
    content = bytearray(log.disk.files()[hit.name])
    where = data.draw(st.integers(128, len(content) - 1)) if len(content) > 128 else 0
    content[where] ^= 1
    log.disk.write_file(hit.name, bytes(content))
    gaps = gaps_of(log, [])
    part = LogPart(log.disk, log.segments, log.end, gaps)
    named: list[int] = []
    at, place = 0, None
    while at < log.end:
        run = read_run(part, at, log.end, max_bytes, place)
        assert run.next > at
        for one in run.parts:
            if isinstance(one, LostRange):
                named += range(one.first, one.end)
                continue
            sequences = sequences_of(one.batch)[one.first : one.last]
            named += sequences
            bodies = one.batch.bodies.slice(one.first, one.last)
            assert list(bodies) == [log.bodies[sequence] for sequence in sequences]
        at, place = run.next, run.place
    assert named == sorted(log.bodies)


TOKENS = st.builds(
    ReadToken,
    st.integers(0, 10**18),
    st.integers(0, 10**18),
    st.none() | st.tuples(st.integers(0, 10**18), st.integers(0, 2**32 - 1)),
)


@given(token=TOKENS)
def test_a_token_comes_back_as_it_was(token: ReadToken) -> None:
    """And has no other spelling."""
    text = str(token)
    assert ReadToken.parse(text) == token
    for other in (f"{text} ", f"0{text}", text[:-1], text.upper() + "G", text.replace(".", ":")):
        try:
            assert str(ReadToken.parse(other)) == other
        except ValueError:
            continue
        assert other != text


@given(text=st.text("0123456789abcdef.\n\u0663", max_size=30))
@settings(max_examples=50)
def test_no_other_text_is_a_token(text: str) -> None:
    """What is taken for one is written so."""
    try:
        token = ReadToken.parse(text)
    except ValueError:
        return
    assert str(token) == text


def test_a_token_names_its_log() -> None:
    """Each place of a log, also behind what retention removes; none of a log that only looks so."""
    here, other = Served(), Served()
    empty = token_at(here.log, 0)
    for served in (here, other):
        for number in range(40):
            served.publish(b"%0100d" % number)
    assert len(here.log.segments) > 3
    assert here.log.number == other.log.number
    tokens = [token_at(here.log, at) for at in range(41)]
    for token in (empty, *tokens):
        check_token(here.log, token)
    for token in tokens:
        with pytest.raises(ForeignTokenError):
            check_token(other.log, token)
    with pytest.raises(ForeignTokenError):
        check_token(here.log, ReadToken(here.log.number, 41, tokens[-1].segment))
    with pytest.raises(ForeignTokenError):
        check_token(here.log, ReadToken(here.log.number + 1, 3, tokens[3].segment))
    # A backup was restored, and has gone on by itself.
    newest, at = other.log.segments[-1], other.log.segments[-1].first
    other.log.segments[:-1] = here.log.segments[:-1]
    other.log.segments[-1] = replace(newest, header=replace(newest.header, salt=1))
    check_token(other.log, tokens[at])
    with pytest.raises(ForeignTokenError):
        check_token(other.log, tokens[at + 1])
    here.finish()
    for _ in range(4):
        here.tick()
    assert here.log.first > 10
    for token in tokens:
        check_token(here.log, token)


def test_durable_is_what_was_synced() -> None:
    """With `interval`: up to the first message that no fsync has reached; a refusal is no end."""
    served = Served()
    served.log.durability = "interval"
    served.publish(b"one", b"two")
    assert (served.log.safe_end, durable_end(served.log)) == (2, 0)
    served.log.sync()
    served.turn()
    assert durable_end(served.log) == 2
    served.publish(b"three")
    assert durable_end(served.log) == 2
    served.log.durability = "always"
    assert durable_end(served.log) == 3
    served.log.durability = "interval"
    served.log.sync()
    served.turn()
    # All that a log ever got was refused.
    refused = Served().log
    refused.gaps.add(0, 5)
    refused.safe_end = refused.end = 5
    assert durable_end(refused) == 5


@given(
    records=RECORDS,
    deferred=st.sets(st.integers(0, 11)),
    cuts=st.lists(st.integers(0, 5_000), max_size=6),
    slices=st.integers(1, 5),
)
@settings(deadline=None, max_examples=40)
def test_frames_come_back_in_any_pieces(
    records: list[tuple[int, list[int]]], deferred: set[int], cuts: list[int], slices: int
) -> None:
    """Sequences, delays, ids, times and bodies are those of the log, however the bytes are cut."""
    log = Written(records, 1 << 20)
    run = read_run(LogPart(log.disk, log.segments, log.end, gaps_of(log, [])), 0, log.end, 1 << 20)
    form, data, wanted = Frames(), b"", []
    for place, part in enumerate(run.parts):
        assert isinstance(part, Segment)
        part.batch.defer_ms = 5_000 if place in deferred else 0
        for first in range(part.first, part.last, slices):
            one = Segment(part.batch, first, min(part.last, first + slices))
            data += form.messages(one)
            for at in range(one.first, one.last):
                stamp = int.from_bytes(part.batch.stamp(at), signed=True)
                sequence, id_ = sequences_of(part.batch)[at], part.batch.ids.slice(at, at + 1)[0]
                body = part.batch.bodies.body_at(at)
                wanted.append((sequence, part.batch.defer_ms, stamp, id_, body))
        data += form.note({"note": "next", "next": str(place)})
    decoder = LogStreamDecoder()
    found: list[Any] = []
    notes: list[str] = []
    ends = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for begin, end in pairwise(ends):
        for event in decoder.feed(data[begin:end]):
            if isinstance(event, LogMessages):
                rows = zip(event.columns.timestamps_ns, event.columns.ids, event.columns.bodies,
                           strict=True)  # fmt: skip
                found += [
                    (event.sequence + at, event.defer_ms, *row) for at, row in enumerate(rows)
                ]
            elif event.kind == "next":
                notes.append(event.fields["next"])
    assert found == wanted
    assert notes == [str(place) for place in range(len(run.parts))]


@given(
    sizes=st.lists(st.sampled_from([0, 1, 200, 5_000, 60_000, 200_000]), min_size=1, max_size=60)
)
def test_a_step_encodes_little(sizes: list[int]) -> None:
    """At most 512 messages and 128 KiB, or one message; and all are encoded."""
    bodies: Any = SimpleNamespace(
        nbytes=sum(sizes),
        count=len(sizes),
        size=0,
        slice=lambda first, last: [bytes(size) for size in sizes[first:last]],
    )
    segment = Segment(SimpleNamespace(bodies=bodies), 0, len(sizes))  # type: ignore[arg-type]
    first = 0
    while first < len(sizes):
        end = slice_end(segment, first)
        assert first < end <= len(sizes)
        assert end == first + 1 or sum(sizes[first:end]) <= 128 * 1024
        first = end
