"""The broker: topics, channels and clients, and the tasks that they live in."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Final

import trio

from trionsq.broker.admission import Admission
from trionsq.broker.auth import AuthServers
from trionsq.broker.auth_commands import handlers_with_auth
from trionsq.broker.channel import Channel
from trionsq.broker.checks import Checks
from trionsq.broker.chores import Chore, Chores
from trionsq.broker.client import Client
from trionsq.broker.clock import Clock
from trionsq.broker.commands import HANDLERS
from trionsq.broker.defects import Defects
from trionsq.broker.heartbeats import TimingWheel
from trionsq.broker.lookup import Lookups
from trionsq.broker.metadata import MetadataKeeper
from trionsq.broker.options import NsqdOptions
from trionsq.broker.saving import keep_trying, save_all
from trionsq.broker.statsd import Statsd
from trionsq.broker.timers import (
    ScanQueue,
    run_disk_retries,
    run_disk_syncs,
    run_heartbeats,
    run_queue_scan,
)
from trionsq.broker.topic import Topic
from trionsq.broker.upgrade import server_tls
from trionsq.core.channel import ChannelState
from trionsq.core.ids import IdSource
from trionsq.core.latency import Latencies
from trionsq.core.queue import Backend
from trionsq.core.topic import TopicState
from trionsq.daemon.looplag import LOOP_LAG_BOUNDS_S, watch_loop_lag
from trionsq.durations import MILLISECOND_NS, SECOND_NS
from trionsq.histogram import Histogram
from trionsq.storage.background import Background
from trionsq.storage.disk import Disk
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.storage.idfloor import IdFloor
from trionsq.storage.leftover import finish_removals
from trionsq.storage.metadata import TopicRecord, load_metadata
from trionsq.storage.none import DroppingBackend
from trionsq.transports.transport import Transport
from trionsq.wire.identify import ServerFeatures
from trionsq.wire.lines import CommandLimits
from trionsq.wire.names import is_ephemeral

__all__ = ["VERSION", "Broker", "data_folder"]

log = logging.getLogger("trionsq")

# The nsqd whose behaviour this is.
VERSION: Final = "1.3.0"
# With --mem-queue-size=0 ephemeral messages would all be dropped: so many go through memory.
_EPHEMERAL_MEMORY_MIN: Final = 256
_IDS_LIMIT_S: Final = 2.0
# So many names go into a line of the log.
_STRANGERS_MAX: Final = 5


class Broker:
    """An nsqd without its listeners.

    Attributes:
        options: it runs with; replaced as a whole when one of them changes.
        options_changed: called with the new options after each change, in this order.
        folder: its data path.
        lookups: the nsqlookupds that it is registered at.
        auth_servers: that decide who may do what, None if everybody may do all.
        handlers: what is done for each command of a client.
        statsd: pushes figures, if there is an address for them.
        topics: by name.
        clients: the connections of now.
        looks: which client is looked at next, for heartbeats and stalls.
        admission: how many connections there are, may be, and were refused.
        started_s: start time, in whole seconds since the epoch.
        features, limits: what the protocol needs of the options.
        defects: exceptions that nobody expected, and what they cost.
        chores: what takes more than one turn of the event loop.
        checks: whether what queues count adds up.
        loop_lag_s: how late the event loop is, in seconds.
        unsaved: after `run`, what could not be saved: a line for each topic or channel.
        tls: its side of TLS, None without certificate.
        tls_required: clients must begin with TLS.
        tcp_port, http_port, https_port: where it listens (-1 for a unix socket, 0 if it does not).
    """

    def __init__(
        self,
        options: NsqdOptions,
        folder: DataFolder,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """Make it; it listens nowhere by itself.

        Raises:
            TlsConfigError: the certificate's files can't be used.
        """
        self._random = random or Random()
        self.options = options
        self.options_changed: list[Callable[[NsqdOptions], None]] = []
        self.folder = folder
        self.clock = clock or Clock()
        self.lookups = Lookups(self)
        self.auth_servers = (
            AuthServers(options, self._random) if options.auth_http_address else None
        )
        self.handlers = handlers_with_auth(self.auth_servers) if self.auth_servers else HANDLERS
        self.statsd = Statsd(self)
        self.topics: dict[str, Topic] = {}
        self.clients: dict[Client, None] = {}
        self.looks = TimingWheel[Client]()
        self.admission = Admission(
            options.max_connections, options.max_connection_rate, options.max_connection_burst
        )
        self.started_s = self.clock.now_ns() // SECOND_NS
        self.features = _features(options)
        self.limits = _limits(options)
        self.tls = server_tls(options)
        self.tls_required = options.tls_required != "false"
        self.max_msg_timeout_s = options.max_msg_timeout_ns / SECOND_NS
        self.requeue_on_disconnect = options.requeue_on_disconnect
        self.defects = Defects()
        self.loop_lag_s = Histogram(LOOP_LAG_BOUNDS_S)
        self.unsaved: list[str] = []
        self.tcp_port = 0
        self.http_port = 0
        self.https_port = 0
        self.chores = Chores(self.defects)
        self.checks = Checks(self.topics, self.clients)
        self._scan = ScanQueue()
        # Topics under deletion that still have channels, by name.
        self._closing: dict[str, list[Topic]] = {}
        self._tasks: trio.Nursery | None = None
        self._connections: trio.Nursery | None = None
        self._stop = trio.Event()
        self._ended = trio.Event()
        self._metadata = MetadataKeeper(
            folder, self.topics, lambda: self._ids_after_ns, self.clock.now_ns
        )
        self._loading = False
        self._ids_after_ns = 0

    def __repr__(self) -> str:
        return f"<Broker topics={len(self.topics)} clients={len(self.clients)}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The broker's life, until `stop`: then connections are closed, messages saved.

        If an exception ends it that nobody expected, messages are saved all the same, and then it
        is raised. Cancellation ends it at once, and what is in memory only is lost.

        Raises:
            MetadataError: there are metadata that can't be understood.
        """
        records = load_metadata(self.folder.disk)
        self._ids_after_ns = IdFloor(self.folder.disk).load()
        saved = False
        try:
            try:
                await self._serve(records, task_status)
            except Exception as error:
                if self._loading:
                    raise  # to write down the topics that there are so far would lose the others
                log.critical("NSQ: ends by a defect; messages are saved first", exc_info=error)
                self.stop()
                await self._save()
                saved = True
                raise
            await self._save()
            saved = True
        finally:
            self._ended.set()
            if not saved:
                self._say_what_is_lost()

    async def _serve(self, records: list[TopicRecord], task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as tasks:
            self._tasks = tasks
            self._load(records)
            await self._metadata.save()
            await self._metadata.reserve_ids()
            self._start_timers(tasks)
            async with trio.open_nursery() as connections:
                self._connections = connections
                task_status.started()
                await self._stop.wait()
                connections.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    async def wait_ended(self) -> None:
        """Wait until `run` has ended: all that could be saved is saved."""
        await self._ended.wait()

    def _start_timers(self, tasks: trio.Nursery) -> None:
        options, folder, defects = self.options, self.folder, self.defects
        sync_s = options.sync_timeout_ns / SECOND_NS
        timers: dict[str, Callable[[], Awaitable[None]]] = {
            "chore": self.chores.run,
            "check": self.checks.run,
            "scan": partial(run_queue_scan, self._scan, self.clock, options, defects),
            "heartbeat": partial(run_heartbeats, self.looks, self.clock, defects),
            "disk_sync": partial(run_disk_syncs, folder, sync_s),
            "disk_retry": partial(run_disk_retries, folder),
            "metadata": self._metadata.run,
            "id_reserve": self._metadata.run_id_reserve,
            "lookup": self.lookups.run,
            "loop_lag": partial(watch_loop_lag, self.loop_lag_s),
        }
        if options.statsd_address:
            timers["statsd"] = self.statsd.run
        for part, timer in timers.items():
            tasks.start_soon(defects.keep_running, part, f"NSQ: {part}", timer, name=timer)

    def _load(self, records: list[TopicRecord]) -> None:
        """Make the topics and channels that the metadata name."""
        self._loading = True
        for record in records:
            topic = self.topic(record.name)
            topic.core.paused = record.paused
            for channel_record in record.channels:
                channel = topic.channel(channel_record.name)
                channel.core.paused = channel_record.paused
        self._loading = False
        self._tell_strangers()

    def _tell_strangers(self) -> None:
        """Say which files wait for a topic or channel of their name to be made, as in nsqd."""
        known = {
            queue
            for topic in self.topics.values()
            for queue in (topic.name, *(f"{topic.name}:{name}" for name in topic.channels))
        }
        if strangers := finish_removals(self.folder, self.folder.strangers(known)):
            log.warning(
                "NSQ: messages on disk of %d topics or channels that there are not come back if "
                "one of that name is made: %s",
                len(strangers),
                ", ".join(strangers[:_STRANGERS_MAX]),
            )

    async def save_metadata(self) -> None:
        """Write down which topics and channels there are and which are paused.

        A failure is logged, and shows in `health`.
        """
        await self._metadata.save()

    async def _save(self) -> None:
        """Move everything to disk, in bounded time."""
        for topic in [topic for topics in self._closing.values() for topic in topics]:
            for name in list(topic.channels):
                topic.delete_channel(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_metadata_at_last)
            self.unsaved += await save_all(self.topics.values(), self.folder)
        # Tried once: if it fails, the reserve on disk stands, which is higher.
        with trio.move_on_after(_IDS_LIMIT_S):
            await self._metadata.save_ids()

    async def _save_metadata_at_last(self) -> None:
        if not await keep_trying(self._metadata.save):
            self.unsaved.append("the metadata (nsqd.dat)")

    def change_log_level(self, level: str) -> None:
        """Log from ``level`` on: debug, info, warn, error or fatal."""
        self._change(dataclasses.replace(self.options, log_level=level))

    def change_lookupds(self, addresses: tuple[str, ...] | None) -> None:
        """Announce topics and channels to other nsqlookupds; None shows as null in /config."""
        self._change(dataclasses.replace(self.options, lookupd_tcp_address=addresses))

    def _change(self, options: NsqdOptions) -> None:
        self.options = options
        for changed in self.options_changed:
            changed(options)

    def stop(self) -> None:
        """Begin to end `run`."""
        self._stop.set()

    @property
    def client_failures(self) -> int:
        """Connections that ended by a defect of nsqd."""
        return self.defects.counts["client"]

    @property
    def exiting(self) -> bool:
        """Whether `stop` was called: topics and channels are not made or changed any more."""
        return self._stop.is_set()

    @property
    def unready(self) -> str | None:
        """Why clients had better go elsewhere now, None if they need not."""
        if self.exiting:
            return "exiting"
        if self._tasks is None or self._loading:
            return "loading"
        fault = self.folder.fault
        return None if fault is None else f"disk: {fault}"

    @property
    def health(self) -> str:
        """``OK``, or ``NOK -`` and what is wrong, as /ping and /stats tell it."""
        fault = self.folder.fault
        if fault is None and self.defects.stopped:
            what, reason = next(iter(self.defects.stopped.items()))
            fault = f"{what} is stopped by a defect of nsqd: {reason}"
        return "OK" if fault is None else f"NOK - {fault}"

    @property
    def defect_counts(self) -> Mapping[str, int]:
        """Exceptions that nobody expected, by the part of nsqd, the disk jobs among them."""
        return {**self.defects.counts, "disk_job": self.folder.background.defects.count}

    def _say_what_is_lost(self) -> None:
        kept = sum(
            topic.core.held + sum(channel.core.held for channel in topic.channels.values())
            for topic in self.topics.values()
        )
        if kept:
            log.warning("NSQ: %d messages were in memory only and end with this process", kept)

    def accept(self, transport: Transport) -> None:
        """Serve a connection as `connect` does; close it at once if `admission` has it so."""
        try:
            admitted = not self.exiting and self.admission.admit(
                transport.host, transport.peer, self.clock.now_s()
            )
            if admitted:
                self.connect(transport)
                return
        except Exception as error:
            self.defects.note("client", f"client({transport.peer})", error)
        transport.close()

    @property
    def queued_output_nbytes(self) -> int:
        """Bytes for clients that their sockets have not taken yet."""
        return sum(client.output.pending for client in self.clients)

    def connect(self, transport: Transport) -> Client:
        """Serve a connection, in a task of its own, however many there are."""
        assert self._connections is not None, "the broker does not run"
        client = Client(self, transport)
        self.clients[client] = None
        self.admission.connections += 1
        self._connections.start_soon(client.serve)
        return client

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if need be. The name is valid.

        Where a command makes it, `Topic.claim_wait` tells what that has to wait for.
        """
        topic = self.topics.get(name)
        if topic is None:
            assert self._tasks is not None, "the broker does not run"
            ids = IdSource(self.options.node_id, self._ids_after_ns)
            core = TopicState(name, self._memory_limit(name), self._backend(name, name), ids)
            topic = self.topics[name] = Topic(
                core,
                self.clock,
                self.chores,
                self._new_channel,
                self._delete_topic,
                self._channel_gone,
            )
            if isinstance(core.store.backend, DroppingBackend):
                core.store.backend.dropped = core.dropped
            log.info("TOPIC(%s): created", name)
            self._changed(topic.is_ephemeral, name)
            if self.lookups.known:
                topic.prepare()
                self._tasks.start_soon(topic.run, self.defects, self.lookups.channels)
            else:
                self._tasks.start_soon(topic.run, self.defects)
        return topic

    def delete_topic(self, name: str) -> Chore:
        """Delete a topic with its channels: their clients are closed, messages dropped.

        It has no effect any more on what happens under its name; the chore does the work.

        Raises:
            KeyError: there is no such topic.
        """
        return self._delete_topic(self.topics[name])

    def _delete_topic(self, topic: Topic) -> Chore:
        log.info("TOPIC(%s): deleting", topic.name)
        del self.topics[topic.name]
        # A topic of that name may be made again, and its ids must not be these.
        self._ids_after_ns = max(self._ids_after_ns, topic.core.ids.until_ns)
        chore = topic.close()
        if topic.channels:
            self._closing.setdefault(topic.name, []).append(topic)
        self._changed(topic.is_ephemeral, topic.name, gone=True)
        return chore

    def _new_channel(self, topic: Topic, name: str) -> Channel:
        assert self._tasks is not None, "the broker does not run"
        self._delete_old_channel(topic.name, name)
        backend = self._backend(name, f"{topic.name}:{name}")
        core = ChannelState(name, self._memory_limit(name), backend, self._random)
        if isinstance(core.store.backend, DroppingBackend):
            core.store.backend.dropped = core.dropped
        if isinstance(backend, DiskQueue) and backend.is_recovering():
            core.store.is_recovering = backend.is_recovering
        core.failed = partial(self.defects.note, "channel", f"CHANNEL({topic.name}:{name})")
        core.wake_at = partial(self._scan.set_time, core)
        if self.options.e2e_processing_latency_percentile:
            window_s = self.options.e2e_processing_latency_window_time_ns / SECOND_NS
            core.latencies = Latencies(window_s, self.clock.now_ns, self.clock.now_s())
        channel = Channel(topic, core, self.clock, self.chores)
        log.info("TOPIC(%s): new channel(%s)", topic.name, name)
        self._changed(topic.is_ephemeral or channel.is_ephemeral, topic.name, name)
        self._tasks.start_soon(channel.run, self.defects)
        return channel

    def _delete_old_channel(self, topic_name: str, name: str) -> None:
        """Of a deleted topic of that name: its files must be gone before there are new ones."""
        closing = self._closing.get(topic_name, [])
        for topic in list(closing):
            if name in topic.channels:
                topic.delete_channel(name)

    def _channel_gone(self, channel: Channel) -> None:
        topic = channel.topic
        if not topic.channels and topic in (closing := self._closing.get(topic.name, [])):
            closing.remove(topic)
            if not closing:
                del self._closing[topic.name]
        is_ephemeral = topic.is_ephemeral or channel.is_ephemeral
        self._changed(is_ephemeral, topic.name, channel.name, gone=True)

    def _changed(
        self, is_ephemeral: bool, topic: str, channel: str = "", *, gone: bool = False
    ) -> None:
        """A topic or one of its channels was made or deleted."""
        if not is_ephemeral and not self._loading:
            self._metadata.changed()
        if not self.exiting:
            self.lookups.changed(topic, channel, gone)

    def _memory_limit(self, name: str) -> int:
        size = self.options.mem_queue_size
        return max(size, _EPHEMERAL_MEMORY_MIN) if is_ephemeral(name) and not size else size

    def _backend(self, name: str, queue: str) -> Backend:
        """``queue`` is the name of the disk queue."""
        return DroppingBackend() if is_ephemeral(name) else DiskQueue(queue, self.folder)


def data_folder(options: NsqdOptions, disk: Disk, background: Background) -> DataFolder:
    """The data path with what the options say of it."""
    return DataFolder(
        disk,
        background,
        file_nbytes_max=options.max_bytes_per_file,
        body_nbytes_max=options.max_msg_size,
        sync_every=options.sync_every,
    )


def _features(options: NsqdOptions) -> ServerFeatures:
    return ServerFeatures(
        version=VERSION,
        max_rdy_count=options.max_rdy_count,
        msg_timeout_ms=options.msg_timeout_ns // MILLISECOND_NS,
        max_msg_timeout_ms=options.max_msg_timeout_ns // MILLISECOND_NS,
        max_heartbeat_interval_ms=options.max_heartbeat_interval_ns // MILLISECOND_NS,
        output_buffer_timeout_ms=options.output_buffer_timeout_ns // MILLISECOND_NS,
        min_output_buffer_timeout_ms=options.min_output_buffer_timeout_ns // MILLISECOND_NS,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout_ns // MILLISECOND_NS,
        max_output_buffer_size=options.max_output_buffer_size,
        tls_v1=bool(options.tls_cert or options.tls_key),
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        snappy=options.snappy,
        auth_required=bool(options.auth_http_address),
    )


def _limits(options: NsqdOptions) -> CommandLimits:
    return CommandLimits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_req_timeout_ms=options.max_req_timeout_ns // MILLISECOND_NS,
    )
