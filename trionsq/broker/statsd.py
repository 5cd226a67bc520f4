"""The task that pushes figures to statsd by UDP, every --statsd-interval.

A statsd that is gone, slow or unknown to DNS costs a log line a minute, never more: nothing is
kept for it but the totals of the last push.

Spec: nsqd-internals, section 8.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import trio

from trionsq.broker.memory import memory_figures
from trionsq.broker.statistics import StatsFilter, topic_stats
from trionsq.broker.statsd_lines import (
    Counters,
    Figure,
    Source,
    counters,
    lines,
    packed,
    prefix_of,
    process_figures,
    topic_figures,
)
from trionsq.durations import SECOND_NS
from trionsq.listener import split_address

if TYPE_CHECKING:
    from trionsq.broker.broker import Broker
    from trionsq.broker.topic import Topic

__all__ = ["DatagramSocket", "Statsd", "connect_udp", "statsd_prefix"]

log = logging.getLogger("trionsq")

# A push is spread over the interval less so much, which is why that must be longer.
_SPARE_S: Final = 1.0
_LOG_INTERVAL_S: Final = 60.0


class DatagramSocket(Protocol):
    """A connected UDP socket."""

    def send(self, data: bytes, /) -> Awaitable[int]: ...
    def close(self) -> None: ...


Connect: TypeAlias = Callable[[str], Awaitable[DatagramSocket]]


async def connect_udp(address: str) -> DatagramSocket:
    """A socket whose datagrams go to ``host:port``; the name is looked up now.

    Raises:
        OSError: the address is malformed, unknown, or there is no way to it.
    """
    target = split_address(address)
    if target is None:
        raise OSError(f"not an address of the form host:port: {address}")
    host, port = target
    try:
        found = await trio.socket.getaddrinfo(host or "localhost", port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        raise OSError(f"no name of a host: {host}") from error
    failure: OSError | None = None
    for family, type_, proto, _, place in found:
        connected = trio.socket.socket(family, type_, proto)
        try:
            await connected.connect(place)
        except OSError as error:
            connected.close()
            failure = error
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise failure or OSError(f"no address for {host}")


def statsd_prefix(broker: Broker) -> str:
    """What the names of this nsqd begin with."""
    options = broker.options
    port = options.broadcast_http_port or broker.http_port
    return prefix_of(options.statsd_prefix, options.broadcast_address, port)


class Statsd:
    """The pushes of one broker.

    Attributes:
        connect: makes the socket of a push; tests put theirs here.
        errors: pushes and datagrams that could not be sent, since the start.
    """

    def __init__(self, broker: Broker) -> None:
        self.connect: Connect = connect_udp
        self.errors = 0
        self._broker = broker
        self._before: Counters = {}
        # Whose the totals are: a topic made again under the same name begins at 0.
        self._owners: dict[Source, object] = {}
        self._errors_logged = 0
        self._log_from_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Statsd {self._broker.options.statsd_address} errors={self.errors}>"

    async def run(self) -> None:
        """Push, for ever, the first time after an interval."""
        interval_s = self._broker.options.statsd_interval_ns / SECOND_NS
        next_s = trio.current_time()
        while True:
            next_s = max(next_s + interval_s, trio.current_time())
            await trio.sleep_until(next_s)
            try:
                with trio.move_on_after(interval_s) as scope:
                    await self._push(next_s + interval_s - _SPARE_S)
                if scope.cancelled_caught:
                    self._say("a push took longer than the interval")
            except OSError as error:
                self._say(error)
            except Exception as error:
                self._broker.defects.note("statsd", "STATSD: a push", error)

    async def _push(self, until_s: float) -> None:
        options = self._broker.options
        # First: if there is no socket, the increase is part of the next push.
        target = await self.connect(options.statsd_address)
        try:
            datagrams = await self._datagrams()
            pause_s = max(0.0, until_s - trio.current_time()) / max(1, len(datagrams))
            for place, datagram in enumerate(datagrams):
                if place:
                    await trio.sleep(pause_s)
                try:
                    await target.send(datagram)
                except OSError as error:
                    self._say(error)
        finally:
            target.close()

    async def _datagrams(self) -> list[bytes]:
        broker, options = self._broker, self._broker.options
        shown: list[Figure] = []
        owners: dict[Source, object] = {}
        for name in sorted(broker.topics):
            topic = broker.topics.get(name)
            if topic is not None:
                stats = topic_stats(broker, topic, StatsFilter(clients=False))
                shown += topic_figures(stats, exclude_ephemeral=options.statsd_exclude_ephemeral)
                owners |= _owners(topic)
            # One of many channels takes its time: others get their turn after each.
            await trio.lowlevel.checkpoint()
        if options.statsd_mem_stats:
            shown += process_figures(memory_figures())
        before = {
            (source, key): total
            for (source, key), total in self._before.items()
            if owners.get(source) is self._owners.get(source)
        }
        self._before, self._owners = counters(shown), owners
        return packed(lines(shown, before, statsd_prefix(broker)), options.statsd_udp_packet_size)

    def _say(self, error: object) -> None:
        """Count what went wrong; at most once a minute it is logged, with what was not."""
        self.errors += 1
        now_s = trio.current_time()
        if now_s < self._log_from_s:
            return
        self._log_from_s = now_s + _LOG_INTERVAL_S
        log.error(
            "STATSD(%s): %s; %d errors since the last such line",
            self._broker.options.statsd_address,
            error,
            self.errors - self._errors_logged,
        )
        self._errors_logged = self.errors


def _owners(topic: Topic) -> dict[Source, object]:
    channels = topic.channels.values()
    owners: dict[Source, object] = {Source(topic.name, one.name): one.core for one in channels}
    owners[Source(topic.name)] = topic.core
    return owners
