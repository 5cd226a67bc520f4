"""Asking nsqlookupd which nsqds have a topic.

Spec: client, section 3 (discovery).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from random import Random
from typing import Final, NoReturn, Protocol, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import trio

from trionsq import httpget
from trionsq.client.config import Config
from trionsq.client.errors import ConfigError, DiscoveryError, LastLookupdError

__all__ = ["Discovery", "Get", "addresses_of", "lookup_url", "topics_of"]

T = TypeVar("T")

_TRIES: Final = 3
# Lost connections ask at once, but no more often than this; and again after this, twice that, four
# times and so on, for an nsqd that is restarted is not found at once. So do consumers that begin
# before there is an nsqd to be found.
_GAP_S: Final = 1.0
_SPREAD: Final = 0.5  # of a gap, so that the consumers of one nsqd do not all ask at a time
# From here on it is a gateway that speaks, or an nsqlookupd that failed.
_GATEWAY_STATUS: Final = 500
_ACCEPT: Final = "application/vnd.nsq; version=1.0"
# Bounds of an answer, ten times what the largest clusters have: 1,000 nsqds are some 200 KiB, and
# so are 10,000 topics. It is decoded in one go, at most 10 ms for this size.
_ANSWER_NBYTES_MAX: Final = 2 << 20
_NSQDS_MAX: Final = 10_000


class Get(Protocol):
    """`trionsq.httpget.get`, or what stands in for it in tests."""

    def __call__(
        self,
        url: str,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        request_timeout_s: float,
        *,
        ssl_context: ssl.SSLContext | None,
    ) -> Awaitable[httpget.Answer]: ...


class _NobodyAnswersError(DiscoveryError):
    """No nsqlookupd could be asked; what they said before is all there is."""


class Discovery:
    """The nsqlookupds of a consumer, asked in turn.

    While none of them can be reached (a status of 500 or more is no answer of theirs either), what
    each said last holds: an nsqd that was found once is connected to again. That it knows no nsqd
    is an answer too, so that a topic which was deleted is not made again by its consumers.

    Attributes:
        urls: with the topic, by address as given.
    """

    def __init__(self, topic: str, config: Config, get: Get = httpget.get) -> None:
        self.urls: dict[str, str] = {}
        self._said: dict[str, list[str]] = {}
        self._topic = topic
        self._config = config
        self._get = get
        self._next = 0
        self._wake = trio.Event()
        self._gap_s = math.inf

    def add(self, address: str) -> None:
        """Ask this one too; see `lookup_url`."""
        self.urls[address] = lookup_url(address, self._topic)

    def remove(self, address: str) -> None:
        """Do not ask this one any more.

        Raises:
            KeyError: it is not asked.
            LastLookupdError: no other would be left.
        """
        if address in self.urls and len(self.urls) == 1:
            raise LastLookupdError(f"{address} is the last nsqlookupd")
        self._said.pop(self.urls.pop(address), None)

    def request_poll(self) -> None:
        """Ask soon, and again in growing gaps: a connection was lost."""
        self._gap_s = _GAP_S
        self._wake.set()

    async def run(
        self,
        found: Callable[[list[str]], Awaitable[None]],
        failed: Callable[[DiscoveryError], None],
        random: Random,
    ) -> NoReturn:
        """Poll at once, then after the interval and a random part of it, then every interval.

        After `request_poll` at once too, and in gaps that double up to the interval; in such gaps
        also when the first poll finds none.

        Args:
            found: awaited with the addresses of each poll, and with those of before when nobody
                answers; with none after other failures.
            failed: called with the error of each poll that failed.
            random: for the jitter.
        """
        interval_s = self._config.lookupd_poll_interval_s
        wait_s = interval_s * (1 + random.random() * self._config.lookupd_poll_jitter)
        is_first = True
        while True:
            asked_s = trio.current_time()
            addresses: list[str] = []
            try:
                addresses = await self.poll()
            except _NobodyAnswersError as error:
                failed(error)
                said = (self._said.get(url, ()) for url in self.urls.values())
                addresses = list(dict.fromkeys(chain(*said)))
            except DiscoveryError as error:
                failed(error)
            await found(addresses)
            if is_first and not addresses:
                self._gap_s = _GAP_S
            is_first = False
            gap_s = self._gap_s * (1 + random.random() * _SPREAD)
            self._gap_s *= 2
            with trio.move_on_at(asked_s + min(wait_s, gap_s)):
                await self._wake.wait()
                await trio.sleep_until(asked_s + min(_GAP_S, interval_s))
            # The next poll answers all who asked for one so far.
            self._wake = trio.Event()
            wait_s = interval_s

    async def poll(self) -> list[str]:
        """Ask the next one, on error up to two further ones; ``host:port`` of the nsqds.

        Raises:
            DiscoveryError: none of them had a usable answer.
        """
        failures, was_answered = [], False
        for _ in range(min(_TRIES, len(self.urls))):
            urls = list(self.urls.values())
            url = urls[self._next % len(urls)]
            self._next += 1
            try:
                answer = await self._get(
                    url,
                    self._headers(),
                    min(self._config.dial_timeout_s, self._config.lookupd_poll_timeout_s),
                    self._config.lookupd_poll_timeout_s,
                    ssl_context=self._ssl_context(url),
                )
                addresses = self._said[url] = addresses_of(answer)
                return addresses.copy()
            except (httpget.GetError, ConfigError) as error:
                failures.append(f"{url}: {error}")
            except DiscoveryError as error:
                failures.append(f"{url}: {error}")
                if answer.status < _GATEWAY_STATUS:
                    self._said.pop(url, None)
                    was_answered = True
        kind = DiscoveryError if was_answered else _NobodyAnswersError
        raise kind("; ".join(failures))

    def _ssl_context(self, url: str) -> ssl.SSLContext | None:
        """For nsqlookupd the same are trusted as for nsqd."""
        return self._config.ssl_context() if url.startswith("https:") else None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT}
        if self._config.auth_secret and self._config.skip_lookupd_authorization:
            headers["Authorization"] = f"Bearer {self._config.auth_secret}"
        return headers


def lookup_url(address: str, topic: str) -> str:
    """The URL that is asked, for ``host:port`` or ``http(s)://host:port[/path][?query]``.

    Raises:
        ValueError: no port, or no URL at all.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ValueError(f"{address!r} is not host:port of an nsqlookupd, nor its URL")
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    query = "&".join(filter(None, [parts.query, f"topic={quote(topic, safe='')}"]))
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


class _Producer(msgspec.Struct, gc=False):
    broadcast_address: str
    tcp_port: int


class _Found(msgspec.Struct):
    producers: list[_Producer] | None = None
    message: str | None = None


class _Wrapped(_Found):
    """Both forms of an answer: that of now, and that of nsqlookupd before 1.0."""

    status_code: int | None = None
    status_txt: str | None = None
    data: _Found | msgspec.UnsetType | None = msgspec.UNSET


class _Topics(msgspec.Struct):
    topics: list[str] | None = None


class _WrappedTopics(_Topics):
    data: _Topics | None = None


_FOUND: Final = msgspec.json.Decoder(_Wrapped)
_TOPICS: Final = msgspec.json.Decoder(_WrappedTopics)


def addresses_of(answer: httpget.Answer) -> list[str]:
    """``host:port`` of each nsqd in the answer to /lookup; the old, wrapped form is read too.

    Raises:
        DiscoveryError: an error was answered, or nonsense, or more than any cluster has.
    """
    told = _decoded(answer, _FOUND)
    status, found, message = answer.status, told.producers, told.message
    is_old = "nsq" not in answer.headers.get("x-nsq-content-type", "")
    if is_old and told.data is not msgspec.UNSET:
        status = answer.status if told.status_code is None else told.status_code
        found, message = (told.data or _Found()).producers, told.status_txt
    if status != 200:
        raise DiscoveryError(f"answered {status} {message or ''}")
    if found is None:
        raise DiscoveryError("the answer makes no sense: it has no producers")
    if len(found) > _NSQDS_MAX:
        raise DiscoveryError(f"the answer makes no sense: it has {len(found)} nsqds")
    return [_address(producer) for producer in found]


def topics_of(answer: httpget.Answer) -> list[str]:
    """The names in the answer to /topics, as they are; the old, wrapped form is read too.

    Raises:
        DiscoveryError: an error was answered, or nonsense, or more than any cluster has.
    """
    if answer.status != 200:
        raise DiscoveryError(f"answered {answer.status}")
    told = _decoded(answer, _TOPICS)
    topics = told.topics if told.topics is not None else (told.data or _Topics()).topics
    if topics is None:
        raise DiscoveryError("the answer makes no sense: it has no topics")
    return topics


def _decoded(answer: httpget.Answer, decoder: msgspec.json.Decoder[T]) -> T:
    if len(answer.body) > _ANSWER_NBYTES_MAX:
        raise DiscoveryError(f"answered more than {_ANSWER_NBYTES_MAX >> 20} MiB")
    try:
        return decoder.decode(answer.body)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"the answer makes no sense: {error}") from error
    # UnicodeError: in a text; RecursionError: too deep.
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DiscoveryError(f"answered {answer.status} without JSON") from error


def _address(producer: _Producer) -> str:
    host, port = producer.broadcast_address, producer.tcp_port
    if not host:
        raise DiscoveryError(f"the answer makes no sense: an nsqd without an address, port {port}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
