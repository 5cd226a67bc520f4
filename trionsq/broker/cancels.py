"""One deferred message, by its id and due time as peeking shows them: cancelled, or due now."""

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
from trionsq.storage.log.ranges import HeldRange

__all__ = ["CancelError", "cancel_deferred", "requeue_deferred"]

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
    return await _end_wait(channel, clock, id_, due_ns, is_requeue=False)


async def requeue_deferred(channel: Channel, clock: Clock, id_: bytes, due_ns: int) -> bool:
    """Have a message that waits for its due time be due now; else as `cancel_deferred`.

    On the disk it comes in its turn. Its attempts and the channel's count of requeues stay.
    """
    return await _end_wait(channel, clock, id_, due_ns, is_requeue=True)


async def _end_wait(
    channel: Channel, clock: Clock, id_: bytes, due_ns: int, *, is_requeue: bool
) -> bool:
    core = channel.core
    backend, deferred = core.store.backend, core.deferred
    clock_ns = due_ns + clock.set_back_ns()
    is_found = False
    if isinstance(backend, Cursor):
        new_due_ns = clock.deferral_ns(clock.now_s()) if is_requeue else None
        is_found = await _set_due_in_log(backend, id_, clock_ns, new_due_ns)
    elif isinstance(deferred, Deferred):
        segment = await in_turns(deferred.cancel(id_, clock_ns))
        # Emptied meanwhile: it is gone, and counted.
        is_found = segment is not None and core.deferred is deferred
        if is_found and is_requeue and segment is not None:
            core.store.restore(segment)
    if is_found and is_requeue:
        core.scan_at(clock.now_s())
    elif is_found:
        core.store.drop("cancelled", 1)
    elif isinstance(backend, DiskQueue):
        return backend.set_due(id_, due_ns, clock.now_ns() if is_requeue else None)
    return is_found


async def _set_due_in_log(cursor: Cursor, id_: bytes, due_ns: int, new_due_ns: int | None) -> bool:
    held = cursor.held
    ranges = held.ranges_at(due_ns, _MAX_READ)
    view = cursor.peek_held(ranges)
    try:
        sequence = await trio.to_thread.run_sync(view.find, id_, abandon_on_cancel=True)
    except (OSError, PeekStale) as error:
        raise CancelError(str(error)) from error
    if sequence is None or cursor.held is not held or not held.remove(due_ns, sequence):
        return False
    if new_due_ns is not None:
        attempts = next(
            one.attempts for one in ranges if one.sequence <= sequence < one.sequence + one.count
        )
        held.add_range(HeldRange(new_due_ns, sequence, 1, attempts))
    return True
