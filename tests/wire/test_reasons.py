"""REQ with the reason of a dead letter: for clients that asked for it in IDENTIFY."""

from __future__ import annotations

import json

import pytest

from trionsq.wire import commands
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import Event, GiveUp, Requeue
from trionsq.wire.identify import ServerFeatures, answer, negotiate
from trionsq.wire.lines import CommandLimits
from trionsq.wire.server import ServerParser
from trionsq.wire.states import MAGIC_V2

ID = b"0123456789abcdef"


def event_of(line: bytes, *, asked: bool) -> Event | None:
    parser = ServerParser(CommandLimits())
    parser.dead_letters = asked
    parser.receive(MAGIC_V2 + commands.subscribe("t", "c") + line)
    parser.next_event()
    return parser.next_event()


@pytest.mark.parametrize("reason", ["no customer", "x" * 200, "ungültig", " a  b "])
def test_a_reason_makes_it_a_dead_letter(reason: str) -> None:
    """All that stands behind the delay is the reason; the delay is cut as ever."""
    line = commands.give_up(ID, 10**9, reason)
    assert event_of(line, asked=True) == GiveUp(ID, 3_600_000, reason)
    assert event_of(line, asked=False) == Requeue(ID, 3_600_000)
    assert event_of(commands.requeue(ID, 5), asked=True) == Requeue(ID, 5)


@pytest.mark.parametrize("reason", [b"", b"x" * 201, b"a\tb", b"a\x00"])
def test_a_bad_reason_is_refused(reason: bytes) -> None:
    """As other commands that cannot be understood; a client cannot send one by mistake."""
    line = b"REQ %b 0 %b\n" % (ID, reason)
    with pytest.raises(ProtocolError, match="E_INVALID REQ reason"):
        event_of(line, asked=True)
    assert event_of(line, asked=False) == Requeue(ID, 0)
    with pytest.raises(ValueError, match="reason must be"):
        commands.give_up(ID, 0, reason.decode())


def test_only_those_who_ask_see_it() -> None:
    """IDENTIFY answers with the key if the client sent it, and can negotiate."""
    features = ServerFeatures()
    for body, has_it in (
        ({"feature_negotiation": True, "dead_letters": True}, True),
        ({"feature_negotiation": True, "dead_letters": False}, False),
        ({"feature_negotiation": True}, False),
        ({"dead_letters": True}, False),
    ):
        found = negotiate(json.dumps(body).encode(), features)
        assert found.dead_letters is has_it
        assert (b"dead_letters" in answer(found, features)) is has_it
