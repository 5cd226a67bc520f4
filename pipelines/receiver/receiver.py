"""The receiver: a thread with trio, in it the consumers and the writer.

Tasks: the writer; for each topic and connection a consumer (with the client library's tasks below
it); one that looks for topics if there is a pattern; one that ends all when told to.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Final, NoReturn

import trio

from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.errors import ReceiverError
from pipelines.receiver.flow import Flow
from pipelines.receiver.statistics import Statistics
from pipelines.receiver.topics import find_topics
from pipelines.receiver.writer import Writer
from pipelines.wal import Wal, WalError
from trionsq.client import ClientError, ConfigError, Consumer, ProtocolError
from trionsq.logtext import first_error

__all__ = ["Receiver"]

log = logging.getLogger("pipelines.receiver")

# Their texts say what is wrong; of anything else only its trace does.
_EXPLAINED: Final = (ReceiverError, WalError, ClientError, ProtocolError)
_STOPPING: Final = "the end"
_RETRY_S: Final = 1.0
# Of stop_timeout_s: for giving messages back; and what is added for the thread's own end.
_GIVE_BACK_PART: Final = 0.4
_THREAD_S: Final = 2.0


class Receiver:
    """Fills a log from nsqds. `start`, `stop` and the rest may be called from any thread.

    It does not close the log.
    """

    def __init__(self, config: ReceiverConfig, wal: Wal) -> None:
        self.config = config
        self.wal = wal
        self._figures = Statistics()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()
        self._flow = Flow(config)
        self._deadline_s = 0.0

    def __repr__(self) -> str:
        return f"<Receiver {self.config.channel} {self._figures}>"

    # For other threads

    def start(self) -> None:
        """Start the thread; it connects by itself. Once; raises RuntimeError the second time."""
        if self._thread is not None:
            raise RuntimeError("the receiver was started already")
        self._thread = threading.Thread(target=self._run, name="nsq receiver", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def end(self) -> int:
        """The log's end: what is before it is durable, and finished or about to be."""
        return self.wal.end

    def statistics(self) -> dict[str, int]:
        """Figures by name, see `pipelines.receiver.statistics.Statistics`; and the log's."""
        log_figures = {
            "wal_nbytes": self.wal.nbytes,
            "wal_segments": self.wal.segment_count,
            "wal_first": self.wal.first,
            "wal_end": self.wal.end,
            "wal_committed": self.wal.committed,
        }
        return self._figures.as_dict() | log_figures

    def check(self) -> None:
        """Raise ReceiverError if the thread has failed; its cause is attached."""
        if self._failure is not None:
            raise ReceiverError(f"the receiver failed: {self._failure}") from self._failure

    def stop(self) -> None:
        """Take no more, store and finish what was received, give back the rest, end the thread.

        A second call does nothing. Takes up to ``stop_timeout_s`` and a little.

        Raises:
            ReceiverError: it did not end in time (the disk hangs, most likely).
        """
        if self._thread is None:
            return
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
        limit_s = self.config.stop_timeout_s + _THREAD_S
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise ReceiverError(f"the receiver did not end within {limit_s:g} s")

    # The thread

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            # Consumers mostly fail all at once and for one reason.
            self._failure = first_error(error)
            trace = None if _is_explained(error) else error
            log.error("the receiver failed: %s", self._failure, exc_info=trace)
        finally:
            self._figures.connections = 0
            self._started.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._deadline_s = trio.current_time() + self.config.connect_timeout_s
        self._started.set()
        writer = Writer(self.config, self.wal, self._flow, self._figures)
        async with trio.open_nursery() as outer:
            outer.start_soon(writer.run, name="writer")
            async with trio.open_nursery() as consumers:
                consumers.start_soon(
                    self._end_when_told, writer, consumers.cancel_scope, name="end"
                )
                consumers.start_soon(self._count, name="figures")
                if self.config.topic_pattern:
                    consumers.start_soon(self._look_for_topics, consumers, writer, name="topics")
                else:
                    for topic in self.config.topics:
                        self._begin(topic, consumers, writer)
            outer.cancel_scope.cancel()

    async def _end_when_told(self, writer: Writer, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        self._flow.hold(_STOPPING)
        with trio.move_on_after(self.config.stop_timeout_s * (1 - _GIVE_BACK_PART)):
            await writer.drain()
        # Consumers give back what is unanswered when they are left.
        scope.cancel()

    async def _count(self) -> NoReturn:
        while True:
            self._figures.connections = self._flow.connections
            self._figures.topics = len(set(self._flow.consumers.values()))
            await trio.sleep(0.2)

    # Consumers

    def _begin(self, topic: str, consumers: trio.Nursery, writer: Writer) -> None:
        for number in range(self.config.connections_per_nsqd):
            name = f"consumer {number + 1} of {topic}"
            consumers.start_soon(self._consume, topic, writer, name=name)

    async def _consume(self, topic: str, writer: Writer) -> None:
        while True:
            consumer = Consumer(
                topic,
                self.config.channel,
                nsqd_tcp_addresses=self.config.nsqd_tcp_addresses,
                lookupd_http_addresses=self.config.lookupd_http_addresses,
                config=self.config.client_config(),
                drain_timeout_s=self.config.stop_timeout_s * _GIVE_BACK_PART,
            )
            # Known before it is connected: it must not begin with more than its share.
            self._flow.add(consumer)
            try:
                async with consumer:
                    async for batch in consumer.batches():
                        writer.take(consumer, batch)
            except ConfigError:
                raise
            except (ClientError, ProtocolError) as error:
                self._may_retry(error)
                log.warning("%s: %s", topic, error)
            finally:
                self._flow.remove(consumer)
            await trio.sleep(_RETRY_S)

    def _may_retry(self, error: Exception) -> None:
        """Raise the error once too much time has passed without any success."""
        if trio.current_time() >= self._deadline_s and not self._figures.received:
            raise ReceiverError(
                f"no connection within {self.config.connect_timeout_s:g} s: {error}"
            ) from error

    async def _look_for_topics(self, consumers: trio.Nursery, writer: Writer) -> NoReturn:
        config = self.config
        known: set[str] = set()
        while True:
            try:
                found = await find_topics(
                    config.lookupd_http_addresses, config.topic_pattern, config.client
                )
            except ClientError as error:
                log.warning("no topics: %s", error)
                if not known:
                    self._may_retry(error)
                await trio.sleep(_RETRY_S)
                continue
            if len(known | found) > config.topics_max:
                raise ReceiverError(
                    f"{len(known | found)} topics match {config.topic_pattern!r}, more than "
                    f"topics_max ({config.topics_max})"
                )
            for topic in sorted(found - known):
                log.info("found topic %s", topic)
                self._begin(topic, consumers, writer)
            known |= found
            await trio.sleep(config.client.lookupd_poll_interval_s)


def _is_explained(error: BaseException) -> bool:
    """Whether nothing in it is a defect."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_explained, error.exceptions))
    return isinstance(error, _EXPLAINED)
