"""A session on a stream, bounded in what it holds and in how long it waits to be read.

The protocol has no read time-out: a silent nsqd is hidden, not cut off, and TCP's keep-alive finds
the dead ones. But whoever does not say what it speaks is no nsqd, and is cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from lookupd.session import Session
from lookupd.turns import sweep

__all__ = ["LINGER_S", "MAGIC_S", "WRITE_STALL_S", "serve"]

log = logging.getLogger("trionsq")

# What one read brings is done in one step: 100 to 800 commands, each with its line in the log,
# take up to 5 ms. Their answers have less than twice its size.
_READ_NBYTES_MAX: Final = 4 * 1024
MAGIC_S: Final = 60.0
"""The magic, which nsqd sends at once, must be there within so long."""
WRITE_STALL_S: Final = 30.0
"""A peer who does not take its answers for so long is given up."""
LINGER_S: Final = 0.5
"""After the last answer, what the peer still sends is thrown away for so long: a reset because of
unread input would lose the answer."""


async def serve(
    stream: trio.abc.HalfCloseableStream, session: Session, now_ns: Callable[[], int]
) -> None:
    """Serve until either side ends it, then close both.

    On cancellation the connection is closed at once, and its producer is gone.
    """
    try:
        with trio.fail_after(MAGIC_S):
            while not session.begun:
                await _converse(stream, session, now_ns)
        while not session.ended:
            await _converse(stream, session, now_ns)
        with trio.move_on_after(LINGER_S):
            await stream.send_eof()
            while await stream.receive_some(_READ_NBYTES_MAX):
                pass
    except (trio.BrokenResourceError, trio.TooSlowError) as error:
        log.debug("TCP: %r lost: %r", session, error)
    finally:
        session.close()
        with trio.CancelScope(shield=True):
            # Bounded by what the producer had registered; it waits for nobody.
            await sweep(session.registry)
        await trio.aclose_forcefully(stream)


async def _converse(
    stream: trio.abc.HalfCloseableStream, session: Session, now_ns: Callable[[], int]
) -> None:
    data = await stream.receive_some(_READ_NBYTES_MAX)
    answers = session.receive(bytes(data), now_ns()) if data else session.end_of_input()
    await sweep(session.registry)
    if answers:
        with trio.fail_after(WRITE_STALL_S):
            await stream.send_all(answers)
