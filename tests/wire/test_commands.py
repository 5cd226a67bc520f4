"""Commands that a client writes (trionsq.wire.commands)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire import commands

MESSAGE_ID = b"0123456789abcdef"
NAMES = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)
BODIES = st.binary(min_size=1)
DELAYS_MS = st.integers(0, commands.MAX_DELAY_MS)


def split(command: bytes) -> tuple[list[bytes], bytes]:
    """Take a command apart as the protocol's text says: a line of words, and what follows."""
    line, _, rest = command.partition(b"\n")
    return line.split(b" "), rest


def sized(rest: bytes) -> bytes:
    """Return the body after a 4-byte size that must be right."""
    (size,) = struct.unpack_from(">i", rest)
    assert size == len(rest) - 4
    return rest[4:]


def test_commands_without_a_body_are_one_line() -> None:
    """Magic, SUB, RDY, FIN, REQ, TOUCH, NOP and CLS are the protocol's bytes."""
    assert commands.MAGIC_V2 == b"  V2"
    assert commands.subscribe("t", "c#ephemeral") == b"SUB t c#ephemeral\n"
    assert commands.ready(2500) == b"RDY 2500\n"
    assert commands.finish(MESSAGE_ID) == b"FIN 0123456789abcdef\n"
    assert commands.requeue(MESSAGE_ID, 0) == b"REQ 0123456789abcdef 0\n"
    assert commands.touch(MESSAGE_ID) == b"TOUCH 0123456789abcdef\n"
    assert commands.nop() == b"NOP\n"
    assert commands.close() == b"CLS\n"


@given(NAMES, BODIES)
def test_publish_carries_topic_and_body(topic: str, body: bytes) -> None:
    """What PUB carries is the topic and the body, whatever bytes that has."""
    words, rest = split(commands.publish(topic, body))
    assert (words, sized(rest)) == ([b"PUB", topic.encode()], body)


@given(NAMES, DELAYS_MS, BODIES)
def test_publish_deferred_carries_the_delay(topic: str, delay_ms: int, body: bytes) -> None:
    """DPUB has the delay in plain decimal milliseconds after the topic."""
    words, rest = split(commands.publish_deferred(topic, delay_ms, body))
    assert (words, sized(rest)) == ([b"DPUB", topic.encode(), b"%d" % delay_ms], body)


@given(NAMES, st.lists(BODIES, min_size=1))
def test_publish_many_carries_all_bodies_in_order(topic: str, bodies: list[bytes]) -> None:
    """MPUB has a count, then each body behind its size, and a size over all that."""
    words, rest = split(commands.publish_many(topic, bodies))
    assert words == [b"MPUB", topic.encode()]
    content = sized(rest)
    (count,) = struct.unpack_from(">i", content)
    position, found = 4, []
    while position < len(content):
        (size,) = struct.unpack_from(">i", content, position)
        found.append(content[position + 4 : position + 4 + size])
        position += 4 + size
    assert (count, found) == (len(bodies), bodies)


@given(
    st.dictionaries(
        st.text(),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_identify_carries_json(features: dict[str, object]) -> None:
    """The body of IDENTIFY is the mapping as JSON."""
    words, rest = split(commands.identify(features))
    assert (words, json.loads(sized(rest))) == ([b"IDENTIFY"], features)


def test_auth_carries_the_secret() -> None:
    """AUTH has the secret's bytes as body; text is UTF-8."""
    assert commands.auth("sé") == b"AUTH\n\0\0\0\3s\xc3\xa9"
    assert commands.auth(b"\xff") == b"AUTH\n\0\0\0\1\xff"


@pytest.mark.parametrize(
    "encode",
    [
        lambda: commands.subscribe("a b", "c"),
        lambda: commands.subscribe("t", ""),
        lambda: commands.subscribe("t", "c\n"),
        lambda: commands.publish("é", b"x"),
        lambda: commands.publish("\ud800", b"x"),
        lambda: commands.publish("t" * 65, b"x"),
        lambda: commands.publish("t", b""),
        lambda: commands.publish_deferred("#ephemeral", 1, b"x"),
        lambda: commands.publish_deferred("t", -1, b"x"),
        lambda: commands.publish_deferred("t", commands.MAX_DELAY_MS + 1, b"x"),
        lambda: commands.publish_deferred("t", 1, b""),
        lambda: commands.publish_many("t", []),
        lambda: commands.publish_many("t", [b"x", b""]),
        lambda: commands.publish_many("t\r", [b"x"]),
        lambda: commands.ready(-1),
        lambda: commands.finish(b"short"),
        lambda: commands.finish(b"0123456789abcde\n"),
        lambda: commands.finish(MESSAGE_ID + b"\n"),
        lambda: commands.touch(b"0123456789 abcde"),
        lambda: commands.requeue(b"0123456789 bcdef", 0),
        lambda: commands.requeue(MESSAGE_ID, -1),
        lambda: commands.requeue(MESSAGE_ID, commands.MAX_DELAY_MS + 1),
        lambda: commands.auth(""),
        lambda: commands.identify({"sample_rate": float("nan")}),
    ],
)
def test_what_nsqd_would_refuse_is_not_encoded(encode: Callable[[], bytes]) -> None:
    """A bad name, id, number or empty body raises ValueError and yields no bytes."""
    with pytest.raises(ValueError, match=r"."):
        encode()


def test_an_id_that_nsqd_read_from_a_damaged_file_can_be_answered() -> None:
    """Any 16 bytes that a command can carry are sent back, so that the message can be finished."""
    for message_id in (bytes(16), b"0123456789ABCDEF", b"1359\xb50b93a269006"):
        assert commands.finish(message_id) == b"FIN " + message_id + b"\n"
