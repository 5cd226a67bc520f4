"""Discovery: polling nsqlookupd for the nsqds that have a topic.

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

import anyio
import msgspec

from trionsq.client import lookupget
from trionsq.client.config import Config
from trionsq.client.errors import ConfigError, DiscoveryError, LastLookupdError
from trionsq.hostport import format_address
from trionsq.httpmessage import Answer, GetError
from trionsq.transports.runtime import Token, current_time

__all__ = ["Discovery", "Get", "addresses_of", "lookup_headers", "lookup_url", "topics_of"]

T = TypeVar("T")

# nsqlookupds that one poll asks, if the first ones fail.
_MAX_TRIES: Final = 3
# After a lost connection: the time between a poll and the next, doubled after each, because
# nsqlookupd does not know at once an nsqd that restarts. Likewise when the first poll finds none.
_GAP_S: Final = 1.0
# Random part of a gap, so that not all consumers of one nsqd poll at the same time.
_SPREAD: Final = 0.5
# From this status on, a gateway answered, or an nsqlookupd that failed.
_GATEWAY_STATUS: Final = 500
_ACCEPT: Final = "application/vnd.nsq; version=1.0"
# Limits of an answer, ten times the size of large clusters: 1,000 nsqds or 10,000 topics are about
# 200 KiB. An answer is decoded in one call, which takes up to 10 ms for this size.
_MAX_ANSWER_BYTES: Final = 2 << 20
_MAX_NSQDS: Final = 10_000


class Get(Protocol):
    """`trionsq.client.lookupget.get`, or its replacement in tests."""

    def __call__(
        self,
        url: str,
        headers: Mapping[str, str],
        connect_timeout_s: float,
        request_timeout_s: float,
        *,
        ssl_context: ssl.SSLContext | None,
    ) -> Awaitable[Answer]: ...


class _UnreachableError(DiscoveryError):
    """No nsqlookupd could be reached; their last answers still hold."""


class Discovery:
    """The nsqlookupds of a consumer, polled in turn.

    While none of them can be reached (or all answer with a status of 500 or more), the last answer
    of each holds, so that a consumer reconnects to the nsqds it knows. An answer without nsqds
    replaces earlier ones: otherwise consumers would create a deleted topic again.

    Attributes:
        urls: the URLs to request, by the address that was added.
    """

    def __init__(self, topic: str, config: Config, get: Get = lookupget.get) -> None:
        self.urls: dict[str, str] = {}
        self._last_answers: dict[str, list[str]] = {}
        self._topic = topic
        self._config = config
        self._get = get
        self._next = 0
        self._wake = Token()
        self._gap_s = math.inf

    def add(self, address: str) -> None:
        """Poll this nsqlookupd as well; for the address see `lookup_url`."""
        self.urls[address] = lookup_url(address, self._topic)

    def remove(self, address: str) -> None:
        """Stop polling this nsqlookupd.

        Raises:
            KeyError: it is not polled.
            LastLookupdError: it is the only one.
        """
        if address in self.urls and len(self.urls) == 1:
            raise LastLookupdError(f"{address} is the last nsqlookupd")
        self._last_answers.pop(self.urls.pop(address), None)

    def request_poll(self) -> None:
        """Poll soon, and again in growing gaps: a connection was lost."""
        self._gap_s = _GAP_S
        self._wake.set()

    async def run(
        self,
        on_found: Callable[[list[str]], Awaitable[None]],
        on_failure: Callable[[DiscoveryError], None],
        random: Random,
    ) -> NoReturn:
        """Poll at once, then after the interval and a random part of it, then every interval.

        `request_poll` causes further polls: one at once, the next in gaps that double up to the
        interval. So does a first poll that finds no nsqd, without the poll at once.

        Args:
            on_found: awaited with the addresses after each poll: those of the last answers if no
                nsqlookupd can be reached, none after other failures.
            on_failure: called with the error of each failed poll.
            random: for the jitter.
        """
        interval_s = self._config.lookupd_poll_interval_s
        wait_s = interval_s * (1 + random.random() * self._config.lookupd_poll_jitter)
        is_first = True
        while True:
            polled_s = current_time()
            addresses: list[str] = []
            try:
                addresses = await self.poll()
            except _UnreachableError as error:
                on_failure(error)
                answers = (self._last_answers.get(url, ()) for url in self.urls.values())
                addresses = list(dict.fromkeys(chain(*answers)))
            except DiscoveryError as error:
                on_failure(error)
            await on_found(addresses)
            if is_first and not addresses:
                self._gap_s = _GAP_S
            is_first = False
            gap_s = self._gap_s * (1 + random.random() * _SPREAD)
            self._gap_s *= 2
            with anyio.CancelScope(deadline=polled_s + min(wait_s, gap_s)):
                await self._wake.wait()
                await anyio.sleep_until(polled_s + min(_GAP_S, interval_s))
            # The next poll serves all requests so far.
            self._wake.clear()
            wait_s = interval_s

    async def poll(self) -> list[str]:
        """Ask the next nsqlookupd, and up to two more if it fails. Return the nsqds' addresses.

        Raises:
            DiscoveryError: none of them gave a usable answer.
        """
        failures, was_answered = [], False
        for _ in range(min(_MAX_TRIES, len(self.urls))):
            urls = list(self.urls.values())
            url = urls[self._next % len(urls)]
            self._next += 1
            try:
                answer = await self._get(
                    url,
                    lookup_headers(self._config),
                    min(self._config.dial_timeout_s, self._config.lookupd_poll_timeout_s),
                    self._config.lookupd_poll_timeout_s,
                    ssl_context=self._ssl_context(url),
                )
                addresses = self._last_answers[url] = addresses_of(answer)
                return addresses.copy()
            except (GetError, ConfigError) as error:
                failures.append(f"{url}: {error}")
            except DiscoveryError as error:
                failures.append(f"{url}: {error}")
                if answer.status < _GATEWAY_STATUS:
                    self._last_answers.pop(url, None)
                    was_answered = True
        kind = DiscoveryError if was_answered else _UnreachableError
        raise kind("; ".join(failures))

    def _ssl_context(self, url: str) -> ssl.SSLContext | None:
        """The authorities trusted for nsqd are trusted for nsqlookupd too."""
        return self._config.ssl_context() if url.startswith("https:") else None


def lookup_headers(config: Config) -> dict[str, str]:
    """The headers of requests to nsqlookupd."""
    headers = {"Accept": _ACCEPT}
    if config.auth_secret and config.skip_lookupd_authorization:
        headers["Authorization"] = f"Bearer {config.auth_secret}"
    return headers


def lookup_url(address: str, topic: str) -> str:
    """The URL to request, from ``host:port`` or ``http(s)://host:port[/path][?query]``.

    Raises:
        ValueError: not a URL, or one without a port.
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


class _Producers(msgspec.Struct):
    producers: list[_Producer] | None = None
    message: str | None = None


class _LookupAnswer(_Producers):
    """Both forms of an answer: the present one, and the one of nsqlookupd before 1.0."""

    status_code: int | None = None
    status_txt: str | None = None
    data: _Producers | msgspec.UnsetType | None = msgspec.UNSET


class _Topics(msgspec.Struct):
    topics: list[str] | None = None


class _TopicsAnswer(_Topics):
    data: _Topics | None = None


_LOOKUP_DECODER: Final = msgspec.json.Decoder(_LookupAnswer)
_TOPICS_DECODER: Final = msgspec.json.Decoder(_TopicsAnswer)


def addresses_of(answer: Answer) -> list[str]:
    """``host:port`` of each nsqd in an answer to /lookup, also in the wrapped form of before 1.0.

    Raises:
        DiscoveryError: the answer is an error, cannot be understood, or is too large.
    """
    body = _decoded(answer, _LOOKUP_DECODER)
    status, producers, message = answer.status, body.producers, body.message
    is_old = "nsq" not in answer.headers.get("x-nsq-content-type", "")
    if is_old and body.data is not msgspec.UNSET:
        status = answer.status if body.status_code is None else body.status_code
        producers, message = (body.data or _Producers()).producers, body.status_txt
    if status != 200:
        raise DiscoveryError(f"answered {status} {message or ''}")
    if producers is None:
        raise DiscoveryError("invalid answer: no producers")
    if len(producers) > _MAX_NSQDS:
        raise DiscoveryError(f"invalid answer: {len(producers)} nsqds, the limit is {_MAX_NSQDS}")
    return [_address(producer) for producer in producers]


def topics_of(answer: Answer) -> list[str]:
    """The names in an answer to /topics, unchecked; also in the wrapped form of before 1.0.

    Raises:
        DiscoveryError: the answer is an error, cannot be understood, or is too large.
    """
    if answer.status != 200:
        raise DiscoveryError(f"answered {answer.status}")
    body = _decoded(answer, _TOPICS_DECODER)
    topics = body.topics if body.topics is not None else (body.data or _Topics()).topics
    if topics is None:
        raise DiscoveryError("invalid answer: no topics")
    return topics


def _decoded(answer: Answer, decoder: msgspec.json.Decoder[T]) -> T:
    if len(answer.body) > _MAX_ANSWER_BYTES:
        raise DiscoveryError(f"the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB")
    try:
        return decoder.decode(answer.body)
    except msgspec.ValidationError as error:
        raise DiscoveryError(f"invalid answer: {error}") from error
    # msgspec raises UnicodeError for a bad text, RecursionError for deep nesting.
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DiscoveryError(f"answered {answer.status}, not JSON") from error


def _address(producer: _Producer) -> str:
    host, port = producer.broadcast_address, producer.tcp_port
    if not host:
        raise DiscoveryError(f"invalid answer: an nsqd without an address, port {port}")
    return format_address(host, port)
