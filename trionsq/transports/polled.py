"""What a poller serves: a connection that handles its input step by step."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

import trio

from trionsq.transports.transport import Transport

__all__ = ["HANDLED", "NOTHING", "Input", "PolledConnection", "Step", "last_turn", "next_turn"]


class Input(Enum):
    """How a look at the input ended, if nobody has to wait."""

    NOTHING = auto()
    """None had come."""
    HANDLED = auto()
    """All that had come is handled. The last read did not fill its buffer."""


# Python 3.11 calls a function for each `Input.HANDLED`.
NOTHING: Final = Input.NOTHING
HANDLED: Final = Input.HANDLED

Step: TypeAlias = "Awaitable[bool] | Input"
"""What a connection has to wait for, which returns whether it goes on; or that it needs input."""


class PolledConnection(Protocol):
    """What is served by a `Poller`.

    Attributes:
        transport: what it reads from. Only what is awaited may replace it.
    """

    transport: Transport

    def advance(self) -> Step:
        """Read and handle what has come, a bounded part of it, without waiting.

        Called in the task of the connection or in the poller's.

        Raises:
            OSError: the connection broke.
        """


async def next_turn() -> bool:
    """Give other tasks their turn: a `Step` of a connection that is not done."""
    await trio.lowlevel.checkpoint()
    return True


async def last_turn() -> bool:
    """End the connection: a `Step`."""
    return False
