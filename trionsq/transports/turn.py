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
        number: of the newest look; 0 before the first one.
        store_later: has messages stored at the end, ahead of all else. That may add moves.
        move_later: has messages moved at the end, or by a task if the function is called with True:
            it is late then. That may add writes.
        deliver_later: has messages delivered at the end, behind all moves, to all who gave credit
            by then. That may add writes.
        write_later: has a client's output written at the end, behind all deliveries; ahead of the
            moves if these write nothing.
    """

    __slots__ = ("_deliveries", "_moves", "_moves_add_writes", "_stores", "_writes",
                 "deliver_later", "is_open", "move_later", "number", "store_later",
                 "write_later")  # fmt: skip

    def __init__(self) -> None:
        self.is_open = False
        self.number = 0
        self._stores: list[Callable[[], None]] = []
        self._moves: list[Callable[[bool], None]] = []
        self._deliveries: list[Callable[[], None]] = []
        self._writes: list[Callable[[], None]] = []
        # Whether they did last: then what is written before goes with that.
        self._moves_add_writes = True
        # The methods of the lists, as each message calls some of them.
        self.store_later = self._stores.append
        self.move_later = self._moves.append
        self.deliver_later = self._deliveries.append
        self.write_later = self._writes.append

    def __repr__(self) -> str:
        return f"<Turn open={self.is_open} moves={len(self._moves)} writes={len(self._writes)}>"

    def write_now(self) -> None:
        """Store, deliver and write, without moves, what the end would: the look takes long."""
        for functions in (self._stores, self._deliveries, self._writes):
            if functions:
                _call_all(functions)

    def __enter__(self) -> None:
        self.is_open = True
        self.number += 1

    def __exit__(self, *exception: object) -> None:
        if self._stores:
            _call_all(self._stores)
        if self._moves or self._deliveries:
            if self._writes and not self._moves_add_writes:
                # Publishers hear sooner.
                _call_all(self._writes)
            writes = len(self._writes)
            ends_s = perf_counter() + _MAX_MOVES_S
            is_late = False
            while self._moves or self._deliveries:  # either may add some of the other
                moves = self._moves[:]
                self._moves.clear()
                for move in moves:
                    move(is_late)
                    is_late = is_late or perf_counter() > ends_s
                if self._deliveries:
                    _call_all(self._deliveries)
            self._moves_add_writes = len(self._writes) > writes
        self.is_open = False
        if self._writes:
            _call_all(self._writes)


def _call_all(functions: list[Callable[[], None]]) -> None:
    """Call functions that are due; what they add comes next time."""
    due = functions[:]
    functions.clear()
    for function in due:
        function()
