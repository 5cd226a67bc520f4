"""nsqd and its nsqlookupds: a task for each, and what they are asked when a topic is new.

Spec: nsqd-internals, sections 1 (channel pre-creation) and 9.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import trio

from trionsq import NSQ_VERSION, httpget
from trionsq.broker.lookup_channels import ANSWER_NBYTES_MAX, ask_for_channels
from trionsq.broker.lookup_peer import LookupPeer, Registration
from trionsq.wire.lookup import LookupdInfo

if TYPE_CHECKING:
    from trionsq.broker.broker import Broker
    from trionsq.broker.options import NsqdOptions
    from trionsq.broker.topic import Topic

__all__ = ["Lookups"]

log = logging.getLogger("trionsq")

Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]


class Lookups:
    """All nsqlookupds that are configured now.

    Attributes:
        peers: by address.
        dial: connects to a host and a port, also for HTTP; tests put theirs here.
    """

    def __init__(self, broker: Broker) -> None:
        self.peers: dict[str, LookupPeer] = {}
        self.dial: Dial = trio.open_tcp_stream
        self._broker = broker
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Lookups {list(self.peers.values())}>"

    async def run(self) -> None:
        """Keep all of them informed, for ever; which ones that are follows the options."""
        broker = self._broker
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            broker.options_changed.append(self._follow)
            try:
                self._follow(broker.options)
                await trio.sleep_forever()
            finally:
                broker.options_changed.remove(self._follow)
                self.peers.clear()

    def _follow(self, options: NsqdOptions) -> None:
        """Let go of those that are no longer listed, and begin with new ones."""
        assert self._nursery is not None
        wanted = dict.fromkeys(options.lookupd_tcp_address or ())
        for address in [address for address in self.peers if address not in wanted]:
            self.peers.pop(address).close()
        for address in wanted:
            if address not in self.peers:
                peer = self.peers[address] = LookupPeer(address, self._broker, self)
                self._nursery.start_soon(peer.run, name=f"nsqlookupd {peer.shown}")

    def changed(self, topic: str, channel: str, gone: bool) -> None:
        """A topic (with ``channel`` empty) or a channel was created, or is ``gone``."""
        what = Registration(topic, channel)
        for peer in self.peers.values():
            peer.changed(what, gone)

    @property
    def known(self) -> list[LookupdInfo]:
        """Those that can be asked: they have identified themselves, though perhaps long ago."""
        return [peer.info for peer in self.peers.values() if peer.info is not None]

    async def channels(self, topic: str) -> list[str]:
        """The channels, except ephemeral ones, that a topic has at other nsqds.

        It takes --http-client-request-timeout at most. Failures are logged.
        """
        options = self._broker.options

        async def get(url: str) -> httpget.Answer:
            return await httpget.get(
                url,
                {"Accept": "application/vnd.nsq; version=1.0"},
                options.http_client_connect_timeout_ns / 1e9,
                options.http_client_request_timeout_ns / 1e9,
                min(options.max_body_size, ANSWER_NBYTES_MAX),
                dial=self.dial,
            )

        try:
            return await ask_for_channels(self.known, topic, get)
        except Exception as error:
            # It costs these channels, not the topic.
            self._broker.defects.note("lookup", f"TOPIC({topic}): asking for channels", error)
            return []

    # What the peers announce

    def identity(self) -> dict[str, str | int]:
        """What IDENTIFY says of this nsqd."""
        broker, options = self._broker, self._broker.options
        return {
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": options.broadcast_http_port or broker.http_port,
            "tcp_port": options.broadcast_tcp_port or broker.tcp_port,
            "version": NSQ_VERSION,
        }

    def registrations(self) -> Iterator[Registration]:
        """Yield all channels, and the topics without any, of the topics that there are now.

        It may be read on while topics and channels come and go: those that have come since need
        not be among them, those that are gone may be.
        """
        return self._registrations(list(self._broker.topics.values()))

    def _registrations(self, topics: list[Topic]) -> Iterator[Registration]:
        for topic in topics:
            for channel in list(topic.channels) or [""]:
                yield Registration(topic.name, channel)

    def has(self, what: Registration) -> bool:
        """Whether there is that topic or channel now."""
        topic = self._broker.topics.get(what.topic)
        return topic is not None and (not what.channel or what.channel in topic.channels)
