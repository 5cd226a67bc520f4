"""What a consumer reads, in columns (trionsq.wire.client)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.test_client_decoder import FRAMES, MESSAGE_IDS, NONSENSE, cut, encode
from trionsq.wire.client import ColumnDecoder, Frame, FrameError, MessageFrame
from trionsq.wire.frames import message_frame

# Bodies of few sizes, so that runs of equal frames begin and end everywhere.
MESSAGES = st.builds(
    MessageFrame,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**16 - 1),
    MESSAGE_IDS,
    st.sampled_from([b"", b"a", b"bb", b"\x00\x00\x00\x1e\x00\x00\x00\x02"]),
)
LONG_RUNS = st.lists(
    st.tuples(MESSAGES, st.integers(1, 60)).map(lambda pair: [pair[0]] * pair[1]), max_size=6
).map(lambda runs: [frame for run in runs for frame in run])


def decoded(frames: list[Frame], points: list[int]) -> tuple[list[Frame], list[Frame]]:
    """All messages, then all other frames: as they were sent, and by columns."""
    columns = ColumnDecoder()
    messages: list[Frame] = []
    others: list[Frame] = []
    for piece in cut(b"".join(map(encode, frames)), points):
        columns.feed(piece)
        messages += map(MessageFrame, *columns.pop_columns())
        others += columns
    assert columns.pending == 0
    return sorted(frames, key=lambda frame: not isinstance(frame, MessageFrame)), messages + others


@given(st.lists(st.one_of(FRAMES, MESSAGES)), st.lists(st.integers(0, 4000)))
def test_columns_hold_all_that_was_sent(frames: list[Frame], points: list[int]) -> None:
    """In any fragmentation, whatever the frames are."""
    expected, found = decoded(frames, points)
    assert found == expected


@given(LONG_RUNS, st.lists(st.integers(0, 9000), max_size=3))
def test_long_runs_are_the_same(frames: list[Frame], points: list[int]) -> None:
    """Runs of equal sizes, which are decoded together."""
    expected, found = decoded(frames, points)
    assert found == expected


@pytest.mark.parametrize(("nonsense", "reason"), NONSENSE)
@given(frames=LONG_RUNS)
def test_nonsense_is_refused_after_the_good_messages(
    nonsense: bytes, reason: str, frames: list[Frame]
) -> None:
    """What came before it is not lost."""
    decoder = ColumnDecoder(max_frame_bytes=1000)
    decoder.feed(b"".join(map(encode, frames)) + nonsense)
    assert list(map(MessageFrame, *decoder.pop_columns())) == frames
    with pytest.raises(FrameError, match=reason):
        next(decoder)


def test_small_reads_of_a_large_frame_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is not whole is decoded when its size is known, and when it is whole."""
    tries, plain = 0, ColumnDecoder._decode

    def decode(self: ColumnDecoder, data: bytes) -> None:
        nonlocal tries
        tries += 1
        plain(self, data)

    monkeypatch.setattr(ColumnDecoder, "_decode", decode)
    decoder = ColumnDecoder()
    frame = message_frame(1, 1, b"a" * 16, bytes(10_000))
    for at in range(0, len(frame), 10):
        decoder.feed(frame[at : at + 10])
    assert decoder.pop_columns().bodies == [bytes(10_000)]
    assert tries <= 3
