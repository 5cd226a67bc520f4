"""The broker: its parts, its tasks, its start and its stop."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Final

import trio

from trionsq.broker.acl import users_of
from trionsq.broker.admission import Admission
from trionsq.broker.auth import AuthServers
from trionsq.broker.auth_commands import guarded_handlers
from trionsq.broker.checks import Checks
from trionsq.broker.chores import Chore, Chores
from trionsq.broker.client import Client, ClientContext
from trionsq.broker.commands import Commands
from trionsq.broker.connection import serve
from trionsq.broker.dead_letters import DeadLetters
from trionsq.broker.defects import Defects
from trionsq.broker.disk_guard import DiskGuard
from trionsq.broker.drain import Drain
from trionsq.broker.heartbeats import TimingWheel
from trionsq.broker.identify import IdentifyCommand, server_features, server_tls
from trionsq.broker.logs import LogTopics
from trionsq.broker.lookup import Lookups
from trionsq.broker.memory_guard import MemoryGuard
from trionsq.broker.metadata import MetadataKeeper
from trionsq.broker.options import NsqdOptions
from trionsq.broker.policies import Policies
from trionsq.broker.registry import TopicRegistry
from trionsq.broker.runtime import Clock, ListeningPorts, LiveOptions, command_limits
from trionsq.broker.saving import retry_until_saved, save_all
from trionsq.broker.statsd import Statsd
from trionsq.broker.timers import run_disk_retries, run_disk_syncs, run_heartbeats, run_queue_scan
from trionsq.broker.topic import Topic
from trionsq.daemon.looplag import LOOP_LAG_BOUNDS_S, watch_loop_lag
from trionsq.disk import Disk
from trionsq.durations import SECOND_NS
from trionsq.histogram import Histogram
from trionsq.storage.folder import DataFolder
from trionsq.storage.letters import DeadLetterStore, SqliteLetters
from trionsq.storage.log.rows import State
from trionsq.storage.log.state import SqliteState
from trionsq.storage.metadata import IdReserve, TopicRecord, load_metadata
from trionsq.transports.poller import Poller
from trionsq.transports.transport import Transport
from trionsq.wire.errors import DRAINING

__all__ = ["Broker"]

log = logging.getLogger("trionsq")

# For the last save of the id reserve. The older reserve on disk is higher, so it is safe too.
_SAVE_IDS_S: Final = 2.0


class Broker:
    """An nsqd without its listeners.

    Attributes:
        live_options: the options that it runs with, and who observes their changes.
        ports: where it listens.
        folder: its data path.
        clock: its two times.
        registry: makes and deletes topics and channels.
        topics: by name.
        clients: the open connections.
        context: what the connections use of it.
        admission: how many connections are open, are allowed, and were refused.
        logs: the topics that have a log.
        dead_letters: what channels gave up.
        policies: what holds for topics and channels by the pattern of their names.
        lookups: the nsqlookupds that it is registered at.
        users, auth_servers: decide who may do what, in this order; None without them.
        statsd: pushes metrics, if --statsd-address is given.
        tls: its side of TLS, None without a certificate.
        started_s: start time, in whole seconds since the epoch.
        defects: unexpected exceptions, and what they cost.
        chores: work that takes more than one turn of the event loop.
        checks: whether the counters of each queue add up.
        loop_lag_s: how late the event loop is, in seconds.
        drain, disk_guard, memory_guard: /config/drain, --min-free-disk and --max-memory.
        unsaved: after `run`, what could not be saved: a line for each topic or channel.
    """

    def __init__(
        self,
        options: NsqdOptions,
        folder: DataFolder,
        clock: Clock | None = None,
        random: Random | None = None,
        open_state: Callable[[Disk], State] = SqliteState,
        open_letters: Callable[[Disk], DeadLetterStore] = SqliteLetters,
        poller: Poller | None = None,  # waits for input
    ) -> None:
        """Make a broker that listens nowhere by itself.

        ``open_state`` opens the state of the logs, ``open_letters`` the dead letters.

        Raises:
            AclError: the file of users can't be used.
            TlsConfigError: the certificate's files can't be used.
        """
        random = random or Random()
        self.live_options = LiveOptions(options)
        self.ports = ListeningPorts()
        self.folder = folder
        self.clock = clock or Clock()
        self.topics: dict[str, Topic] = {}
        self.clients: dict[Client, None] = {}
        self.admission = Admission(
            options.max_connections, options.max_connection_rate, options.max_connection_burst
        )
        self.started_s = self.clock.now_ns() // SECOND_NS
        self.defects = Defects()
        self.loop_lag_s = Histogram(LOOP_LAG_BOUNDS_S)
        self.unsaved: list[str] = []
        self.chores = Chores(self.defects)
        self.drain = Drain(self.topics, options.drain_timeout_ns)
        self.memory_guard = MemoryGuard(self.topics, options.max_memory)
        self.disk_guard = DiskGuard(folder, self.topics, self.drain, options.min_free_disk)
        self.checks = Checks(self.topics, self.clients)
        self.lookups = Lookups(self.live_options, self.ports, self.topics, self.defects)
        self.statsd = Statsd(self, self.defects)
        self.tls = server_tls(options)
        self.auth_servers = AuthServers(options, random) if options.auth_http_address else None
        self.users = users_of(options)
        self.logs = LogTopics(folder, options, self.topics, self.clock, open_state)
        self._poller = Poller() if poller is None else poller
        self.policies = Policies(folder, self.topics, self.clock, self.chores, self.defects)
        self.registry = TopicRegistry(
            self.topics,
            options,
            folder,
            self.clock,
            random,
            self.chores,
            self.defects,
            self.lookups,
            self.logs,
            self.policies,
            self._topics_changed,
            self._poller.turn,
        )
        self.dead_letters = DeadLetters(
            folder, self.clock, self.registry, self.live_options, self.ports, open_letters
        )
        self.context = self._client_context()
        self._metadata = MetadataKeeper(folder, self.registry, self.logs, self.clock.now_ns)
        self._tasks: trio.Nursery | None = None
        self._connections: trio.Nursery | None = None
        self._stop = trio.Event()
        self._ended = trio.Event()

    def _client_context(self) -> ClientContext:
        options = self.options
        has_tokens = self.users is not None and self.users.file.acl.has_tokens
        features = server_features(options, self.registry.keys.epoch, has_tokens=has_tokens)
        commands = Commands(
            self.registry,
            self.clock,
            self.chores,
            IdentifyCommand(features, self.tls, self.clock),
            max_msg_timeout_s=options.max_msg_timeout_ns / SECOND_NS,
            max_channel_consumers=options.max_channel_consumers,
        )
        handlers = guarded_handlers(
            commands.handlers, self.users, self.auth_servers, self.clients, self.clock
        )
        return ClientContext(
            features=features,
            limits=command_limits(options),
            tls_required=options.tls_required != "false",
            requeue_on_disconnect=options.requeue_on_disconnect,
            clock=self.clock,
            defects=self.defects,
            admission=self.admission,
            drain=self.drain,
            clients=self.clients,
            heartbeat_checks=TimingWheel(),
            handlers=handlers,
            poller=self._poller,
        )

    @property
    def options(self) -> NsqdOptions:
        """The options that it runs with now."""
        return self.live_options.current

    def __repr__(self) -> str:
        return f"<Broker topics={len(self.topics)} clients={len(self.clients)}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop`, then close the connections and save the messages.

        An unexpected exception is raised after the messages are saved. A cancellation ends the
        broker at once; messages that are only in memory are lost.

        Raises:
            DataPathError: the data path can't be listed.
            MetadataError: the data path has metadata that can't be understood.
        """
        records = load_metadata(self.folder.disk)
        self.policies.load(self.options.policy_file)
        self.registry.ids_after_ns = IdReserve(self.folder.disk).load()
        saved = False
        try:
            try:
                await self._serve(records, task_status)
            except Exception as error:
                if self.registry.is_loading:
                    raise  # saving an incomplete list of topics would lose the others
                log.critical(
                    "NSQ: stopping because of a defect; saving messages first", exc_info=error
                )
                self.stop()
                await self._save()
                saved = True
                raise
            await self._save()
            saved = True
        finally:
            self._ended.set()
            if not saved:
                self._log_lost_messages()

    async def _serve(self, records: list[TopicRecord], task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as tasks:
            self._tasks = tasks
            self.registry.run_in(tasks)
            await self.registry.load(records)
            await self._metadata.save()
            await self._metadata.reserve_ids()
            self._start_timers(tasks)
            async with trio.open_nursery() as connections:
                self._connections = connections
                task_status.started()
                await self._stop.wait()
                await self.logs.end_rounds()
                connections.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    async def wait_ended(self) -> None:
        """Wait until `run` has ended and has saved what can be saved."""
        await self._ended.wait()

    def _start_timers(self, tasks: trio.Nursery) -> None:
        options, folder, defects = self.options, self.folder, self.defects
        sync_s = options.sync_timeout_ns / SECOND_NS
        heartbeats = partial(run_heartbeats, self.context.heartbeat_checks, self.clock, defects)
        scan = partial(run_queue_scan, self.registry.scan_queue, self.clock, options, defects)
        timers: list[tuple[str, str, Callable[[], Awaitable[None]]]] = [
            ("chore", "long work, in turns", self.chores.run),
            ("check", "checks", self.checks.run),
            ("drain", "drain", self.drain.run),
            ("disk_guard", "disk guard", self.disk_guard.run),
            ("memory_guard", "memory guard", self.memory_guard.run),
            ("scan", "queue scan", scan),
            ("heartbeat", "heartbeats", heartbeats),
            ("disk_sync", "disk syncs", partial(run_disk_syncs, folder, sync_s)),
            ("disk_retry", "disk retries", partial(run_disk_retries, folder)),
            ("log", "snapshots of the logs", self.logs.run),
            ("metadata", "metadata", self._metadata.run),
            ("id_reserve", "message id reserve", self._metadata.run_id_reserve),
            ("lookup", "nsqlookupds", self.lookups.run),
            ("poller", "input of the clients", self.context.poller.run),
            *(("dead_letter", name, run) for name, run in self.dead_letters.tasks()),
            ("policy", "policies", self.policies.run),
            ("loop_lag", "event loop lag", partial(watch_loop_lag, self.loop_lag_s)),
        ]
        if self.users is not None:
            timers.append(("acl", "users of --acl-file", self.users.file.watch))
        if options.statsd_address:
            timers.append(("statsd", "statsd", self.statsd.run))
        for part, name, timer in timers:
            tasks.start_soon(defects.keep_running, part, f"NSQ: {part}", timer, name=name)

    async def save_metadata(self) -> None:
        """Save which topics and channels exist and which are paused.

        A failure is logged, and shows in `health`.
        """
        await self._metadata.save()

    async def _save(self) -> None:
        """Move all messages and metadata to disk, in bounded time."""
        self.registry.finish_deletions()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_metadata_at_last, name="last save of the metadata")
            self.unsaved += await save_all(
                self.topics.values(), self.folder, self.clock.set_back_ns()
            )
            self.unsaved += await self.logs.close()
            await self.dead_letters.close()
        with trio.move_on_after(_SAVE_IDS_S):
            await self._metadata.save_ids()

    async def _save_metadata_at_last(self) -> None:
        if not await retry_until_saved(self._metadata.save):
            self.unsaved.append("the metadata (nsqd.dat)")

    def stop(self) -> None:
        """Have `run` end."""
        self._stop.set()

    @property
    def client_failures(self) -> int:
        """Connections that a defect of nsqd ended."""
        return self.defects.counts["client"]

    @property
    def exiting(self) -> bool:
        """Whether `stop` was called: no topic or channel is made or changed any more."""
        return self._stop.is_set()

    @property
    def not_ready_reason(self) -> str | None:
        """Why clients should use another nsqd now; None if this one is ready."""
        if self.exiting:
            return "exiting"
        if self._tasks is None or self.registry.is_loading:
            return "loading"
        if (fault := self.folder.fault) is not None:
            return f"disk: {fault}"
        return self.disk_guard.reason or (DRAINING if self.drain.is_on else None)

    @property
    def health(self) -> str:
        """``OK``, or ``NOK -`` and the fault, as /ping and /stats show it."""
        fault = self.folder.fault
        if fault is None and self.defects.stopped:
            what, reason = next(iter(self.defects.stopped.items()))
            fault = f"{what} is stopped by a defect of nsqd: {reason}"
        return "OK" if fault is None else f"NOK - {fault}"

    @property
    def defect_counts(self) -> Mapping[str, int]:
        """Unexpected exceptions by the part of nsqd; the disk jobs are one of the parts."""
        return {**self.defects.counts, "disk_job": self.folder.background.defects.count}

    def _log_lost_messages(self) -> None:
        if count := self.registry.count_held():
            log.warning("NSQ: %d messages were in memory only and are lost", count)

    def accept(self, transport: Transport) -> None:
        """Serve a connection as `connect` does, or close it at once if `admission` refuses it."""
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
    def queued_output_bytes(self) -> int:
        """Bytes for clients that their sockets have not accepted yet."""
        return sum(client.output.pending for client in self.clients)

    def connect(self, transport: Transport) -> Client:
        """Serve a connection in a task of its own, without asking `admission`."""
        assert self._connections is not None, "the broker does not run"
        client = Client(self.context, transport)
        self.clients[client] = None
        self.admission.connections += 1
        self._connections.start_soon(serve, client, name=f"client {client.peer}")
        return client

    def topic(self, name: str, storage: str = "") -> Topic:
        """See `TopicRegistry.topic`."""
        return self.registry.topic(name, storage)

    def delete_topic(self, name: str) -> Chore:
        """See `TopicRegistry.delete_topic`."""
        return self.registry.delete_topic(name)

    def _topics_changed(
        self, topic: str, channel: str = "", *, is_ephemeral: bool, gone: bool = False
    ) -> None:
        """See `ChangeListener`."""
        if not channel and not gone:
            self.drain.add_topic(self.topics[topic])
            self.disk_guard.add_topic(self.topics[topic])
        if not is_ephemeral and not self.registry.is_loading:
            self._metadata.changed()
        if gone and not channel:
            self.dead_letters.topic_gone(topic)
        if not self.exiting:
            self.lookups.announce(topic, channel, gone)
