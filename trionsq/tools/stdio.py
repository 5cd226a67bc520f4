"""Standard input and output without blocking the event loop, and a progress line on stderr.

O_NONBLOCK stays unset, because it would affect every process that shares the file, such as the
shell. Instead the tools wait for the file, then read once or write a piece that certainly fits.
Files that cannot be waited for (regular files) never block for long.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import trio

__all__ = ["InputFd", "OutputFd", "Progress"]

_UPDATE_S: Final = 1.0


class _Fd:
    """An open file; not every kind can be waited for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._can_wait = True

    async def _wait(self, ready: Callable[[int], Awaitable[None]]) -> None:
        """Wait until *ready*. Always a checkpoint. Raises OSError if the file is closed."""
        if self._can_wait:
            try:
                await ready(self._fd)
            except PermissionError:
                self._can_wait = False
            else:
                return
        await trio.lowlevel.checkpoint()


class InputFd(_Fd):
    """Reads a file. Cancelling loses no bytes."""

    async def read(self, max_bytes: int) -> bytes:
        """Read up to *max_bytes*, at least one; empty at the end of the file. Raises OSError."""
        await self._wait(trio.lowlevel.wait_readable)
        return os.read(self._fd, max_bytes)


class OutputFd(_Fd):
    """Writes a file.

    Attributes:
        written_bytes: so far, including those of a cancelled `write_all`.
    """

    # A writable pipe accepts this many bytes without blocking (POSIX).
    _PIPE_PIECE_BYTES: Final = select.PIPE_BUF
    _FILE_PIECE_BYTES: Final = 256 * 1024

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.written_bytes = 0

    async def write_all(self, data: bytes) -> None:
        """Write all of *data*. After a cancellation or an OSError see `written_bytes`."""
        view = memoryview(data)
        while view:
            await self._wait(trio.lowlevel.wait_writable)
            size = self._PIPE_PIECE_BYTES if self._can_wait else self._FILE_PIECE_BYTES
            try:
                written = os.write(self._fd, view[:size])
            except BlockingIOError:
                continue
            self.written_bytes += written
            view = view[written:]


class Progress:
    """A line on stderr with the count and rate of messages, updated each second.

    Nothing is written unless stderr is a terminal.

    Attributes:
        count: messages so far; the tool increases it.
    """

    def __init__(self, action: str) -> None:
        """*action* follows the count, such as ``published``."""
        self.count = 0
        self._action = action
        self._is_terminal = sys.stderr.isatty()

    async def run(self) -> None:
        """Update the line until cancelled. The last line stays, with the final count."""
        if not self._is_terminal:
            return
        last_count = 0
        try:
            while True:
                await trio.sleep(_UPDATE_S)
                rate = (self.count - last_count) / _UPDATE_S
                last_count = self.count
                sys.stderr.write(f"\r\x1b[K{self.count:,} {self._action}, {rate:,.0f}/s")
                sys.stderr.flush()
        finally:
            sys.stderr.write(f"\r\x1b[K{self.count:,} {self._action}\n")
            sys.stderr.flush()
