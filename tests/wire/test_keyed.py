"""Commands with a key (trionsq.wire.keyed)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.reference import Command, one_by_one
from trionsq.wire import commands
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import (
    Event,
    PublishMany,
    PublishManyBegins,
)
from trionsq.wire.lines import CommandLimits
from trionsq.wire.server import ServerParser
from trionsq.wire.states import MAGIC_V2

LIMITS = CommandLimits(max_msg_size=20, max_body_size=100)
KEYS = [b"", b"k", b"key-2"]
bodies = st.lists(st.sampled_from([b"a", b"bb", b"cc", b"PUB t\n"]), min_size=1, max_size=3)


# Commands, and what each is with and without having asked.
Stream = list[tuple[bytes, Command | None, Command | None]]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Commands with and without a key, and what each is with and without having asked."""
    found: Stream = []
    for kind, key, epoch, many in draw(
        st.lists(
            st.tuples(
                st.sampled_from(["PUB", "MPUB", "DPUB", "NOP"]),
                st.sampled_from(KEYS),
                st.sampled_from([b"", b"epoch"]),
                bodies,
            ),
            max_size=8,
        )
    ):
        epoch = epoch if key else b""
        if kind == "NOP":
            found.append((commands.nop(), None, None))
            continue
        if kind == "MPUB":
            data = commands.publish_many("t", many, key, epoch)
            plain: Command = ("MPUB", "t", *many)
        elif kind == "DPUB":
            data = commands.publish_deferred("t", 7, many[0], key, epoch)
            plain, many = ("DPUB", "t", 7, many[0]), many[:1]
        else:
            data = commands.publish("t", many[0], key, epoch)
            plain, many = ("PUB", "t", many[0]), many[:1]
        once = (f"{kind} once", "t", key, epoch, 7 if kind == "DPUB" else 0, *many)
        found.append((data, once if key else plain, plain))
    return found


def events_of(data: list[bytes], *, keyed: bool) -> list[Event]:
    """The events of a parser that gets the data read by read."""
    parser = ServerParser(LIMITS)
    parser.accepts_keys = keyed
    events: list[Event] = []
    for piece in [MAGIC_V2, *data]:
        parser.receive(piece)
        while (event := parser.next_event()) is not None:
            events.append(event)
    assert not parser.buffered
    return events


def published(events: list[Event]) -> list[Command]:
    """What the events publish, command by command."""
    commands = [command for event in events for command in one_by_one(event)]
    return [command for command in commands if command[0] != "MPUB line"]


@given(streams(), st.lists(st.integers(0, 1000), max_size=8))
def test_each_command_has_its_key(stream: Stream, cuts: list[int]) -> None:
    """However the reads cut them, and whatever stands beside them."""
    data = b"".join(command for command, _, _ in stream)
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    expected = [what for _, what, _ in stream if what is not None]
    assert published(events_of(pieces, keyed=True)) == expected


@given(streams())
def test_without_asking_a_key_is_a_surplus_parameter(
    stream: Stream,
) -> None:
    """The events are those of the commands without it."""
    events = events_of([command for command, _, _ in stream], keyed=False)
    assert published(events) == [plain for _, _, plain in stream if plain is not None]


def test_the_body_of_an_mpub_that_comes_later_is_announced() -> None:
    """As without a key: nsqd makes the topic before the body has come."""
    data = commands.publish_many("t", [b"a"], b"k")
    events = events_of([data[:12], data[12:]], keyed=True)
    assert isinstance(events[0], PublishManyBegins)
    assert published(events) == [("MPUB once", "t", b"k", b"", 0, b"a")]
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
    parser.accepts_keys = True
    parser.receive(MAGIC_V2 + commands.publish("t", b"x", b"k"))
    with pytest.raises(ProtocolError, match="TLS required"):
        parser.next_event()
