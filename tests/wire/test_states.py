"""The state table of a connection (trionsq.wire.states)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trionsq.wire.states import COMMANDS, TRANSITIONS, ConnectionState, document, mermaid

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol-states.md"
INIT, SUBSCRIBED, CLOSING = (
    ConnectionState.INIT,
    ConnectionState.SUBSCRIBED,
    ConnectionState.CLOSING,
)

ALLOWED_IN = {
    b"IDENTIFY": {INIT},
    b"AUTH": {INIT},
    b"SUB": {INIT},
    b"RDY": {SUBSCRIBED, CLOSING},
    b"FIN": {SUBSCRIBED, CLOSING},
    b"REQ": {SUBSCRIBED, CLOSING},
    b"TOUCH": {SUBSCRIBED, CLOSING},
    b"CLS": {SUBSCRIBED},
    b"PUB": {INIT, SUBSCRIBED, CLOSING},
    b"MPUB": {INIT, SUBSCRIBED, CLOSING},
    b"DPUB": {INIT, SUBSCRIBED, CLOSING},
    b"NOP": {INIT, SUBSCRIBED, CLOSING},
}


def test_commands_are_those_of_the_protocol() -> None:
    """The table knows the protocol's twelve commands and no other."""
    assert set(ALLOWED_IN) == COMMANDS


@pytest.mark.parametrize("command", sorted(ALLOWED_IN))
def test_command_is_allowed_in_its_states_only(command: bytes) -> None:
    """Each command has a transition exactly in the states that the protocol allows it in."""
    assert {state for state in ConnectionState if (state, command) in TRANSITIONS} == ALLOWED_IN[
        command
    ]


def test_only_sub_and_cls_change_the_state() -> None:
    """SUB leads from init to subscribed, CLS from there to closing; all else stays."""
    changes = {key: after for key, after in TRANSITIONS.items() if key[0] != after}
    assert changes == {(INIT, b"SUB"): SUBSCRIBED, (SUBSCRIBED, b"CLS"): CLOSING}


def test_numbers_are_those_of_stats() -> None:
    """The states have the numbers that /stats shows."""
    assert [int(state) for state in ConnectionState] == [0, 3, 4]


def test_diagram_shows_every_transition() -> None:
    """Each command of the table stands on the arrow between its two states."""
    lines = mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> INIT"]
    drawn = set()
    for line in lines[2:]:
        arrow, _, commands = line.strip().partition(": ")
        before, after = arrow.split(" --> ")
        for command in commands.split(", "):
            drawn.add((ConnectionState[before], command.encode(), ConnectionState[after]))
    assert drawn == {(*key, after) for key, after in TRANSITIONS.items()}


def test_document_is_up_to_date() -> None:
    """docs/protocol-states.md is what the table draws; the file says how to write it anew."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()
