"""How much work a program does between two turns of the event loop: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import trio

__all__ = ["longest_step"]


class _Steps(trio.abc.Instrument):
    """Counts the lines of some folders that run in each step of a task."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders
        self._lines = 0
        self.longest = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._lines = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, self._lines)

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function of calls: only what is in the folders is looked at any closer."""
        name = frame.f_code.co_filename
        return self._line if any(folder in name for folder in self._folders) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines += 1
        return self._line


async def longest_step(function: Callable[[], Awaitable[object]], *folders: str) -> int:
    """Lines of Python that the longest step ran while ``function`` did, whoever's step it was.

    A loop counts its lines each time round; what C code does is not counted.

    Args:
        function: is awaited.
        folders: parts of the paths of the files that count, as ``/lookupd/``.
    """
    steps = _Steps(folders)
    trio.lowlevel.add_instrument(steps)
    before = sys.gettrace()
    sys.settrace(steps.called)
    try:
        await trio.lowlevel.checkpoint()
        await function()
        await trio.lowlevel.checkpoint()
    finally:
        sys.settrace(before)
        trio.lowlevel.remove_instrument(steps)
    return steps.longest
