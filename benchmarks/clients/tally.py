"""What the programs share: their order, the moments that count, and what they print.

They end no connection when all messages are there, for a FIN may still be under way: the line of
JSON says that all came, or that nsqd has confirmed all, and whoever started them asks the broker
and then kills them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio

BODY = bytes(200)
"""What publishers send."""
UNDER_WAY = 100
"""How many publishers there are; each waits for nsqd's OK."""
MAX_IN_FLIGHT = 2500
LINGER_S = 300.0
"""So long a program stays connected that nobody kills."""


@dataclass(frozen=True, slots=True)
class Order:
    """Where to take how many messages from."""

    host: str
    port: int
    topic: str
    channel: str
    messages: int

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return f"{self.host}:{self.port}"


def read_order() -> Order:
    """The order on the command line: ``host:port topic channel messages``."""
    address, topic, channel, messages = sys.argv[1:5]
    host, _, port = address.rpartition(":")
    return Order(host, int(port), topic, channel, int(messages))


def run_in_world(main: Callable[[Order], Coroutine[Any, Any, None]]) -> None:
    """Run a program of our client on trio, or on what follows the order: asyncio, uvloop."""
    [world] = sys.argv[5:] or ["trio"]
    options = {"use_uvloop": True} if world == "uvloop" else {}
    backend = "trio" if world == "trio" else "asyncio"
    anyio.run(main, read_order(), backend=backend, backend_options=options)


def is_publisher() -> bool:
    """Whether the word after the order is ``publish``."""
    return sys.argv[5:] == ["publish"]


class Tally:
    """Times what lies between the first 5 % of the messages and the last 5 %.

    The first are left out, for clients begin with RDY 1 or learn sizes; the last, for the broker
    may keep them until a timer flushes them.

    Attributes:
        mark: call `reached` when so many messages have come.
    """

    def __init__(self, order: Order) -> None:
        self._messages = order.messages
        self._first = max(order.messages // 20, 1)
        self._last = max(order.messages - order.messages // 20, self._first + 1)
        self._from = (0, 0.0, 0.0)
        self._until = (0, 0.0, 0.0)
        self.mark = self._first

    def reached(self, count: int, nbytes: int) -> int:
        """Note the time at which ``count`` messages have come; return the next mark.

        The last one prints the result; `nbytes` is the sum of the bodies' sizes.
        """
        now = (count, time.perf_counter(), time.process_time())
        if self.mark == self._first:
            self._from, self.mark = now, self._last
        elif self.mark == self._last:
            self._until, self.mark = now, self._messages
        if count >= self._messages:
            self._print(count, nbytes)
            self.mark = sys.maxsize
        return self.mark

    def _print(self, count: int, nbytes: int) -> None:
        timed = [end - begin for begin, end in zip(self._from, self._until, strict=True)]
        figures = {
            "messages": count,
            "nbytes": nbytes,
            "timed_messages": timed[0],
            "timed_seconds": timed[1],
            "seconds": timed[1],
            "generator_cpu_seconds": timed[2],
        }
        print(json.dumps(figures), flush=True)


class Publishes:
    """The messages that all publishers of a program have to publish."""

    def __init__(self, order: Order) -> None:
        self._tally = Tally(order)
        self._mark = self._tally.mark
        self._left = order.messages
        self._confirmed = 0

    def begin(self) -> bool:
        """Take one message; False: none is left."""
        self._left -= 1
        return self._left >= 0

    def confirm(self) -> None:
        """Count one that nsqd has confirmed."""
        self._confirmed += 1
        if self._confirmed >= self._mark:
            self._mark = self._tally.reached(self._confirmed, self._confirmed * len(BODY))
