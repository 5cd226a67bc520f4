"""Cancelling deferred messages: one by its id and due time, as peeking shows them."""

from __future__ import annotations

from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.chores import in_turns
from trionsq.broker.runtime import Clock
from trionsq.core.deferred import Deferred
from trionsq.core.peek import PeekStale
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.log.cursor import Cursor

__all__ = ["CancelError", "cancel_deferred"]

# Messages of a log that are due in the same nanosecond and are read to find an id.
_MAX_READ: Final = 10_000


class CancelError(Exception):
    """The log could not be read; the text says why."""


async def cancel_deferred(channel: Channel, clock: Clock, id_: bytes, due_ns: int) -> bool:
    """Cancel a message that waits for its due time; False if the channel has none like that.

    ``due_ns``: in nanoseconds since the epoch. A cancellation of the caller may come after the
    message was cancelled.

    Raises:
        CancelError: nobody knows.
    """
    core = channel.core
    backend, deferred = core.store.backend, core.deferred
    clock_ns = due_ns + clock.set_back_ns()
    if isinstance(backend, Cursor):
        is_cancelled = await _cancel_in_log(backend, id_, clock_ns)
    elif isinstance(deferred, Deferred):
        is_cancelled = await in_turns(deferred.cancel(id_, clock_ns))
        # Emptied meanwhile: it is gone, and counted.
        is_cancelled = is_cancelled and core.deferred is deferred
    else:
        is_cancelled = False
    if is_cancelled:
        core.store.drop("cancelled", 1)
        return True
    return isinstance(backend, DiskQueue) and backend.cancel(id_, due_ns)


async def _cancel_in_log(cursor: Cursor, id_: bytes, due_ns: int) -> bool:
    held = cursor.held
    view = cursor.peek_held(held.ranges_at(due_ns, _MAX_READ))
    try:
        sequence = await trio.to_thread.run_sync(view.find, id_, abandon_on_cancel=True)
    except (OSError, PeekStale) as error:
        raise CancelError(str(error)) from error
    return sequence is not None and cursor.held is held and held.remove(due_ns, sequence)
