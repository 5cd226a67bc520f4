"""The tool nsq_to_http: sends each message of a topic as an HTTP request.

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
    """The flags; durations in nanoseconds."""

    topic: str = option("topic", "", STRING, "topic to read")
    channel: str = option("channel", "nsq_to_http", STRING, "channel to read from")
    post: tuple[str, ...] = option("post", (), STRINGS, "URL to POST each message to")
    get: tuple[str, ...] = option(
        "get", (), STRINGS, "URL to GET, with one %s in the place of the escaped message"
    )
    n: int = option("n", 100, INT, "maximum concurrent requests")
    mode: str = option(
        "mode",
        "hostpool",
        STRING,
        "choice of the address: round-robin, hostpool or epsilon-greedy; any other value sends each"
        " message to all addresses",
    )
    sample: float = option(
        "sample",
        1.0,
        FLOAT,
        "fraction of messages to send; the others are finished without being sent",
    )
    content_type: str = option(
        "content-type", _CONTENT_TYPE, STRING, "Content-Type of the POST requests"
    )
    header: tuple[str, ...] = option("header", (), STRINGS, "HTTP header to send: 'Name: value'")
    connect_timeout_ns: int = option(
        "http-client-connect-timeout",
        2 * durations.SECOND_NS,
        DURATION,
        "time limit to connect to an address",
    )
    request_timeout_ns: int = option(
        "http-client-request-timeout",
        20 * durations.SECOND_NS,
        DURATION,
        "time limit of a whole request",
    )
    status_every: int = option(
        "status-every", 250, INT, "log response times after this many requests; 0: never"
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of --post or --get, each once."""
        return tuple(dict.fromkeys(self.post or self.get))


def _headers_of(options: NsqToHttpOptions) -> dict[str, str]:
    """The headers from --header. If a name is repeated, the last one counts.

    Raises:
        ValueError: a header is not ``Name: value``.
    """
    headers: dict[str, str] = {}
    for text in options.header:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(text)
        headers[name.title()] = value
    return headers


def _early_refusal(options: NsqToHttpOptions) -> str:
    """Why the options are refused, or ""; checked before the addresses."""
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
    """Why the options are refused, or ""; checked after the addresses."""
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


_MAX_REDIRECTS: Final = 10
_MAX_RESPONSE_BYTES: Final = 256 * 1024
# An idle connection is closed after this time.
_IDLE_S: Final = 30.0


class _RequestError(Exception):
    """The message was not accepted; the text says why."""


class _Requests:
    """Sends messages by HTTP. Use it with ``async with``."""

    def __init__(self, options: NsqToHttpOptions) -> None:
        """Opens at most ``options.n`` connections."""
        self._is_post = bool(options.post)
        self._timeout_s = options.request_timeout_ns / durations.SECOND_NS
        headers = httpx2.Headers({"User-Agent": f"nsq_to_http v{NSQ_VERSION}"})
        if self._is_post:
            headers["Content-Type"] = options.content_type
        for name, value in _headers_of(options).items():
            headers[name] = value
        self._client = httpx2.AsyncClient(
            headers=headers,
            # Python's own context, so that SSL_CERT_FILE and SSL_CERT_DIR are respected.
            verify=ssl.create_default_context(),
            timeout=httpx2.Timeout(None, connect=options.connect_timeout_ns / durations.SECOND_NS),
            limits=httpx2.Limits(
                max_connections=options.n,
                max_keepalive_connections=options.n,
                keepalive_expiry=_IDLE_S,
            ),
            trust_env=False,
            # No cookies: messages are independent of each other.
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
        """Send a message. Cancelling closes the connection; the server may have accepted it or not.

        Raises:
            _RequestError: no response in time, the request failed, or its status is an error.
        """
        try:
            with trio.fail_after(self._timeout_s):
                status = await self._send_request(self._make_request(address, body))
        except trio.TooSlowError:
            raise _RequestError(f"no response within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _RequestError(_reason_of(error)) from error
        if not (200 <= status < 300 if self._is_post else status == 200):
            raise _RequestError(f"got status code {status}")

    def _make_request(self, address: str, body: bytes) -> httpx2.Request:
        if self._is_post:
            return self._client.build_request("POST", address, content=body)
        before, _, after = address.partition("%s")
        # In a printf string %% stands for %.
        url = before.replace("%%", "%") + quote_plus(body) + after.replace("%%", "%")
        return self._client.build_request("GET", url)

    async def _send_request(self, request: httpx2.Request) -> int:
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._client.send(request, stream=True)
            try:
                size = 0
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size > _MAX_RESPONSE_BYTES:
                        break
            finally:
                await response.aclose()
            if response.next_request is None:
                return response.status_code
            request = response.next_request
        raise _RequestError(f"stopped after {_MAX_REDIRECTS} redirects")


def _reason_of(error: Exception) -> str:
    """The text of the error or, if it has none, of its cause."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause) if cause is not None else type(error).__name__


class _Sender:
    """One run of the tool."""

    def __init__(
        self, options: NsqToHttpOptions, config: Config, random: Random | None = None
    ) -> None:
        """`random`: for tests. Raises ValueError if an address is invalid."""
        self._options = options
        self._random = random or Random()
        self._sample = options.sample
        self._hosts: Hosts | None = None
        if options.mode in MODES:
            self._hosts = hosts_of(options.mode, options.addresses, self._random)
        self._request_log = RequestLog(options.addresses, options.status_every)
        self._requests = _Requests(options)
        self._limiter = trio.CapacityLimiter(options.n)
        self._in_progress = InProgress()
        self._consumer = Consumer(
            options.topic,
            options.channel,
            nsqd_tcp_addresses=dict.fromkeys(options.nsqd_tcp_address),
            lookupd_http_addresses=options.lookupd_http_address,
            config=config,
        )

    async def run(self) -> int:
        """Send until a signal, and return the exit code. Raises ClientError, ProtocolError."""
        async with self._requests, trio.open_nursery() as self._tasks:
            await forward([self._consumer], self._start_requests, self._in_progress)
            self._tasks.cancel_scope.cancel()
        return 0

    async def _start_requests(self, _consumer: Consumer, batch: Batch) -> None:
        for message in batch:
            if self._random.random() >= self._sample:
                message.finish()
                continue
            # Another task releases it, so the message is the owner.
            await self._limiter.acquire_on_behalf_of(message)
            if not batch.is_answerable:
                self._limiter.release_on_behalf_of(message)
                return
            self._in_progress.add_one()
            self._tasks.start_soon(self._send, message)

    async def _send(self, message: Message) -> None:
        try:
            if await self._is_accepted(message.body):
                message.finish()
            else:
                message.requeue()
        finally:
            self._limiter.release_on_behalf_of(message)
            self._in_progress.remove_one()

    async def _is_accepted(self, body: bytes) -> bool:
        """Send the body to the chosen address, or to all. Whether all of these accepted it."""
        if self._hosts is not None:
            return await self._request(self._hosts.choose(trio.current_time()), body)
        for address in self._options.addresses:
            if not await self._request(address, body):
                return False
        return True

    async def _request(self, address: str, body: bytes) -> bool:
        start_s = trio.current_time()
        failure: _RequestError | None = None
        try:
            await self._requests.send(address, body)
        except _RequestError as error:
            failure = error
            log.error("%s: %s", address, error)
        now_s = trio.current_time()
        if self._hosts is not None:
            self._hosts.record_response(address, now_s, None if failure else now_s - start_s)
        self._request_log.add_requests(address, now_s - start_s)
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
        sender = _Sender(options, config)
    except ValueError as error:
        die(str(error))
    return run_tool(sender.run)


if __name__ == "__main__":
    raise SystemExit(main())
