"""The body of MPUB (trionsq.wire.mpub), also as HTTP has it."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trionsq.wire import mpub
from trionsq.wire.bodies import Bodies, StridedBodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.mpub import MpubScan, parse_counted, same_size_prefix

MSG_MAX, BODY_MAX = 50, 1000


def records(bodies: list[bytes]) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


def counted(bodies: list[bytes]) -> bytes:
    return pack(">i", len(bodies)) + records(bodies)


def parsed(body: bytes) -> Bodies:
    """The result of `parse_counted`."""
    steps = parse_counted(body, MSG_MAX, BODY_MAX)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            bodies: Bodies = end.value
            return bodies


def listed(bodies: Bodies) -> list[bytes]:
    return list(bodies.slice(0, bodies.count))


runs = st.one_of(
    st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=30),
    st.builds(lambda body, count: [body] * count, st.binary(min_size=1, max_size=50),
              st.integers(1, 40)),
    st.builds(lambda count, odd: [b"equal"] * count + [odd], st.integers(1, 30),
              st.binary(min_size=1, max_size=12)),
)  # fmt: skip


@given(runs, st.integers(1, BODY_MAX), st.binary(max_size=9), st.data())
@settings(deadline=None)
def test_the_counted_messages_are_the_body(
    run: list[bytes], stated: int, behind: bytes, data: st.DataObject
) -> None:
    """In any fragmentation, wherever the body stands, whatever size was stated for it."""
    body = pack(">i", stated) + counted(run)
    whole = b"junk" + body + behind
    scan = MpubScan(MSG_MAX, BODY_MAX)
    there = 4
    while (bodies := scan.scan(whole[:there], 4)) is None:
        assert there < 4 + len(body)
        assert scan.need > there - 4
        there = data.draw(st.integers(there + 1, len(whole)))
    assert listed(bodies) == run
    assert scan.end == len(body)


def test_equal_sizes_stay_in_one_object() -> None:
    """A whole body of equal messages is not cut."""
    scan = MpubScan(MSG_MAX, BODY_MAX)
    body = counted([b"abc", b"def", b"ghi"])
    assert isinstance(scan.scan(pack(">i", len(body)) + body, 0), StridedBodies)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_same_size_prefix_looks_at_every_byte_of_the_sizes(sizes: list[int]) -> None:
    """Sizes are equal if all four bytes of all of them are, however the bodies look."""
    buffer = b"x" + records([pack(">i", sizes[0]).ljust(size, b"\0")[:size] for size in sizes])
    stride = 4 + sizes[0]
    count = (len(buffer) - 1) // stride
    plain = all(
        buffer[1 + index * stride : 5 + index * stride] == pack(">i", sizes[0])
        for index in range(count)
    )
    assert same_size_prefix(buffer, 1, count) == plain


@given(runs, st.binary(max_size=5))
def test_http_bodies_have_no_body_size(run: list[bytes], behind: bytes) -> None:
    """`parse_counted` begins with the count, and ignores what follows the last message."""
    assert listed(parsed(counted(run) + behind)) == run


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", "E_BAD_BODY", b"MPUB failed to read message count"),
        (pack(">i", 0), "E_BAD_BODY", b"MPUB invalid message count 0"),
        (pack(">i", 200), "E_BAD_BODY", b"MPUB invalid message count 200"),
        (pack(">i", 199), "E_BAD_MESSAGE", b"MPUB failed to read message(0) body size"),
        (pack(">ii", 1, 51), "E_BAD_MESSAGE", b"MPUB message too big 51 > 50"),
        (pack(">ii", 2, 1) + b"a", "E_BAD_MESSAGE", b"MPUB failed to read message(1) body size"),
        (pack(">ii", 1, 2) + b"a", "E_BAD_MESSAGE", b"MPUB failed to read message body"),
        (counted([b"a"] * 30)[:-5] + pack(">i", 0), "E_BAD_MESSAGE",
         b"MPUB invalid message(29) body size 0"),
    ],
)  # fmt: skip
def test_http_bodies_that_are_refused(body: bytes, code: str, text: bytes) -> None:
    """The faults have MPUB's codes and texts, also a body that is cut short."""
    with pytest.raises(ProtocolError) as caught:
        parsed(body)
    assert (caught.value.code, caught.value.text) == (code, text)


@given(runs, st.integers(1, 7))
@settings(deadline=None)
def test_a_step_walks_few_messages(run: list[bytes], step: int) -> None:
    """However many there are; the messages are the same."""
    scan = MpubScan(MSG_MAX, BODY_MAX)
    body = pack(">i", BODY_MAX) + counted(run)
    steps = 1
    while (bodies := scan.scan(body, 0, step)) is None:
        assert scan.need <= len(body)
        steps += 1
    assert listed(bodies) == run
    assert steps <= -(-len(run) // step) + 1


@pytest.mark.parametrize("stated", [2254, 5])
@pytest.mark.parametrize("step", [7, 100])
def test_small_reads_look_at_each_message_a_few_times(
    step: int, stated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever size is stated: the work of all reads grows with the body, not with its square."""
    looked = 0

    def counted_prefix(buffer: bytes | bytearray, start: int, count: int) -> bool:
        nonlocal looked
        looked += count
        return same_size_prefix(buffer, start, count)

    monkeypatch.setattr(mpub, "same_size_prefix", counted_prefix)
    run = [b"equal"] * 250
    whole = pack(">i", stated) + counted(run)
    scan = MpubScan(MSG_MAX, len(whole))
    for there in range(step, len(whole) + step, step):
        bodies = scan.scan(whole[:there], 0) if there >= scan.need else None
    assert bodies is not None
    assert listed(bodies) == run
    assert looked <= 2 * len(run)
