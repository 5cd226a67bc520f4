"""Commands with a key (trionsq.wire.keyed)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire import commands
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import (
    Event,
    PublishMany,
    PublishManyBegins,
    PublishOnce,
)
from trionsq.wire.keyed import accept_keys
from trionsq.wire.lines import CommandLimits
from trionsq.wire.server import ServerParser
from trionsq.wire.states import MAGIC_V2

LIMITS = CommandLimits(max_msg_size=20, max_body_size=100)
KEYS = [b"", b"k", b"key-2"]
bodies = st.lists(st.sampled_from([b"a", b"bb", b"cc", b"PUB t\n"]), min_size=1, max_size=3)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[bytes, object]]:
    """Commands with and without a key, and what each publishes."""
    found: list[tuple[bytes, object]] = []
    for kind, key, many in draw(
        st.lists(st.tuples(st.sampled_from("PMDN"), st.sampled_from(KEYS), bodies), max_size=8)
    ):
        if kind == "P":
            found.append((commands.publish("t", many[0], key), ("PUB", key, 0, many[:1])))
        elif kind == "M":
            found.append((commands.publish_many("t", many, key), ("MPUB", key, 0, many)))
        elif kind == "D":
            data = commands.publish_deferred("t", 7, many[0], key)
            found.append((data, ("DPUB", key, 7, many[:1])))
        else:
            found.append((commands.nop(), None))
    return found


def events_of(data: list[bytes], *, keyed: bool) -> list[Event]:
    """The events of a parser that gets the data read by read."""
    parser = ServerParser(LIMITS)
    accept_keys(parser, keyed)
    events: list[Event] = []
    for piece in [MAGIC_V2, *data]:
        parser.receive(piece)
        while (event := parser.next_event()) is not None:
            events.append(event)
    assert not parser.buffered
    return events


def published(events: list[Event]) -> list[object]:
    """What the events publish, command by command."""
    found: list[object] = []
    for event in events:
        if isinstance(event, PublishManyBegins):
            continue
        messages = [event.bodies.body_at(at) for at in range(event.bodies.count)]  # type: ignore[union-attr]
        match type(event).__name__:
            case "Publish":
                found += [("PUB", b"", 0, [body]) for body in messages]
            case "PublishMany":
                found.append(("MPUB", b"", 0, messages))
            case "PublishDeferred":
                found.append(("DPUB", b"", event.delay_ms, messages))  # type: ignore[union-attr]
            case _:
                assert isinstance(event, PublishOnce)
                found.append((event.command, event.key, event.delay_ms, messages))
    return found


@given(streams(), st.lists(st.integers(0, 1000), max_size=8))
def test_each_command_has_its_key(stream: list[tuple[bytes, object]], cuts: list[int]) -> None:
    """However the reads cut them, and whatever stands beside them."""
    data = b"".join(command for command, _ in stream)
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    expected = [what for _, what in stream if what is not None]
    assert published(events_of(pieces, keyed=True)) == expected


@given(streams())
def test_without_asking_a_key_is_a_surplus_parameter(stream: list[tuple[bytes, object]]) -> None:
    """The events are those of the commands without it."""
    events = events_of([command for command, _ in stream], keyed=False)
    assert not any(isinstance(event, PublishOnce) for event in events)
    expected = [(it[0], b"", *it[2:]) for _, it in stream if isinstance(it, tuple)]
    assert published(events) == expected


def test_the_body_of_an_mpub_that_comes_later_is_announced() -> None:
    """As without a key: nsqd makes the topic before the body has come."""
    data = commands.publish_many("t", [b"a"], b"k")
    events = events_of([data[:12], data[12:]], keyed=True)
    assert isinstance(events[0], PublishManyBegins)
    assert published(events) == [("MPUB", b"k", 0, [b"a"])]
    plain = commands.publish_many("t", [b"a"])
    assert isinstance(events_of([data, plain], keyed=True)[-1], PublishMany)


@pytest.mark.parametrize("key", [b"a b", b'"', b"\\", b"\x7f", b"k" * 65, "é".encode(), b"\n"])
def test_an_invalid_key_is_never_sent(key: bytes) -> None:
    """By no command; nsqd would close the connection."""
    with pytest.raises(ValueError, match="key"):
        commands.publish("t", b"x", key)
    with pytest.raises(ValueError, match="key"):
        commands.publish_many("t", [b"x"], key)
    with pytest.raises(ValueError, match="key"):
        commands.publish_deferred("t", 0, b"x", key)


def test_where_tls_is_required_it_is_required_first() -> None:
    """A key makes no way around it."""
    parser = ServerParser(LIMITS, tls_required=True)
    accept_keys(parser, True)
    parser.receive(MAGIC_V2 + commands.publish("t", b"x", b"k"))
    with pytest.raises(ProtocolError, match="TLS required"):
        parser.next_event()
