"""One topic of nsq_to_file with --from: its logs go to files, up to the end that was asked for.

Nothing is to be finished, so a file is synced when it is closed, and every --sync-interval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import trio

from trionsq import durations
from trionsq.client import ClientError, Config
from trionsq.logtext import first_error
from trionsq.tools.common import ToolError
from trionsq.tools.fromlog import read_logs
from trionsq.tools.nsq_to_file_log import Now, TopicArchive
from trionsq.tools.nsq_to_file_options import NsqToFileOptions, settings_of
from trionsq.tools.stdio import Progress

__all__ = ["LogTopicTask"]

T = TypeVar("T")
_END: Final = "end"

log = logging.getLogger("trionsq.tools.nsq_to_file")


class LogTopicTask:
    """As `trionsq.tools.nsq_to_file.TopicTask`, without a consumer.

    Attributes:
        has_failed: a file could not be written, or the messages not be read.
    """

    def __init__(
        self, topic: str, options: NsqToFileOptions, config: Config, progress: Progress
    ) -> None:
        """Raises ValueError: a missing ``<REV>``."""
        self.has_failed = False
        self._topic = topic
        self._options = options
        self._config = config
        self._progress = progress
        self._log = TopicArchive(settings_of(options, topic))
        self._turn = trio.Lock()
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._tasks: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<LogTopicTask {self._topic} {self._log!r}>"

    async def run(self) -> None:
        """Write until the end, or `stop`, or until something fails."""
        try:
            with self._scope:
                await self._in_thread(self._log.move_unfinished_files)
                async with trio.open_nursery() as self._tasks:
                    self._tasks.start_soon(self._sync_regularly)
                    with self._reading:
                        await read_logs(
                            self._topic, self._options, self._config, self._write, to=_END
                        )
                    await self._close_file()
                    self._tasks.cancel_scope.cancel()
        except* (ToolError, ClientError) as errors:
            log.error("%s: %s", self._topic, first_error(errors))
            self.has_failed = True
        finally:
            self._log.abandon()

    def stop(self) -> None:
        """Read no more; close the file."""
        if self._tasks is None:
            self._scope.cancel()
        else:
            self._reading.cancel()

    def close_file_soon(self) -> None:
        """Close the file; the next message opens another one."""
        if self._tasks is not None:
            self._tasks.start_soon(self._close_file)

    async def _write(self, bodies: list[bytes]) -> None:
        async with self._turn:
            await self._in_thread(self._log.write, bodies, _now())
        self._progress.count += len(bodies)

    async def _sync_regularly(self) -> None:
        while True:
            await trio.sleep(self._options.sync_interval_ns / durations.SECOND_NS)
            async with self._turn:
                await self._in_thread(self._log.rotate_if_due, _now())
                await self._in_thread(self._log.sync)

    async def _close_file(self) -> None:
        async with self._turn:
            await self._in_thread(self._log.close)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call *work* in a thread. An OSError is logged and cancels this topic's task."""
        try:
            return await trio.to_thread.run_sync(work, *arguments)
        except OSError as error:
            log.critical("%s: %s", self._topic, error)
            self.has_failed = True
            self._scope.cancel()
        await trio.sleep_forever()
        raise AssertionError("unreachable")


def _now() -> Now:
    return Now(datetime.now().astimezone(), trio.current_time())
