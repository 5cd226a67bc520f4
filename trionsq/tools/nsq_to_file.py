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
from trionsq.client.discovery import lookup_headers, topics_of
from trionsq.daemon.log import configure
from trionsq.tools.common import (
    consumer_config,
    die,
    on_signal,
    one_kind_of_address,
    read_options,
    run_tool,
)
from trionsq.tools.fromlog import check_addresses
from trionsq.tools.nsq_to_file_from import LogTopicTask
from trionsq.tools.nsq_to_file_log import Now, TopicArchive
from trionsq.tools.nsq_to_file_options import NsqToFileOptions, refusal, settings_of
from trionsq.tools.stdio import Progress

__all__ = ["NsqToFile", "TopicTask", "main"]

T = TypeVar("T")

log = logging.getLogger("trionsq.tools.nsq_to_file")

_TOOL: Final = "nsq_to_file"
# In one turn of the event loop: batches to finish, topics to start, names to compare with the
# pattern.
_MAX_BATCHES_A_TURN: Final = 64
_MAX_TOPICS_A_TURN: Final = 16
_MAX_NAMES_A_TURN: Final = 512
# Unwritten messages are touched this many times within nsqd's --msg-timeout.
_TOUCHES: Final = 3


class TopicTask:
    """One topic: a consumer whose messages go to files.

    Attributes:
        has_failed: a file could not be written. Messages that were not yet durable are returned to
            nsqd.
    """

    def __init__(
        self, topic: str, options: NsqToFileOptions, config: Config, progress: Progress
    ) -> None:
        """Raises ValueError: an invalid topic, channel or address, or a missing ``<REV>``."""
        self.has_failed = False
        self._topic = topic
        self._interval_s = options.sync_interval_ns / durations.SECOND_NS
        self._max_in_flight = options.max_in_flight
        self._log = TopicArchive(settings_of(options, topic))
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
        """Write until `stop`, or until a file cannot be written.

        Cancelling returns to nsqd the messages that are not yet durable.

        Raises:
            ClientError, ProtocolError: the first connection could not be made.
        """
        try:
            with self._scope:
                await self._in_thread(self._log.move_unfinished_files)
                async with self._consumer, trio.open_nursery() as self._tasks:
                    self._tasks.start_soon(self._sync_regularly)
                    self._tasks.start_soon(self._touch_regularly)
                    async for batch in self._consumer.batches():
                        async with self._turn:
                            await self._write(batch)
                    await self._close_file()
                    self._tasks.cancel_scope.cancel()
        finally:
            self._log.abandon()

    def stop(self) -> None:
        """Receive no more messages; write, sync and finish those received; close the file."""
        if self._tasks is None:
            self._scope.cancel()
        elif not self._is_stopping:
            self._is_stopping = True
            self._consumer.stop()
            self._tasks.start_soon(self._sync_in_turn)

    def close_file_soon(self) -> None:
        """Close the file; the next message opens another one."""
        if self._tasks is not None and not self._is_stopping:
            self._tasks.start_soon(self._close_file)

    async def _touch_regularly(self) -> None:
        """Prevent nsqd from redelivering messages that wait for a sync or a slow disk."""
        while True:
            await trio.sleep(self._consumer.msg_timeout_s / _TOUCHES)
            for batch in list(self._pending):
                batch.touch()
                await trio.lowlevel.checkpoint()

    # Each of these runs under the lock `_turn`, or acquires it

    async def _write(self, batch: Batch) -> None:
        if not batch.is_answerable:
            return  # nsqd redelivers it
        self._pending.append(batch)
        self._pending_count += len(batch)
        is_due = (
            self._is_stopping
            or self._pending_count >= self._max_in_flight
            or self._consumer.is_starved
        )
        await self._in_thread(_write, self._log, batch.bodies, _now(), is_due)
        await self._finish_durable()

    async def _sync_regularly(self) -> None:
        while True:
            await trio.sleep(self._interval_s)
            async with self._turn:
                if self._is_stopping:
                    return
                await self._in_thread(self._log.rotate_if_due, _now())
                await self._sync()

    async def _sync_in_turn(self) -> None:
        async with self._turn:
            await self._sync()

    async def _close_file(self) -> None:
        async with self._turn:
            await self._in_thread(self._log.close)
            await self._finish_durable()

    async def _sync(self) -> None:
        await self._in_thread(self._log.sync)
        await self._finish_durable()

    async def _finish_durable(self) -> None:
        """Finish all written messages if all are durable. Cancelling does not interrupt it."""
        if self._log.unsynced or not self._pending:
            return
        log.debug("%s: %d messages are on disk", self._topic, self._pending_count)
        for finished, batch in enumerate(self._pending, 1):
            batch.finish()
            if finished % _MAX_BATCHES_A_TURN == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        self._progress.count += self._pending_count
        self._pending.clear()
        self._pending_count = 0

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


def _write(topic_log: TopicArchive, bodies: list[bytes], now: Now, is_due: bool) -> None:
    has_rotated = topic_log.write(bodies, now)
    if has_rotated or is_due:
        topic_log.sync()


def _now() -> Now:
    return Now(datetime.now().astimezone(), trio.current_time())


class NsqToFile:
    """One run of the tool: all topics, and the signals."""

    def __init__(self, options: NsqToFileOptions, config: Config) -> None:
        self._options = options
        self._config = config
        self._topics: dict[str, TopicTask | LogTopicTask] = {}
        self._progress = Progress("messages on disk")
        self._ended = trio.Event()
        self._is_stopping = False
        self._has_failed = False

    async def run(self) -> int:
        """Write until a signal, or with --from until the end; return 0. Return 1 if a file or no
        topic at all could be written."""
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(on_signal, self._stop_on_signal))
            await nursery.start(partial(on_signal, self._close_files, signal.SIGHUP, once=False))
            nursery.start_soon(self._progress.run)
            for topic in dict.fromkeys(self._options.topic):
                self._start_topic(topic, nursery)
            if self._options.topic:
                self._end_if_idle()
            else:
                nursery.start_soon(self._discover, nursery)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        has_ended = self._is_stopping or bool(self._options.begin)
        return 1 if self._has_failed or not has_ended else 0

    def _stop_on_signal(self, _signum: int) -> None:
        self._stop()

    def _close_files(self, _signum: int) -> None:
        for task in self._topics.values():
            task.close_file_soon()

    def _stop(self) -> None:
        self._is_stopping = True
        for task in self._topics.values():
            task.stop()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._topics and (self._is_stopping or self._options.topic):
            self._ended.set()

    def _start_topic(self, topic: str, nursery: trio.Nursery) -> None:
        make = LogTopicTask if self._options.begin else TopicTask
        try:
            task = make(topic, self._options, self._config, self._progress)
        except ValueError as error:
            log.error("couldn't create logger for topic %s: %s", topic, error)
            self._has_failed = self._has_failed or bool(self._options.begin)
            return
        self._topics[topic] = task
        nursery.start_soon(self._run_topic, topic, task)

    async def _run_topic(self, topic: str, task: TopicTask | LogTopicTask) -> None:
        try:
            await task.run()
        except (ClientError, ProtocolError) as error:
            log.error("couldn't create logger for topic %s: %s", topic, error)
        finally:
            del self._topics[topic]
            if task.has_failed:
                # The other topics end in an orderly way.
                self._has_failed = True
                self._stop()
            self._end_if_idle()

    # Topics by pattern

    async def _discover(self, nursery: trio.Nursery) -> None:
        pattern = re.compile(self._options.topic_pattern)
        while True:
            await trio.sleep(self._options.topic_refresh_ns / durations.SECOND_NS)
            started = 0
            for number, topic in enumerate(sorted(await self._known_topics()), 1):
                is_new = topic not in self._topics and pattern.search(topic)
                if is_new and not self._is_stopping:
                    self._start_topic(topic, nursery)
                    started += 1
                if number % _MAX_NAMES_A_TURN == 0 or (
                    is_new and started % _MAX_TOPICS_A_TURN == 0
                ):
                    await trio.lowlevel.checkpoint()

    async def _known_topics(self) -> set[str]:
        """The topics of every nsqlookupd that answers."""
        topics: set[str] = set()
        for address in self._options.lookupd_http_address:
            base = address if "://" in address else f"http://{address}"
            try:
                answer = await httpget.get(
                    f"{base.rstrip('/')}/topics",
                    lookup_headers(self._config),
                    self._options.http_client_connect_timeout_ns / durations.SECOND_NS,
                    self._options.http_client_request_timeout_ns / durations.SECOND_NS,
                    ssl_context=self._config.ssl_context() if base.startswith("https:") else None,
                )
                topics.update(topics_of(answer))
            except (httpget.GetError, DiscoveryError, ConfigError) as error:
                log.error("could not retrieve topic list from %s: %s", address, error)
        return topics


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
    if not check_addresses(options):
        one_kind_of_address(options.nsqd_tcp_address, options.lookupd_http_address)
    elif not options.topic:
        die("--from needs --topic")
    if reason := refusal(options):
        die(reason)
    return run_tool(NsqToFile(options, consumer_config(options, _TOOL)).run)


if __name__ == "__main__":
    raise SystemExit(main())
