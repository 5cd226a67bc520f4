"""What a scenario must not leave behind, whatever was cancelled in it; threads in mock time."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import trio

__all__ = ["nothing_left_behind", "threads_in_mock_time"]

T = TypeVar("T")
_THREAD_S = 0.01


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def nothing_left_behind(*, only_sockets: bool = False) -> Iterator[None]:
    """Inside a trio program: at the end no file or socket is open that was not, no task runs that
    did not, and no error was logged: what a server logs as one is an exception that it ended.

    ``only_sockets``: files may be open, as those of an nsqd that was told to stop at once.
    """
    errors, logger = _Errors(), logging.getLogger("trionsq")
    files, tasks = _open_files(only_sockets), trio.lowlevel.current_statistics().tasks_living
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    assert errors.lines == []
    assert _open_files(only_sockets) == files
    assert trio.lowlevel.current_statistics().tasks_living <= tasks


def _open_files(only_sockets: bool) -> int:
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(int(number)).st_mode)
        except OSError:
            continue  # that by which the folder was read
        count += is_socket or not only_sockets
    return count


@contextmanager
def threads_in_mock_time() -> Iterator[None]:
    """Work for a thread is done by the task itself and takes a moment of a mock clock, which would
    leap while a real thread works. A cancellation waits for its end, as it does for a thread's,
    unless the task may abandon it."""

    async def run_sync(
        function: Callable[..., T],
        *args: Any,
        thread_name: str | None = None,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        async with limiter or trio.CapacityLimiter(1):
            result = function(*args)
            with trio.CancelScope(shield=not abandon_on_cancel):
                await trio.sleep(_THREAD_S)
            return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio.to_thread.run_sync", run_sync)
        yield
