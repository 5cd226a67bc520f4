"""The tool nsq_to_file: the messages of topics, written to files.

A consumer and its files for each topic, until SIGINT or SIGTERM. Files are written in threads, one
call at a time for each topic. A message is finished after the sync that made it durable: whatever
ends the tool, nsqd still has each message that is not yet safe in a file.

Spec: tools, nsq_to_file.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import trio

from trionsq import durations, httpget
from trionsq.client import (
    Batch,
    ClientError,
    Config,
    ConfigError,
    Consumer,
    DiscoveryError,
    ProtocolError,
)
from trionsq.client.discovery import topics_of
from trionsq.daemon.log import configure
from trionsq.tools.common import (
    consumer_config,
    die,
    on_signal,
    one_kind_of_address,
    read_options,
    run_tool,
)
from trionsq.tools.nsq_to_file_log import Now, TopicLog
from trionsq.tools.nsq_to_file_options import NsqToFileOptions, refusal, settings_of
from trionsq.tools.stdio import Progress

__all__ = ["NsqToFile", "TopicTask", "main"]

T = TypeVar("T")

log = logging.getLogger("trionsq.tools.nsq_to_file")

_TOOL: Final = "nsq_to_file"
# Of one turn of the event loop
_BATCHES_MAX: Final = 64
_TOPICS_MAX: Final = 16
_NAMES_MAX: Final = 512
# So often within nsqd's time-out.
_TOUCHES: Final = 3


async def serve(options: NsqToFileOptions, config: Config) -> int:
    """Write until a signal, or until nothing can be written; the exit code."""
    return await NsqToFile(options, config).run()


class TopicTask:
    """One topic: what its consumer gets, to its files.

    Attributes:
        has_failed: a file could not be written; what was not yet durable went back to nsqd.
    """

    def __init__(
        self, topic: str, options: NsqToFileOptions, config: Config, progress: Progress
    ) -> None:
        """Raises ValueError: no valid topic or channel or address, or no ``<REV>``."""
        self.has_failed = False
        self._topic = topic
        self._interval_s = options.sync_interval_ns / durations.SECOND_NS
        self._max_in_flight = options.max_in_flight
        self._log = TopicLog(settings_of(options, topic))
        self._consumer = Consumer(
            topic,
            options.channel,
            nsqd_tcp_addresses=options.nsqd_tcp_address,
            lookupd_http_addresses=options.lookupd_http_address,
            config=config,
        )
        self._progress = progress
        self._pending: list[Batch] = []
        self._pending_count = 0
        self._turn = trio.Lock()
        self._scope = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._is_stopping = False

    def __repr__(self) -> str:
        return f"<TopicTask {self._topic} {self._pending_count} pending, {self._log!r}>"

    async def run(self) -> None:
        """Write until `stop`, or until a file can't be written.

        Cancelled, it gives back to nsqd what is not yet durable.

        Raises:
            ClientError, ProtocolError: the first connection could not be made.
        """
        try:
            with self._scope:
                await self._in_thread(self._log.move_leftovers)
                async with self._consumer, trio.open_nursery() as self._tasks:
                    self._tasks.start_soon(self._tick)
                    self._tasks.start_soon(self._touch)
                    async for batch in self._consumer.batches():
                        async with self._turn:
                            await self._write(batch)
                    await self._close()
                    self._tasks.cancel_scope.cancel()
        finally:
            self._log.abandon()

    def stop(self) -> None:
        """Take no more messages; write, sync and finish those that are here; close the file."""
        if self._tasks is None:
            self._scope.cancel()
        elif not self._is_stopping:
            self._is_stopping = True
            self._consumer.stop()
            self._tasks.start_soon(self._settle)

    def hang_up(self) -> None:
        """Close the file; the next message opens another one."""
        if self._tasks is not None and not self._is_stopping:
            self._tasks.start_soon(self._close)

    async def _touch(self) -> None:
        """Keep nsqd from delivering again what waits for a sync, or for a slow disk."""
        while True:
            await trio.sleep(self._consumer.msg_timeout_s / _TOUCHES)
            for batch in list(self._pending):
                batch.touch()
                await trio.lowlevel.checkpoint()

    # Each under the lock `_turn`, or taking it

    async def _write(self, batch: Batch) -> None:
        if not batch.is_answerable:
            return  # it will come again
        self._pending.append(batch)
        self._pending_count += len(batch)
        is_due = (
            self._is_stopping
            or self._pending_count >= self._max_in_flight
            or self._consumer.is_starved
        )
        await self._in_thread(_write, self._log, batch.bodies, _now(), is_due)
        await self._finish()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self._interval_s)
            async with self._turn:
                if self._is_stopping:
                    return
                await self._in_thread(self._log.tick, _now())
                await self._sync()

    async def _settle(self) -> None:
        async with self._turn:
            await self._sync()

    async def _close(self) -> None:
        async with self._turn:
            await self._in_thread(self._log.close)
            await self._finish()

    async def _sync(self) -> None:
        await self._in_thread(self._log.sync)
        await self._finish()

    async def _finish(self) -> None:
        """Answer for all that is written, if all of it is durable; all of it also if cancelled."""
        if self._log.unsynced or not self._pending:
            return
        log.debug("%s: %d messages are on disk", self._topic, self._pending_count)
        for finished, batch in enumerate(self._pending, 1):
            batch.finish()
            if finished % _BATCHES_MAX == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        self._progress.count += self._pending_count
        self._pending.clear()
        self._pending_count = 0

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do it in a thread. An OSError ends the task: it raises Cancelled here."""
        try:
            return await trio.to_thread.run_sync(work, *arguments)
        except OSError as error:
            log.critical("%s: %s", self._topic, error)
            self.has_failed = True
            self._scope.cancel()
        await trio.sleep_forever()
        raise AssertionError("unreachable")


def _write(topic_log: TopicLog, bodies: list[bytes], now: Now, is_due: bool) -> None:
    has_rotated = topic_log.write(bodies, now)
    if has_rotated or is_due:
        topic_log.sync()


def _now() -> Now:
    return Now(datetime.now().astimezone(), trio.current_time())


class NsqToFile:
    """All topics."""

    def __init__(self, options: NsqToFileOptions, config: Config) -> None:
        self._options = options
        self._config = config
        self._topics: dict[str, TopicTask] = {}
        self._progress = Progress("messages on disk")
        self._ended = trio.Event()
        self._is_stopping = False
        self._has_failed = False

    async def run(self) -> int:
        """The exit code: 0 after a signal, 1 if a file or no topic at all could be written."""
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(on_signal, self._terminate))
            await nursery.start(partial(on_signal, self._hang_up, signal.SIGHUP, once=False))
            nursery.start_soon(self._progress.run)
            for topic in dict.fromkeys(self._options.topic):
                self._begin(topic, nursery)
            if self._options.topic:
                self._end_if_idle()
            else:
                nursery.start_soon(self._discover, nursery)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        return 1 if self._has_failed or not self._is_stopping else 0

    def _terminate(self, _signum: int) -> None:
        self._stop()

    def _hang_up(self, _signum: int) -> None:
        for task in self._topics.values():
            task.hang_up()

    def _stop(self) -> None:
        self._is_stopping = True
        for task in self._topics.values():
            task.stop()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._topics and (self._is_stopping or self._options.topic):
            self._ended.set()

    def _begin(self, topic: str, nursery: trio.Nursery) -> None:
        try:
            task = TopicTask(topic, self._options, self._config, self._progress)
        except ValueError as error:
            log.error("couldn't create logger for topic %s: %s", topic, error)
            return
        self._topics[topic] = task
        nursery.start_soon(self._attend, topic, task)

    async def _attend(self, topic: str, task: TopicTask) -> None:
        try:
            await task.run()
        except (ClientError, ProtocolError) as error:
            log.error("couldn't create logger for topic %s: %s", topic, error)
        finally:
            del self._topics[topic]
            if task.has_failed:
                # The others end in order.
                self._has_failed = True
                self._stop()
            self._end_if_idle()

    # Topics by pattern

    async def _discover(self, nursery: trio.Nursery) -> None:
        wanted = re.compile(self._options.topic_pattern)
        while True:
            await trio.sleep(self._options.topic_refresh_ns / durations.SECOND_NS)
            begun = 0
            for looked_at, topic in enumerate(sorted(await self._known_topics()), 1):
                is_new = topic not in self._topics and wanted.search(topic)
                if is_new and not self._is_stopping:
                    self._begin(topic, nursery)
                    begun += 1
                if looked_at % _NAMES_MAX == 0 or (is_new and begun % _TOPICS_MAX == 0):
                    await trio.lowlevel.checkpoint()

    async def _known_topics(self) -> set[str]:
        """Those of every nsqlookupd that answers."""
        found: set[str] = set()
        for address in self._options.lookupd_http_address:
            base = address if "://" in address else f"http://{address}"
            try:
                answer = await httpget.get(
                    f"{base.rstrip('/')}/topics",
                    {"Accept": "application/vnd.nsq; version=1.0"},
                    self._options.http_client_connect_timeout_ns / durations.SECOND_NS,
                    self._options.http_client_request_timeout_ns / durations.SECOND_NS,
                    ssl_context=self._config.ssl_context() if base.startswith("https:") else None,
                )
                found.update(topics_of(answer))
            except (httpget.GetError, DiscoveryError, ConfigError) as error:
                log.error("could not retrieve topic list from %s: %s", address, error)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options, rest = read_options(NsqToFileOptions, _TOOL, sys.argv[1:] if argv is None else argv)
    if rest:
        die(f"unknown arguments: [{' '.join(rest)}]")
    try:
        configure(options.log_prefix, options.log_level.lower())
    except KeyError:
        die("--log-level is invalid")
    one_kind_of_address(options.nsqd_tcp_address, options.lookupd_http_address)
    if why := refusal(options):
        die(why)
    return run_tool(serve, options, consumer_config(options, _TOOL))


if __name__ == "__main__":
    raise SystemExit(main())
