"""The nsqlookupds of nsqd: a task for each, and the channels that they have for a new topic.

Spec: nsqd-internals, sections 1 (channel pre-creation) and 9.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote

import msgspec
import trio

from trionsq import NSQ_VERSION, httpget
from trionsq.broker.defects import Defects
from trionsq.broker.lookup_peer import LookupPeer, Registration
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import ListeningPorts, LiveOptions
from trionsq.broker.topic import Topic
from trionsq.daemon.tokens import bearer_of, read_token
from trionsq.logtext import printable
from trionsq.wire.lookup import LookupdInfo
from trionsq.wire.names import is_ephemeral, is_valid_name

__all__ = ["Lookups"]

log = logging.getLogger("trionsq")

Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]

# An answer of this size has 10,000 names of 100 bytes. It is decoded in one go, in 10 ms at most.
_MAX_ANSWER_BYTES: Final = 1 << 20
_MAX_CHANNELS: Final = 10_000
# Names that are checked before other tasks get their turn.
_NAMES_PER_TURN: Final = 512
# Invalid names of one answer that the log shows.
_MAX_LOGGED_NAMES: Final = 10


class Lookups:
    """The nsqlookupds of the current options.

    Attributes:
        peers: by address.
        dial: connects to a host and a port, for HTTP too. Tests replace it.
    """

    def __init__(
        self,
        live_options: LiveOptions,
        ports: ListeningPorts,
        topics: Mapping[str, Topic],
        defects: Defects,
    ) -> None:
        self.peers: dict[str, LookupPeer] = {}
        self.dial: Dial = trio.open_tcp_stream
        self._live_options = live_options
        self._ports = ports
        self._topics = topics
        self._defects = defects
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Lookups {list(self.peers.values())}>"

    async def run(self) -> None:
        """Keep the nsqlookupds informed until cancelled, and follow changes of the options."""
        observers = self._live_options.observers
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            observers.append(self._follow)
            try:
                self._follow(self._live_options.current)
                await trio.sleep_forever()
            finally:
                observers.remove(self._follow)
                self.peers.clear()

    def _follow(self, options: NsqdOptions) -> None:
        """Close the peers that are no longer listed, and start new ones."""
        assert self._nursery is not None
        addresses = dict.fromkeys(options.lookupd_tcp_address or ())
        for address in [address for address in self.peers if address not in addresses]:
            self.peers.pop(address).close()
        for address in addresses:
            if address not in self.peers:
                peer = self.peers[address] = LookupPeer(
                    address, self, self._defects, options.max_body_size
                )
                self._nursery.start_soon(peer.run, name=f"nsqlookupd {peer.label}")

    def announce(self, topic: str, channel: str, gone: bool) -> None:
        """Tell all peers of a new topic (empty ``channel``) or channel, or that it is ``gone``."""
        registration = Registration(topic, channel)
        for peer in self.peers.values():
            peer.announce(registration, gone)

    @property
    def known(self) -> list[LookupdInfo]:
        """The nsqlookupds that have said where to send HTTP requests, perhaps long ago."""
        return [peer.info for peer in self.peers.values() if peer.info is not None]

    async def channels(self, topic: str) -> list[str]:
        """The channels that a topic has at other nsqds, without ephemeral ones.

        This takes --http-client-request-timeout at most. Failures are logged.
        """
        options = self._live_options.current
        try:
            authorization = bearer_of(options.lookupd_token_file)
        except OSError as error:
            log.error("LOOKUP: --lookupd-token-file: %s", error)
            authorization = {}

        async def get(url: str) -> httpget.Answer:
            return await httpget.get(
                url,
                {"Accept": "application/vnd.nsq; version=1.0"} | authorization,
                options.http_client_connect_timeout_ns / 1e9,
                options.http_client_request_timeout_ns / 1e9,
                min(options.max_body_size, _MAX_ANSWER_BYTES),
                dial=self.dial,
            )

        try:
            return await ask_for_channels(self.known, topic, get)
        except Exception as error:
            # The topic is made without these channels.
            self._defects.note("lookup", f"TOPIC({topic}): asking for channels", error)
            return []

    # What the peers register

    def identity(self) -> dict[str, str | int]:
        """The fields of IDENTIFY about this nsqd; the token is ours, if there is one."""
        options = self._live_options.current
        try:
            path = options.lookupd_token_file
            token = {"auth_token": read_token(path)} if path else {}
        except OSError as error:
            log.error("LOOKUP: --lookupd-token-file: %s", error)
            token = {}
        return {
            **token,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": options.broadcast_http_port or self._ports.http,
            "tcp_port": options.broadcast_tcp_port or self._ports.tcp,
            "version": NSQ_VERSION,
        }

    def registrations(self) -> Iterator[Registration]:
        """Yield each channel, and each topic without channels, of the current topics.

        Topics and channels may come and go during the iteration. New ones may be missing, deleted
        ones may be yielded.
        """
        return self._registrations(list(self._topics.values()))

    def _registrations(self, topics: list[Topic]) -> Iterator[Registration]:
        for topic in topics:
            for channel in list(topic.channels) or [""]:
                yield Registration(topic.name, channel)

    def has(self, registration: Registration) -> bool:
        """Whether that topic or channel exists now."""
        topic = self._topics.get(registration.topic)
        channel = registration.channel
        return topic is not None and (not channel or channel in topic.channels)


class _Channels(msgspec.Struct):
    channels: list[str | int | float | bool | None] | None = None


_ANSWER: Final = msgspec.json.Decoder(_Channels)


async def ask_for_channels(
    lookupds: Iterable[LookupdInfo], topic: str, get: Callable[[str], Awaitable[httpget.Answer]]
) -> list[str]:
    """Ask nsqlookupds for the channels of a topic, all at the same time.

    Args:
        lookupds: the nsqlookupds.
        topic: a valid name.
        get: requests a URL in bounded time; raises GetError.

    Returns:
        The names that any of them has, each once, without ephemeral ones. An nsqlookupd that fails
        is logged and left out.
    """
    names: dict[str, None] = {}

    async def ask(info: LookupdInfo) -> None:
        url = f"http://{info.http_address}/channels?topic={quote(topic, safe='')}"
        try:
            names.update(dict.fromkeys(await _channel_names(await get(url))))
        # ValueError: a host name that can't be looked up
        except (httpget.GetError, ValueError) as error:
            where = info.http_address
            log.error("TOPIC(%s): failed to get channels from %s: %s", topic, where, error)

    async with trio.open_nursery() as nursery:
        for info in lookupds:
            nursery.start_soon(ask, info, name=f"channels of {topic} at {info.http_address}")
    return list(names)


async def _channel_names(answer: httpget.Answer) -> list[str]:
    """The valid names of an answer.

    Raises:
        ValueError: the answer has no list of channels, or too many of them.
    """
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    try:
        names = _ANSWER.decode(answer.body).channels
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        names = None
    if names is None:
        raise ValueError("the answer has no list of channels")
    if len(names) > _MAX_CHANNELS:
        raise ValueError(f"the answer has {len(names)} channels (at most {_MAX_CHANNELS} are made)")
    channels, ignored = [], 0
    for number, name in enumerate(names, 1):
        if not isinstance(name, str) or not is_valid_name(name.encode()):
            ignored += 1
            if ignored <= _MAX_LOGGED_NAMES:
                log.warning("ignoring invalid channel name %s", printable(str(name), 100))
        elif not is_ephemeral(name):
            channels.append(name)
        if number % _NAMES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()
    if ignored > _MAX_LOGGED_NAMES:
        log.warning("ignoring %d more invalid channel names", ignored - _MAX_LOGGED_NAMES)
    return channels
