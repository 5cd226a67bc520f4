"""Standard input and output that never block the loop, and leave the files' flags alone.

O_NONBLOCK would be seen by every process that shares the file, such as the shell; so a file is
waited for, and then read once or written in a piece that surely fits. What can't be waited for
(a regular file) never blocks for long.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import trio

__all__ = ["InputFd", "OutputFd", "Progress"]

_SHOW_EVERY_S: Final = 1.0


class _Fd:
    """A file that may or may not be waited for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._can_wait = True

    async def _wait(self, ready: Callable[[int], Awaitable[None]]) -> None:
        """Wait until *ready*; a checkpoint at least. Raises OSError: it is closed."""
        if self._can_wait:
            try:
                await ready(self._fd)
            except PermissionError:
                self._can_wait = False
            else:
                return
        await trio.lowlevel.checkpoint()


class InputFd(_Fd):
    """Reads; cancelling never loses what was read."""

    async def read(self, nbytes_max: int) -> bytes:
        """Return what there is, at least one byte; empty at the end. Raises OSError."""
        await self._wait(trio.lowlevel.wait_readable)
        return os.read(self._fd, nbytes_max)


class OutputFd(_Fd):
    """Writes.

    Attributes:
        nbytes: written so far, also by a `write_all` that was cancelled.
    """

    # A pipe that is writable takes so much at once.
    _PIECE_NBYTES: Final = select.PIPE_BUF
    _FILE_PIECE_NBYTES: Final = 256 * 1024

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.nbytes = 0

    async def write_all(self, data: bytes) -> None:
        """Write everything. Cancelled, or after an OSError, `nbytes` says how much was."""
        view = memoryview(data)
        while view:
            await self._wait(trio.lowlevel.wait_writable)
            size = self._PIECE_NBYTES if self._can_wait else self._FILE_PIECE_NBYTES
            try:
                written = os.write(self._fd, view[:size])
            except BlockingIOError:
                continue
            self.nbytes += written
            view = view[written:]


class Progress:
    """A line on stderr about long work, renewed each second; nothing unless it is a terminal.

    Attributes:
        count: of messages so far; the tool counts it up.
    """

    def __init__(self, what: str) -> None:
        """*what* was done to the messages: ``published``."""
        self.count = 0
        self._what = what
        self._is_shown = sys.stderr.isatty()

    async def run(self) -> None:
        """Show it until cancelled; the last line stays, with the final count."""
        if not self._is_shown:
            return
        before = 0
        try:
            while True:
                await trio.sleep(_SHOW_EVERY_S)
                rate = (self.count - before) / _SHOW_EVERY_S
                before = self.count
                sys.stderr.write(f"\r\x1b[K{self.count:,} {self._what}, {rate:,.0f}/s")
                sys.stderr.flush()
        finally:
            sys.stderr.write(f"\r\x1b[K{self.count:,} {self._what}\n")
            sys.stderr.flush()
