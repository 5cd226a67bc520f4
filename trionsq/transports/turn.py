"""A look at the input, and what is done at its end: once for all that the look brought.

What many connections publish in one look is stored and goes to the channels together, and each
consumer is sent all that it gets of it in one write. No task has to wake up for that.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

__all__ = ["Turn"]

# After so long tasks move what is left. To write what was moved takes about as long again.
_MAX_MOVES_S: Final = 0.003


class Turn:
    """Collects what is to be done when the present look at the input ends.

    A context manager, for the look. What is done at its end must not raise.

    Attributes:
        is_open: whether there is a look now.
    """

    __slots__ = ("_deliveries", "_moves", "_moves_add_writes", "_stores", "_writes", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._stores: list[Callable[[], None]] = []
        self._moves: list[Callable[[bool], None]] = []
        self._deliveries: list[Callable[[], None]] = []
        self._writes: list[Callable[[], None]] = []
        # Whether they did last: then what is written before goes with that.
        self._moves_add_writes = True

    def __repr__(self) -> str:
        return f"<Turn open={self.is_open} moves={len(self._moves)} writes={len(self._writes)}>"

    def store_later(self, store: Callable[[], None]) -> None:
        """Have messages stored at the end, ahead of all else. That may add moves."""
        self._stores.append(store)

    def move_later(self, move: Callable[[bool], None]) -> None:
        """Have messages moved at the end, or by a task if it is called with True: it is late then.

        That may add writes.
        """
        self._moves.append(move)

    def deliver_later(self, deliver: Callable[[], None]) -> None:
        """Have messages delivered at the end, behind all moves, to all who gave credit by then.

        That may add writes.
        """
        self._deliveries.append(deliver)

    def write_later(self, write: Callable[[], None]) -> None:
        """Have a client's output written at the end, behind all deliveries."""
        self._writes.append(write)

    def write_now(self) -> None:
        """Store, deliver and write, without moves, what the end would: the look takes long."""
        if self._stores:
            self._store()
        if self._deliveries:
            self._deliver()
        self._write()

    def _store(self) -> None:
        stores, self._stores = self._stores, []
        for store in stores:
            store()

    def _deliver(self) -> None:
        deliveries, self._deliveries = self._deliveries, []
        for deliver in deliveries:
            deliver()

    def _write(self) -> None:
        writes, self._writes = self._writes, []
        for write in writes:
            write()

    def __enter__(self) -> None:
        self.is_open = True

    def __exit__(self, *exception: object) -> None:
        if self._stores:
            self._store()
        if self._moves or self._deliveries:
            if self._writes and not self._moves_add_writes:
                # Publishers hear sooner.
                self._write()
            writes = len(self._writes)
            ends_s = perf_counter() + _MAX_MOVES_S
            is_late = False
            while self._moves or self._deliveries:  # either may add some of the other
                moves, self._moves = self._moves, []
                for move in moves:
                    move(is_late)
                    is_late = is_late or perf_counter() > ends_s
                self._deliver()
            self._moves_add_writes = len(self._writes) > writes
        self.is_open = False
        if self._writes:
            self._write()
