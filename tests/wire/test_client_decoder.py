"""What a client reads (trionsq.wire.client)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire import frames
from trionsq.wire.client import (
    ClientDecoder,
    ErrorFrame,
    Frame,
    FrameError,
    MessageFrame,
    Response,
)
from trionsq.wire.errors import ProtocolError

CODES = st.sampled_from(["E_INVALID", "E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"])
MESSAGE_IDS = st.from_regex(rb"[0-9a-f]{16}", fullmatch=True)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Response, st.binary(max_size=40)),
    st.builds(
        lambda code, text: ErrorFrame(code, text, code == "E_INVALID"),
        CODES,
        st.binary(max_size=40),
    ),
    st.builds(
        MessageFrame,
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**16 - 1),
        MESSAGE_IDS,
        st.binary(max_size=40),
    ),
)
NONSENSE = [
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n", "HTTP port", id="http"),
    pytest.param(struct.pack(">i", -1), "frame size -1", id="negative size"),
    pytest.param(struct.pack(">i", 3), "frame size 3", id="size without a type"),
    pytest.param(struct.pack(">i", 1001), "frame size 1001", id="size over the bound"),
    pytest.param(struct.pack(">ii", 900, 3), "unknown frame type 3", id="unknown type"),
    pytest.param(struct.pack(">ii", 29, 2), "too short", id="message without an id"),
]


def encode(frame: Frame) -> bytes:
    """Encode with the server's functions what the client is to read."""
    match frame:
        case Response(data):
            return frames.response(data)
        case ErrorFrame(code, text, fatal):
            return frames.error(ProtocolError(code, text, fatal))
        case MessageFrame(timestamp_ns, attempts, message_id, body):
            return frames.message_frame(timestamp_ns, attempts, message_id, body)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    """Cut `data` at each of `points`, which are taken modulo its length."""
    at = sorted({point % (len(data) + 1) for point in points})
    return [data[i:j] for i, j in zip([0, *at], [*at, len(data)], strict=True)]


@given(st.lists(FRAMES))
def test_reads_what_the_server_writes(sent: list[Frame]) -> None:
    """All frames of one read come as one batch, equal to what was sent and in order."""
    decoder = ClientDecoder()
    decoder.feed(b"".join(map(encode, sent)))
    assert decoder.pop_frames() == sent
    assert decoder.pop_frames() == []
    assert decoder.pending == 0


@given(st.lists(FRAMES), st.lists(st.integers(min_value=0)))
def test_fragmentation_makes_no_difference(sent: list[Frame], points: list[int]) -> None:
    """However the bytes are cut, the same frames come out."""
    decoder = ClientDecoder()
    received: list[Frame] = []
    for data in cut(b"".join(map(encode, sent)), points):
        decoder.feed(data)
        received += decoder
    assert received == sent
    assert decoder.pending == 0


@given(st.lists(FRAMES, min_size=1, max_size=5))
def test_frames_come_with_their_last_byte(sent: list[Frame]) -> None:
    """Fed byte by byte, each frame is there as soon as its last byte is, and not before."""
    decoder = ClientDecoder()
    for frame in sent:
        data = encode(frame)
        for i in range(len(data) - 1):
            decoder.feed(data[i : i + 1])
            assert decoder.pop_frames() == []
            assert decoder.pending == i + 1
        decoder.feed(data[-1:])
        assert decoder.pop_frames() == [frame]


@pytest.mark.parametrize(("nonsense", "text"), NONSENSE)
@given(sent=st.lists(FRAMES, max_size=3), points=st.lists(st.integers(min_value=0)))
def test_nonsense_raises_after_the_good_frames(
    nonsense: bytes, text: str, sent: list[Frame], points: list[int]
) -> None:
    """Good frames before nonsense are still handed over, then FrameError comes, and stays."""
    decoder = ClientDecoder(max_frame_bytes=1000)
    for data in cut(b"".join(map(encode, sent)) + nonsense, points):
        decoder.feed(data)
    decoder.feed(frames.OK)
    assert [next(decoder) for _ in sent] == sent
    for _ in range(2):
        with pytest.raises(FrameError, match=text):
            next(decoder)
        with pytest.raises(FrameError, match=text):
            decoder.pop_frames()


def test_bad_size_is_seen_before_the_frame_is_collected() -> None:
    """A size over the bound fails with its fourth byte: no memory is given to the frame."""
    decoder = ClientDecoder(max_frame_bytes=1000)
    decoder.feed(struct.pack(">i", 1001))
    assert decoder.pending == 0
    with pytest.raises(FrameError):
        decoder.pop_frames()


def test_largest_frame_passes() -> None:
    """A frame of exactly the bound is accepted."""
    decoder = ClientDecoder(max_frame_bytes=1000)
    decoder.feed(frames.response(b"x" * 996))
    assert decoder.pop_frames() == [Response(b"x" * 996)]


def test_heartbeat_is_recognised() -> None:
    """The heartbeat is told apart from responses to commands."""
    decoder = ClientDecoder()
    decoder.feed(frames.HEARTBEAT + frames.OK)
    found = [frame.is_heartbeat for frame in decoder if isinstance(frame, Response)]
    assert found == [True, False]


def test_error_without_a_text() -> None:
    """E_BAD_PROTOCOL comes without space and text, and is fatal."""
    decoder = ClientDecoder()
    decoder.feed(frames.error(ProtocolError("E_BAD_PROTOCOL")))
    assert decoder.pop_frames() == [ErrorFrame("E_BAD_PROTOCOL", b"", True)]


def test_error_frame_becomes_an_exception() -> None:
    """An error frame can be raised as the error that the server had."""
    error = ErrorFrame("E_FIN_FAILED", b"FIN x failed", False).as_error()
    assert (error.code, error.text, error.fatal) == ("E_FIN_FAILED", b"FIN x failed", False)


def test_iteration_can_stop_and_go_on() -> None:
    """Leaving the loop early loses no frame."""
    decoder = ClientDecoder()
    decoder.feed(frames.OK + frames.HEARTBEAT + frames.CLOSE_WAIT)
    for _frame in decoder:
        break
    assert decoder.pop_frames() == [Response(b"_heartbeat_"), Response(b"CLOSE_WAIT")]


def test_repr_shows_the_state() -> None:
    """repr tells frames waiting, bytes pending, or why the decoder failed."""
    decoder = ClientDecoder()
    decoder.feed(frames.OK + b"\0")
    assert repr(decoder) == "<ClientDecoder frames=1 pending=1>"
    decoder.feed(b"\0\0\0")
    assert repr(decoder).startswith("<ClientDecoder frames=1 failed='frame size 0")
