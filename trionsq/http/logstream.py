"""The body of an answer to GET /topic/log: messages from a place of a log on, as they are read.

Threads read, a few blocks at once for all answers; what was read is encoded in short steps. Nothing
is held while a client takes its time: each block is looked for anew.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import trio
from quart.wrappers.response import ResponseBody

from trionsq.broker.runtime import Clock
from trionsq.core.batch import Segment
from trionsq.http.loglines import LogForm, slice_end
from trionsq.storage.folder import error_text
from trionsq.storage.log.reading import Place
from trionsq.storage.log.runs import LogRun, LostRange, durable_end, read_run
from trionsq.storage.log.seeking import WantedPosition, find_position, first_kept
from trionsq.storage.log.segmentfile import sequences_of
from trionsq.storage.log.tokens import token_at
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["LIFE_S", "MAX_READERS", "LogRange", "LogStream", "Readers"]

T = TypeVar("T")

log = logging.getLogger("trionsq")

MAX_READERS: Final = 32
"""Maximum answers at once. Further requests get 503."""
LIFE_S: Final = 300.0
"""Time after which an answer ends; the token of its end goes on."""
# Blocks that are read at once, of all answers.
_MAX_THREADS: Final = 2
_BLOCK_BYTES: Final = 512 * 1024
# A piece of the answer is made in one step of the event loop: its size, and the work, in messages
# that are encoded as frames. A record costs as much as so many more.
_PIECE_BYTES: Final = 192 * 1024
_PIECE_WORK: Final = 2_048
_PART_WORK: Final = 16
# How often one looks for new messages at the end of the log.
_LOOK_S: Final = 0.1
# Segments are left while they are read; then the place is looked for anew.
_ATTEMPTS: Final = 5


class Readers:
    """All answers of a node.

    Attributes:
        count: of those under way.
        limiter: of the threads.
        turn: of those that encode.
    """

    def __init__(self, is_stopping: Callable[[], bool], clock: Clock) -> None:
        self.count = 0
        self.limiter = trio.CapacityLimiter(_MAX_THREADS)
        self.turn = trio.Lock()
        self.is_stopping = is_stopping
        self.clock = clock

    def __repr__(self) -> str:
        return f"<Readers {self.count}>"


@dataclass(frozen=True, slots=True)
class LogRange:
    """What is wanted of a log.

    Attributes:
        first: the first sequence.
        to: the first sequence that is not wanted, or a time that is not there yet; None: no end.
        count: the most messages.
        wait_s: how long to wait for more at the end of the log.
    """

    first: int
    to: int | WantedPosition | None
    count: int
    wait_s: float


class LogStream(ResponseBody):
    """See the module: an async context manager, and an iterator inside it."""

    def __init__(self, readers: Readers, topic_log: TopicLog, form: LogForm, wanted: LogRange):
        self._readers = readers
        self._log = topic_log
        self._form = form
        self._wanted = wanted
        self._next = wanted.first
        self._left = wanted.count
        self._place: Place | None = None
        self._to = wanted.to
        # What was published before this has no message of a time that is not there yet.
        self._looked_to = 0
        self._is_counted = False
        self._is_damaged = False
        self._pieces: AsyncGenerator[bytes, None] | None = None

    def __repr__(self) -> str:
        return f"<LogStream {self._log.name} at {self._next}>"

    async def __aenter__(self) -> Self:
        if self._readers.count < MAX_READERS:
            self._readers.count += 1
            self._is_counted = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_counted:
            self._is_counted = False
            self._readers.count -= 1
        if self._pieces is not None:
            await self._pieces.aclose()

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._pieces = self._stream()
        return self._pieces

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        began_s = trio.current_time()
        to = self._to if isinstance(self._to, int) else None
        token = str(token_at(self._log, self._next))
        begin = {"note": "begin", "topic": self._log.name, "from": self._next, "to": to}
        yield self._form.note({**begin, "next": token})
        kept = first_kept(self._log)
        if self._next < kept:
            yield self._skipped(self._next, kept, "removed")
            self._next = kept
        reason, error = "", None
        while not (reason := self._reason_to_end(began_s)):
            try:
                run = await self._read()
            except OSError as failure:
                reason, error = "unreadable", error_text(failure)
                break
            if run is None:
                await trio.sleep(_LOOK_S)
                continue
            pieces = self._encoded(run)
            while piece := await self._next_piece(pieces):
                yield piece
        end_note: dict[str, object] = {"note": "end", "reason": reason, "sequence": self._next}
        if error is not None:
            end_note["error"] = error
        yield self._form.note({**end_note, "next": self._token()})

    async def _next_piece(self, pieces: Iterator[bytes]) -> bytes:
        """Return the next piece, empty behind the last.

        All answers take turns: many of them hold up others no longer than one does.
        """
        async with self._readers.turn:
            return next(pieces, b"")

    def _encoded(self, run: LogRun) -> Iterator[bytes]:
        """Yield what was read, and the token behind it, in pieces that are short work each."""
        pieces: list[bytes] = []
        work = nbytes = 0
        next_ = run.next
        for part in run.parts:
            if isinstance(part, LostRange):
                self._report(part)
                pieces.append(self._skipped(part.first, part.end, "damaged"))
                continue
            first, last = part.first, min(part.last, part.first + self._left)
            self._left -= last - first
            while first < last:
                end = min(slice_end(part, first), last)
                pieces.append(self._form.messages(Segment(part.batch, first, end)))
                work += (end - first) * self._form.work + _PART_WORK
                nbytes += len(pieces[-1])
                first = end
                if work >= _PIECE_WORK or nbytes >= _PIECE_BYTES:
                    yield b"".join(pieces)
                    pieces, work, nbytes = [], 0, 0
            if last < part.last:
                next_ = sequences_of(part.batch)[last]
                break
        self._next, self._place = next_, run.place if next_ == run.next else None
        pieces.append(self._form.note({"note": "next", "next": self._token()}))
        yield b"".join(pieces)

    def _token(self) -> str | None:
        return None if self._log.is_deleted else str(token_at(self._log, self._next))

    def _skipped(self, first: int, end: int, reason: str) -> bytes:
        return self._form.note({"note": "skipped", "from": first, "to": end, "reason": reason})

    def _report(self, lost: LostRange) -> None:
        if not self._is_damaged:
            self._is_damaged = True
            name, first, end = self._log.name, lost.first, lost.end
            log.warning("LOG(%s): a reader lacks messages %d to %d", name, first, end)

    def _reason_to_end(self, began_s: float) -> str:
        if self._log.is_deleted:
            return "deleted"
        if not self._is_counted:
            return "busy"
        if isinstance(self._to, int) and self._next >= self._to:
            return "to"
        if not self._left:
            return "count"
        if self._next < first_kept(self._log):
            return "removed"
        if self._readers.is_stopping():
            return "stopping"
        if trio.current_time() >= began_s + LIFE_S:
            return "time"
        if self._next < durable_end(self._log):
            return ""
        if isinstance(self._to, WantedPosition) and self._has_passed(self._to):
            return "to"
        return "end" if trio.current_time() >= began_s + self._wanted.wait_s else ""

    def _has_passed(self, to: WantedPosition) -> bool:
        """Whether no message of before a time can come any more."""
        all_is_read = self._next >= self._log.end
        return to.kind == "time" and all_is_read and self._readers.clock.now_ns() >= to.value

    async def _read(self) -> LogRun | None:
        """Read on; None if there is nothing more yet.

        Raises:
            OSError: that failed.
        """
        for attempt in range(_ATTEMPTS):
            end = durable_end(self._log)
            if isinstance(self._to, int):
                end = min(end, self._to)
            if self._next >= end:
                return None
            part = self._log.part
            try:
                if isinstance(self._to, WantedPosition) and end > self._looked_to:
                    look = partial(find_position, part, self._to, self._next, end)
                    found = await self._in_thread(look)
                    self._looked_to = end
                    if found.sequence < end:
                        self._to = found.sequence
                    break
                # If it is gone at last, without being left, somebody has removed it.
                read = partial(read_run, goes_on=attempt == _ATTEMPTS - 1)
                read = partial(read, part, self._next, end, _BLOCK_BYTES, self._place)
                run = await self._in_thread(read)
                if not self._is_left or not any(isinstance(one, LostRange) for one in run.parts):
                    return run
                break  # it was left, so that is no damage
            except FileNotFoundError:
                self._place = None
                if self._is_left:
                    break  # the answer ends
                if attempt == _ATTEMPTS - 1:
                    raise
        return LogRun(next=self._next)

    @property
    def _is_left(self) -> bool:
        """Whether the log need not have the next message any more."""
        return self._log.is_deleted or self._next < first_kept(self._log)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(
            work, limiter=self._readers.limiter, abandon_on_cancel=True
        )
