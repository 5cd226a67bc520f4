"""The task that pushes figures to statsd by UDP, every --statsd-interval.

A statsd that is gone, slow or unknown to DNS costs a log line a minute, never more: nothing is
kept for it but the totals of the last push.

Spec: nsqd-internals, section 8.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import trio

from trionsq.broker.memory import memory_figures
from trionsq.broker.statistics import ChannelRow, StatsFilter, TopicRow, statistics
from trionsq.broker.statsd_lines import (
    Counters,
    Datagrams,
    Figure,
    Source,
    channel_figures,
    counters,
    lines,
    prefix_of,
    process_figures,
    topic_figures,
)
from trionsq.durations import SECOND_NS
from trionsq.hostport import split_address

if TYPE_CHECKING:
    from trionsq.broker.broker import Broker

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


# By what the figures are about: whose they are, and the totals of the last push. A topic that is
# made again under the same name begins at 0.
_Told: TypeAlias = dict[Source, tuple[object, Counters]]


class _Push:
    """One push, while its figures are gathered."""

    def __init__(self, last: _Told, datagrams: Datagrams, prefix: str) -> None:
        self.datagrams = datagrams
        self.told: _Told = {}
        self._last = last
        self._prefix = prefix

    def add(self, source: Source, owner: object, figures: Iterable[Figure]) -> None:
        """Add all figures of a topic, a channel or the process, which is ``owner``."""
        shown = list(figures)
        last_owner, before = self._last.get(source, (None, {}))
        for line in lines(shown, before if last_owner is owner else {}, self._prefix):
            self.datagrams.add(line)
        self.told[source] = owner, counters(shown)


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
        self._last: _Told = {}
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
        """All figures. They are gathered in turns, as those of /stats."""
        broker, options = self._broker, self._broker.options
        without_ephemeral = options.statsd_exclude_ephemeral
        push = _Push(self._last, Datagrams(options.statsd_udp_packet_size), statsd_prefix(broker))
        topic = ""
        everything = StatsFilter(clients=False, memory=False)
        async with aclosing(statistics(broker, everything)) as rows:
            async for row in rows:
                match row:
                    case TopicRow(stats, owner):
                        topic = stats["topic_name"]
                        figures = topic_figures(stats, exclude_ephemeral=without_ephemeral)
                        push.add(Source(topic), owner.core, figures)
                    case ChannelRow(stats, channel):
                        source = Source(topic, stats["channel_name"])
                        figures = channel_figures(topic, stats, exclude_ephemeral=without_ephemeral)
                        push.add(source, channel.core, figures)
        if options.statsd_mem_stats:
            push.add(Source(), broker, process_figures(memory_figures()))
        self._last = push.told
        return push.datagrams.end()

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
