"""Frames that nsqd writes (trionsq.wire.frames)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError

MESSAGE_ID = b"0123456789abcdef"


def test_ready_made_frames_have_the_recorded_bytes() -> None:
    """OK, CLOSE_WAIT and the heartbeat are the bytes that nsqd v1.3.0 sent."""
    assert [frames.OK.hex(), frames.CLOSE_WAIT.hex(), frames.HEARTBEAT.hex()] == [
        "00000006000000004f4b",
        "0000000e00000000434c4f53455f57414954",
        "0000000f000000005f6865617274626561745f",
    ]


@given(st.binary())
def test_size_counts_type_and_data(data: bytes) -> None:
    """A response frame is the size of type and data, the type 0, and the data."""
    size = (len(data) + 4).to_bytes(4, "big")
    assert frames.response(data) == size + b"\0\0\0\0" + data


@pytest.mark.parametrize(
    ("refusal", "data"),
    [
        (ProtocolError("E_BAD_PROTOCOL"), b"E_BAD_PROTOCOL"),
        (ProtocolError("E_INVALID", b"bad \xe9"), b"E_INVALID bad \xe9"),
        (ProtocolError("E_INVALID", "invalid command "), b"E_INVALID invalid command "),
        (ProtocolError("E_PUB_FAILED"), b"E_PUB_FAILED "),
    ],
)
def test_error_frame_is_code_space_text(refusal: ProtocolError, data: bytes) -> None:
    """Code and text are parted by a space, which only E_BAD_PROTOCOL goes without."""
    size = (len(data) + 4).to_bytes(4, "big")
    assert frames.error(refusal) == size + b"\0\0\0\1" + data


def test_message_frame_has_the_layout_of_the_protocol() -> None:
    """A message frame is timestamp, attempts, id and body, big endian, behind the type 2."""
    expected = (
        b"\0\0\0\x22" + b"\0\0\0\2" + b"\x01\x02\x03\x04\x05\x06\x07\x08" + b"\0\x05"
    ) + b"0123456789abcdefbody"
    assert frames.message_frame(0x0102030405060708, 5, MESSAGE_ID, b"body") == expected


def test_attempts_wrap_at_16_bits() -> None:
    """The 65536th delivery is shown as attempt 0, since the field has 16 bits."""
    wrapped = frames.message_frame(1, 65_536, MESSAGE_ID, b"b")
    assert wrapped == frames.message_frame(1, 0, MESSAGE_ID, b"b")


@pytest.mark.parametrize("message_id", [b"", b"short", MESSAGE_ID + b"0"])
def test_message_id_of_another_length_is_refused(message_id: bytes) -> None:
    """An id that is not 16 bytes long never gets into a frame."""
    with pytest.raises(ValueError, match="16 bytes"):
        frames.message_frame(1, 1, message_id, b"b")
