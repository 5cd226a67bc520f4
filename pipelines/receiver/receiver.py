"""The receiver: a thread with trio, in it the consumers and the writer.

Tasks: the segment writer; for each topic and connection a consumer (with the client library's tasks
below it); one that discovers topics, if there is a pattern; one that waits for `Receiver.stop`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Final, NoReturn

import trio

from pipelines.discovery import find_topics
from pipelines.errors import ReceiverError, WalError
from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.flow import FlowControl, ReceiverStatistics
from pipelines.receiver.writer import SegmentWriter
from pipelines.wal import Wal
from trionsq.client import ClientError, ConfigError, Consumer, ProtocolError
from trionsq.logtext import first_error

__all__ = ["Receiver"]

log = logging.getLogger("pipelines.receiver")

# Their texts explain the failure; other exceptions are logged with a traceback.
_EXPLAINED: Final = (ReceiverError, WalError, ClientError, ProtocolError)
_STOPPING: Final = "stopping"
_RETRY_S: Final = 1.0
# Part of stop_timeout_s for requeuing messages; and further time for the thread to end
_REQUEUE_PART: Final = 0.4
_THREAD_S: Final = 2.0


class Receiver:
    """Fills a log from nsqds. Its methods may be called from any thread.

    It does not close the log.
    """

    def __init__(self, config: ReceiverConfig, wal: Wal) -> None:
        self.config = config
        self.wal = wal
        self._statistics = ReceiverStatistics()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()
        self._flow = FlowControl(config)
        self._deadline_s = 0.0

    def __repr__(self) -> str:
        return f"<Receiver {self.config.channel} {self._statistics}>"

    # For other threads

    def start(self) -> None:
        """Start the thread, which connects. Raises RuntimeError at a second call."""
        if self._thread is not None:
            raise RuntimeError("the receiver was started already")
        self._thread = threading.Thread(target=self._run, name="nsq receiver", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def end(self) -> int:
        """The end of the log: messages before it are durable, and finished or about to be."""
        return self.wal.end

    def statistics(self) -> dict[str, int]:
        """The counters of `ReceiverStatistics` by name, and those of the log."""
        log_statistics = {
            "wal_bytes": self.wal.nbytes,
            "wal_segments": self.wal.segment_count,
            "wal_first": self.wal.first,
            "wal_end": self.wal.end,
            "wal_committed": self.wal.committed,
        }
        return self._statistics.as_dict() | log_statistics

    @property
    def failure(self) -> BaseException | None:
        """Why the thread has failed; None while it has not."""
        return self._failure

    def check(self) -> None:
        """Raise ReceiverError if the thread has failed, with the cause attached."""
        if self._failure is not None:
            raise ReceiverError(f"the receiver failed: {self._failure}") from self._failure

    def stop(self) -> None:
        """Set RDY to 0, store and finish received messages, requeue the rest, end the thread.

        Takes up to ``stop_timeout_s`` and two seconds. A second call does nothing.

        Raises:
            ReceiverError: the thread did not end in time; most likely the disk hangs.
        """
        if self._thread is None:
            return
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
        limit_s = self.config.stop_timeout_s + _THREAD_S
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise ReceiverError(f"the receiver did not stop within {limit_s:g} s")

    # The thread

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = first_error(error)
            defect = None if _is_explained(error) else error
            log.error("the receiver failed: %s", self._failure, exc_info=defect)
        finally:
            self._statistics.connections = 0
            self._started.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._deadline_s = trio.current_time() + self.config.connect_timeout_s
        self._started.set()
        writer = SegmentWriter(self.config, self.wal, self._flow, self._statistics)
        async with trio.open_nursery() as outer:
            outer.start_soon(writer.run, name="writer")
            async with trio.open_nursery() as consumers:
                consumers.start_soon(
                    self._wait_for_stop, writer, consumers.cancel_scope, name="stop"
                )
                consumers.start_soon(self._update_gauges, writer, name="statistics")
                if self.config.topic_pattern:
                    consumers.start_soon(self._discover_topics, consumers, writer, name="topics")
                else:
                    for topic in self.config.topics:
                        self._start_consumers(topic, consumers, writer)
            outer.cancel_scope.cancel()

    async def _wait_for_stop(self, writer: SegmentWriter, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        self._flow.pause(_STOPPING)
        with trio.move_on_after(self.config.stop_timeout_s * (1 - _REQUEUE_PART)):
            await writer.drain()
        # A consumer requeues its unanswered messages when it is closed.
        scope.cancel()

    async def _update_gauges(self, writer: SegmentWriter) -> NoReturn:
        while True:
            writer.hold_retention(self._flow.nsqds)
            self._statistics.connections = self._flow.connections
            self._statistics.topics = len(set(self._flow.consumers.values()))
            await trio.sleep(0.2)

    # Consumers

    def _start_consumers(self, topic: str, consumers: trio.Nursery, writer: SegmentWriter) -> None:
        for number in range(self.config.connections_per_nsqd):
            name = f"consumer {number + 1} of {topic}"
            consumers.start_soon(self._consume, topic, writer, name=name)

    async def _consume(self, topic: str, writer: SegmentWriter) -> None:
        nsqds = self.config.nsqd_share.of_list(self.config.nsqd_tcp_addresses)
        if not nsqds and not self.config.lookupd_http_addresses:
            # There are more receivers than nsqds.
            await trio.sleep_forever()
        while True:
            consumer = Consumer(
                topic,
                self.config.channel,
                nsqd_tcp_addresses=nsqds,
                lookupd_http_addresses=self.config.lookupd_http_addresses,
                config=self.config.client_config(),
                address_filter=self.config.nsqd_share.has,
                drain_timeout_s=self.config.stop_timeout_s * _REQUEUE_PART,
            )
            # Added before it connects, so that it starts with its share.
            self._flow.add_consumer(consumer)
            try:
                async with consumer:
                    async for batch in consumer.batches():
                        writer.add_batch(consumer, batch)
            except ConfigError:
                raise
            except (ClientError, ProtocolError) as error:
                self._may_retry(error)
                log.warning("%s:%s: %s", topic, self.config.channel, error)
            finally:
                self._flow.remove_consumer(consumer)
            await trio.sleep(_RETRY_S)

    def _may_retry(self, error: Exception) -> None:
        """Raise the error if connect_timeout_s has passed without a message."""
        if trio.current_time() >= self._deadline_s and not self._statistics.received:
            raise ReceiverError(
                f"no connection within {self.config.connect_timeout_s:g} s: {error}"
            ) from error

    async def _discover_topics(self, consumers: trio.Nursery, writer: SegmentWriter) -> NoReturn:
        config = self.config
        known: set[str] = set()
        while True:
            try:
                topics = await find_topics(
                    config.lookupd_http_addresses, config.topic_pattern, config.client
                )
            except ClientError as error:
                log.warning("topic discovery failed: %s", error)
                if not known:
                    self._may_retry(error)
                await trio.sleep(_RETRY_S)
                continue
            if len(known | topics) > config.max_topics:
                raise ReceiverError(
                    f"{len(known | topics)} topics match {config.topic_pattern!r}, more than "
                    f"max_topics ({config.max_topics})"
                )
            for topic in sorted(topics - known):
                log.info("found topic %s", topic)
                self._start_consumers(topic, consumers, writer)
            known |= topics
            await trio.sleep(config.client.lookupd_poll_interval_s)


def _is_explained(error: BaseException) -> bool:
    """Whether every exception in it explains itself."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_explained, error.exceptions))
    return isinstance(error, _EXPLAINED)
