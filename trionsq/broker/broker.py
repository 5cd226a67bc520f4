"""The broker: topics, channels and clients, and the tasks that they live in."""

from __future__ import annotations

import logging
from random import Random
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.clock import Clock
from trionsq.broker.options import NsqdOptions
from trionsq.broker.timers import ScanQueue, run_heartbeats, run_queue_scan
from trionsq.broker.topic import Topic
from trionsq.broker.transport import Transport
from trionsq.core.backend import Backend
from trionsq.core.channel import Channel as ChannelCore
from trionsq.core.topic import Topic as TopicCore
from trionsq.durations import MILLISECOND_NS, SECOND_NS
from trionsq.storage.none import DroppingBackend, RefusingBackend
from trionsq.wire.identify import ServerFeatures
from trionsq.wire.names import is_ephemeral
from trionsq.wire.server import CommandLimits

__all__ = ["VERSION", "Broker"]

log = logging.getLogger("trionsq")

# The nsqd whose behaviour this is.
VERSION: Final = "1.3.0"


class Broker:
    """An nsqd without its listeners.

    Attributes:
        options: it runs with.
        topics: by name.
        clients: the connections of now.
        started_s: start time, in whole seconds since the epoch.
        features, limits: what the protocol needs of the options.
        client_failures: connections that ended by a defect of ours.
        tcp_port, http_port: where it listens (-1 for a unix socket, 0 if it does not).
    """

    def __init__(
        self, options: NsqdOptions, clock: Clock | None = None, random: Random | None = None
    ) -> None:
        self.options = options
        self.clock = clock or Clock()
        self.topics: dict[str, Topic] = {}
        self.clients: dict[Client, None] = {}
        self.started_s = self.clock.now_ns() // SECOND_NS
        self.features = _features(options)
        self.limits = _limits(options)
        self.max_msg_timeout_s = options.max_msg_timeout_ns / SECOND_NS
        self.requeue_on_disconnect = options.requeue_on_disconnect
        self.client_failures = 0
        self.tcp_port = 0
        self.http_port = 0
        self._random = random or Random()
        self._scan = ScanQueue()
        self._tasks: trio.Nursery | None = None
        self._connections: trio.Nursery | None = None
        self._stop = trio.Event()

    def __repr__(self) -> str:
        return f"<Broker topics={len(self.topics)} clients={len(self.clients)}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The broker's life, until `stop` or cancellation: then all connections are closed."""
        async with trio.open_nursery() as tasks:
            self._tasks = tasks
            tasks.start_soon(run_queue_scan, self._scan, self.clock, self.options)
            tasks.start_soon(run_heartbeats, self.clients, self.clock)
            async with trio.open_nursery() as connections:
                self._connections = connections
                task_status.started()
                await self._stop.wait()
                connections.cancel_scope.cancel()
            self._say_what_is_lost()
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Begin to end `run`."""
        self._stop.set()

    @property
    def exiting(self) -> bool:
        """Whether `stop` was called: topics and channels are not made or changed any more."""
        return self._stop.is_set()

    @property
    def health(self) -> str:
        """``OK``, or ``NOK -`` and what is wrong, as /ping and /stats tell it."""
        return "OK"

    def _say_what_is_lost(self) -> None:
        kept = sum(
            topic.core.depth
            + sum(
                channel.core.depth + channel.core.in_flight_count + channel.core.deferred_count
                for channel in topic.channels.values()
            )
            for topic in self.topics.values()
        )
        if kept:
            log.warning("NSQ: %d messages were in memory only and end with this process", kept)

    def connect(self, transport: Transport) -> Client:
        """Serve a connection, in a task of its own."""
        assert self._connections is not None, "the broker does not run"
        client = Client(self, transport)
        self.clients[client] = None
        self._connections.start_soon(client.serve)
        return client

    def topic(self, name: str) -> Topic:
        """The topic of that name, made if need be. The name is valid."""
        topic = self.topics.get(name)
        if topic is None:
            assert self._tasks is not None, "the broker does not run"
            core = TopicCore(
                name, self.options.mem_queue_size, self._backend(name), self.options.node_id
            )
            topic = self.topics[name] = Topic(
                core, self.clock, self._new_channel, self._delete_topic
            )
            if isinstance(core.store.backend, DroppingBackend):
                core.store.backend.dropped = core.dropped
            log.info("TOPIC(%s): created", name)
            self._tasks.start_soon(topic.run)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels: their clients are closed, messages dropped.

        Raises:
            KeyError: there is no such topic.
        """
        self._delete_topic(self.topics[name])

    def _delete_topic(self, topic: Topic) -> None:
        log.info("TOPIC(%s): deleting", topic.name)
        del self.topics[topic.name]
        topic.close()

    def _new_channel(self, topic: Topic, name: str) -> Channel:
        assert self._tasks is not None, "the broker does not run"
        core = ChannelCore(name, self.options.mem_queue_size, self._backend(name), self._random)
        if isinstance(core.store.backend, DroppingBackend):
            core.store.backend.dropped = core.dropped
        core.alarm = lambda at_s: self._scan.add(at_s, core)
        channel = Channel(topic, core, self.clock)
        log.info("TOPIC(%s): new channel(%s)", topic.name, name)
        self._tasks.start_soon(channel.run)
        return channel

    def _backend(self, name: str) -> Backend:
        return DroppingBackend() if is_ephemeral(name) else RefusingBackend()


def _features(options: NsqdOptions) -> ServerFeatures:
    # TLS, compression and AUTH are not built, so they are off whatever the options say.
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
        max_deflate_level=options.max_deflate_level,
    )


def _limits(options: NsqdOptions) -> CommandLimits:
    return CommandLimits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_req_timeout_ms=options.max_req_timeout_ns // MILLISECOND_NS,
    )
