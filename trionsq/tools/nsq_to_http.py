"""The tool nsq_to_http: each message of a topic becomes an HTTP request.

A task for each message in flight, at most ``-n`` at once. A message is finished once its request
succeeded; otherwise it is requeued with the default delay, and the consumer backs off.

HTTP connections are kept open and used again. Redirects are followed. Of a response only the
status counts; its body is read only as far as the connection can then be used again.

Spec: tools, nsq_to_http.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import ssl
from collections.abc import Iterator, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from random import Random
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote_plus, urlsplit

import httpx2
import trio

from trionsq import NSQ_VERSION, durations
from trionsq.client import Batch, Config, Consumer, Message
from trionsq.options import DURATION, FLOAT, INT, STRING, STRINGS, option
from trionsq.tools.common import (
    ConsumerOptions,
    checked_options,
    configure_log,
    consumer_config,
    die,
    run_tool,
)
from trionsq.tools.forwarding import InProgress, RequestLog, forward
from trionsq.tools.hostpool import MODES, Hosts, hosts_of
from trionsq.wire.names import is_valid_name

__all__ = ["NsqToHttpOptions", "main"]

log = logging.getLogger("trionsq.tools")

_TOOL: Final = "nsq_to_http"


_CONTENT_TYPE: Final = "application/octet-stream"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqToHttpOptions(ConsumerOptions):
    """All flags; durations in nanoseconds."""

    topic: str = option("topic", "", STRING, "topic to read", key=None)
    channel: str = option("channel", "nsq_to_http", STRING, "channel to read from", key=None)
    post: tuple[str, ...] = option("post", (), STRINGS, "URL that messages are POSTed to", key=None)
    get: tuple[str, ...] = option(
        "get", (), STRINGS, "URL to GET, with one %s for the escaped message", key=None
    )
    n: int = option("n", 100, INT, "requests at once at most", key=None)
    mode: str = option(
        "mode",
        "hostpool",
        STRING,
        "round-robin, hostpool or epsilon-greedy; any other: each message to all addresses",
        key=None,
    )
    sample: float = option(
        "sample",
        1.0,
        FLOAT,
        "share of the messages that is sent; the others are finished unsent",
        key=None,
    )
    content_type: str = option(
        "content-type", _CONTENT_TYPE, STRING, "Content-Type of what is POSTed", key=None
    )
    header: tuple[str, ...] = option("header", (), STRINGS, "'Name: value' to send", key=None)
    connect_timeout_ns: int = option(
        "http-client-connect-timeout",
        2 * durations.SECOND_NS,
        DURATION,
        "to connect to an address",
        key=None,
    )
    request_timeout_ns: int = option(
        "http-client-request-timeout",
        20 * durations.SECOND_NS,
        DURATION,
        "for a whole request",
        key=None,
    )
    status_every: int = option(
        "status-every", 250, INT, "log the times of requests after so many, 0: never", key=None
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those to POST to or to GET, each once."""
        return tuple(dict.fromkeys(self.post or self.get))


def _headers_of(options: NsqToHttpOptions) -> dict[str, str]:
    """The headers that the flags give; of a name that comes again the last one.

    Raises:
        ValueError: one is not ``Name: value``.
    """
    found: dict[str, str] = {}
    for text in options.header:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(text)
        found[name.title()] = value
    return found


def _early_refusal(options: NsqToHttpOptions) -> str:
    """Why these options can't be used, or nothing; to be asked before those of all tools."""
    try:
        _headers_of(options)
    except ValueError:
        return "--header value format should be 'key=value'"
    if not options.topic or not options.channel:
        return "--topic and --channel are required"
    if options.content_type != _CONTENT_TYPE:
        if options.get:
            return "--content-type only used with --post"
        if not options.content_type:
            return "--content-type requires a value when used"
        if not _HEADER_VALUE.fullmatch(options.content_type):
            return "--content-type is invalid"
    return ""


def _refusal(options: NsqToHttpOptions) -> str:
    """Why these options can't be used, beyond `_early_refusal`; or nothing."""
    return next(_refusals(options), "")


def _refusals(options: NsqToHttpOptions) -> Iterator[str]:
    if not options.get and not options.post:
        yield "--get or --post required"
    if options.get and options.post:
        yield "use --get or --post not both"
    if any(address.count("%s") != 1 for address in options.get):
        yield "invalid GET address - must be a printf string"
    if not 0 <= options.sample <= 1:
        yield "ERROR: --sample must be between 0.0 and 1.0"
    for name in (options.topic, options.channel):
        if not is_valid_name(name.encode("utf-8", "surrogateescape")):
            yield f"not a valid name: {name!r}"
    for address in options.addresses:
        if not _is_http_url(address.replace("%s", "x")):
            yield f"not the URL of an HTTP server: {address}"
    for flag, value in (
        ("n", options.n),
        ("max-in-flight", options.max_in_flight),
        ("http-client-connect-timeout", options.connect_timeout_ns),
        ("http-client-request-timeout", options.request_timeout_ns),
    ):
        if value <= 0:
            yield f"--{flag} should be positive"


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


_REDIRECTS_MAX: Final = 10
_ANSWER_NBYTES_MAX: Final = 256 * 1024
# An idle connection is kept so long.
_IDLE_S: Final = 30.0


class _RequestError(Exception):
    """The message was not taken; the text says why."""


class _Requests:
    """Sends messages, as the options say; to be used by ``async with``."""

    def __init__(self, options: NsqToHttpOptions) -> None:
        """At most ``options.n`` connections are made."""
        self._is_post = bool(options.post)
        self._timeout_s = options.request_timeout_ns / durations.SECOND_NS
        headers = httpx2.Headers({"User-Agent": f"nsq_to_http v{NSQ_VERSION}"})
        if self._is_post:
            headers["Content-Type"] = options.content_type
        for name, value in _headers_of(options).items():
            headers[name] = value
        self._client = httpx2.AsyncClient(
            headers=headers,
            # Of Python's own, so that SSL_CERT_FILE and SSL_CERT_DIR count.
            verify=ssl.create_default_context(),
            timeout=httpx2.Timeout(None, connect=options.connect_timeout_ns / durations.SECOND_NS),
            limits=httpx2.Limits(
                max_connections=options.n,
                max_keepalive_connections=options.n,
                keepalive_expiry=_IDLE_S,
            ),
            trust_env=False,
            # Messages have nothing to do with each other.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(exc_type, exc, traceback)

    async def send(self, address: str, body: bytes) -> None:
        """Send a message. Cancelling closes the connection; it may have been taken or not.

        Raises:
            _RequestError: it took too long, can't be sent, or the status is none of success.
        """
        try:
            with trio.fail_after(self._timeout_s):
                status = await self._status(self._request(address, body))
        except trio.TooSlowError:
            raise _RequestError(f"no answer within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _RequestError(_why(error)) from error
        if not (200 <= status < 300 if self._is_post else status == 200):
            raise _RequestError(f"got status code {status}")

    def _request(self, address: str, body: bytes) -> httpx2.Request:
        if self._is_post:
            return self._client.build_request("POST", address, content=body)
        before, _, after = address.partition("%s")
        # A % of its own is written as %% in a printf string.
        url = before.replace("%%", "%") + quote_plus(body) + after.replace("%%", "%")
        return self._client.build_request("GET", url)

    async def _status(self, request: httpx2.Request) -> int:
        for _ in range(_REDIRECTS_MAX + 1):
            answer = await self._client.send(request, stream=True)
            try:
                nbytes = 0
                async for chunk in answer.aiter_raw():
                    nbytes += len(chunk)
                    if nbytes > _ANSWER_NBYTES_MAX:
                        break
            finally:
                await answer.aclose()
            if answer.next_request is None:
                return answer.status_code
            request = answer.next_request
        raise _RequestError(f"stopped after {_REDIRECTS_MAX} redirects")


def _why(error: Exception) -> str:
    """What the error, or else what is behind it, says."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause) if cause is not None else type(error).__name__


class _Sending:
    """One run of the tool."""

    def __init__(
        self, options: NsqToHttpOptions, config: Config, random: Random | None = None
    ) -> None:
        """`random`: for tests. Raises ValueError: an address that is none."""
        self._options = options
        self._random = random or Random()
        self._sample = options.sample
        self._hosts: Hosts | None = None
        if options.mode in MODES:
            self._hosts = hosts_of(options.mode, options.addresses, self._random)
        self._request_log = RequestLog(options.addresses, options.status_every)
        self._requests = _Requests(options)
        self._turns = trio.CapacityLimiter(options.n)
        self._in_progress = InProgress()
        self._consumer = Consumer(
            options.topic,
            options.channel,
            nsqd_tcp_addresses=dict.fromkeys(options.nsqd_tcp_address),
            lookupd_http_addresses=options.lookupd_http_address,
            config=config,
        )

    async def run(self) -> int:
        """Send until a signal comes; the exit code. Raises ClientError, ProtocolError."""
        async with self._requests, trio.open_nursery() as self._tasks:
            await forward([self._consumer], self._take, self._in_progress)
            self._tasks.cancel_scope.cancel()
        return 0

    async def _take(self, _consumer: Consumer, batch: Batch) -> None:
        for message in batch:
            if self._random.random() >= self._sample:
                message.finish()
                continue
            # Released by another task, which so becomes its owner.
            await self._turns.acquire_on_behalf_of(message)
            if not batch.is_answerable:
                self._turns.release_on_behalf_of(message)
                return
            self._in_progress.add_one()
            self._tasks.start_soon(self._send, message)

    async def _send(self, message: Message) -> None:
        try:
            if await self._was_taken(message.body):
                message.finish()
            else:
                message.requeue()
        finally:
            self._turns.release_on_behalf_of(message)
            self._in_progress.remove_one()

    async def _was_taken(self, body: bytes) -> bool:
        """Whether the address whose turn it is took it; without turns, whether all did."""
        if self._hosts is not None:
            return await self._request(self._hosts.choose(trio.current_time()), body)
        for address in self._options.addresses:
            if not await self._request(address, body):
                return False
        return True

    async def _request(self, address: str, body: bytes) -> bool:
        begun_s = trio.current_time()
        failure: _RequestError | None = None
        try:
            await self._requests.send(address, body)
        except _RequestError as error:
            failure = error
            log.error("%s: %s", address, error)
        now_s = trio.current_time()
        if self._hosts is not None:
            self._hosts.mark(address, now_s, None if failure else now_s - begun_s)
        self._request_log.add_requests(address, now_s - begun_s)
        return failure is None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options = checked_options(NsqToHttpOptions, _TOOL, argv, _early_refusal, _refusal)
    config = consumer_config(options, _TOOL)
    configure_log()
    try:
        run = _Sending(options, config)
    except ValueError as error:
        die(str(error))
    return run_tool(run.run)


if __name__ == "__main__":
    raise SystemExit(main())
