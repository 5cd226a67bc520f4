"""The states of a connection, as nsqd sees them, and which command is allowed in which state.

One table decides: a command that it lacks for a state is ``E_INVALID cannot <CMD> in current
state``. The same table gives the set of known commands and draws docs/protocol-states.md.

Spec: tcp-protocol, section 7 (client states).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "ALLOWED",
    "COMMANDS",
    "MAGIC_V2",
    "TRANSITIONS",
    "ConnectionState",
    "document",
    "mermaid",
]


MAGIC_V2 = b"  V2"
"""The first bytes of every connection: the version of the protocol."""


class ConnectionState(enum.IntEnum):
    """State of a connection. /stats shows the numbers; 1 and 2 are not used."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


_ANY_STATE = (b"PUB", b"MPUB", b"DPUB", b"NOP")

TRANSITIONS: Mapping[tuple[ConnectionState, bytes], ConnectionState] = MappingProxyType(
    {
        **{(state, command): state for state in ConnectionState for command in _ANY_STATE},
        (ConnectionState.INIT, b"IDENTIFY"): ConnectionState.INIT,
        (ConnectionState.INIT, b"AUTH"): ConnectionState.INIT,
        (ConnectionState.INIT, b"SUB"): ConnectionState.SUBSCRIBED,
        (ConnectionState.SUBSCRIBED, b"RDY"): ConnectionState.SUBSCRIBED,
        (ConnectionState.SUBSCRIBED, b"FIN"): ConnectionState.SUBSCRIBED,
        (ConnectionState.SUBSCRIBED, b"REQ"): ConnectionState.SUBSCRIBED,
        (ConnectionState.SUBSCRIBED, b"TOUCH"): ConnectionState.SUBSCRIBED,
        (ConnectionState.SUBSCRIBED, b"CLS"): ConnectionState.CLOSING,
        # Allowed, without effect, so that a consumer that raises its RDY while closing is not
        # disconnected.
        (ConnectionState.CLOSING, b"RDY"): ConnectionState.CLOSING,
        (ConnectionState.CLOSING, b"FIN"): ConnectionState.CLOSING,
        (ConnectionState.CLOSING, b"REQ"): ConnectionState.CLOSING,
        (ConnectionState.CLOSING, b"TOUCH"): ConnectionState.CLOSING,
    }
)
"""State after a command, by state before it and command; a missing key is a refused command."""

ALLOWED: Mapping[ConnectionState, Mapping[bytes, ConnectionState]] = MappingProxyType(
    {
        state: {name: after for (before, name), after in TRANSITIONS.items() if before is state}
        for state in ConnectionState
    }
)
"""The same, as the commands of each state."""

COMMANDS: frozenset[bytes] = frozenset(command for _, command in TRANSITIONS)
"""Every command that nsqd knows; any other is ``E_INVALID invalid command <name>``."""

_REGENERATE = (
    "python -c 'from trionsq.wire import states; print(states.document(), end=\"\")'"
    " > docs/protocol-states.md"
)


def mermaid() -> str:
    """Draw `TRANSITIONS` as a mermaid state diagram, one arrow for each pair of states."""
    arrows: dict[tuple[ConnectionState, ConnectionState], list[str]] = {}
    for (before, command), after in TRANSITIONS.items():
        arrows.setdefault((before, after), []).append(command.decode())
    lines = [f"    [*] --> {ConnectionState.INIT.name}"]
    for (before, after), commands in sorted(arrows.items()):
        lines.append(f"    {before.name} --> {after.name}: {', '.join(sorted(commands))}")
    return "\n".join(["stateDiagram-v2", *lines])


def document() -> str:
    """Return the whole of docs/protocol-states.md, which a test compares with that file."""
    rows = []
    for command in sorted(COMMANDS):
        cells = (TRANSITIONS.get((state, command)) for state in ConnectionState)
        names = ("-" if after is None else after.name for after in cells)
        rows.append(f"| {command.decode()} | {' | '.join(names)} |")
    table = "\n".join(rows)
    columns = " | ".join(f"{state.name} ({state.value})" for state in ConnectionState)
    return f"""# States of a connection

Drawn from the table `TRANSITIONS` in `trionsq/wire/states.py`. Do not edit; write it anew with

```sh
{_REGENERATE}
```

The numbers are those that `/stats` shows for a client. A cell names the state after the command;
`-` means that nsqd answers `E_INVALID cannot <CMD> in current state` and closes the connection.
`RDY` in the state CLOSING is accepted and does nothing.

```mermaid
{mermaid()}
```

| command | {columns} |
|---|---|---|---|
{table}
"""
