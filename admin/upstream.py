"""Requests to nsqd and nsqlookupd: limited in number, time and size, on kept connections.

Spec: nsqadmin, sections 1 and 3 (texts of errors).
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec
import trio

from admin.options import NsqadminOptions, OptionsError
from trionsq import NSQ_VERSION
from trionsq.daemon.tokens import bearer_of
from trionsq.durations import SECOND_NS
from trionsq.hostport import format_address
from trionsq.httpget import shown_url

__all__ = [
    "MAX_RESPONSE_BYTES",
    "ForeignResponse",
    "NodeWarning",
    "Upstream",
    "UpstreamError",
    "json_of",
    "node_of",
]

T = TypeVar("T")

log = logging.getLogger("trionsq")

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a response: /stats of about 100,000 clients."""

_HEADERS: Final = {
    "Accept": "application/vnd.nsq; version=1.0",
    "User-Agent": f"nsqadmin v{NSQ_VERSION}",
    # A few compressed bytes could become millions.
    "Accept-Encoding": "identity",
}
# Idle connections are kept longer than the interval between two polls without viewers.
_IDLE_S: Final = 45.0
# Quoted from an unexpected response.
_QUOTED_BYTES: Final = 1024
# Maximum nodes that are remembered to require HTTPS.
_MAX_SECURED: Final = 4096
# Failures before a byte of the request went out: no connection (TLS included), or no request.
_NEVER_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)


@dataclass(frozen=True, slots=True)
class ForeignResponse:
    """The response of a server outside NSQ; ``headers`` by name in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class UpstreamError(Exception):
    """A request to a node failed; ``str()`` is the text of NSQ 1.3.

    Attributes:
        node: ``host:port`` of the node.
        status: of the response, None if there was none.
        may_have_happened: the request was a POST and may have reached the node before the
            connection failed. The text says so, too.
    """

    def __init__(
        self, node: str, text: str, status: int | None = None, *, may_have_happened: bool = False
    ) -> None:
        if may_have_happened:
            text += " - it is not known whether the node did it"
        super().__init__(text)
        self.node = node
        self.status = status
        self.may_have_happened = may_have_happened


class NodeWarning(str):
    """The text of an `UpstreamError`, with the ``node`` that it is about."""

    __slots__ = ("node",)

    def __new__(cls, error: UpstreamError) -> Self:
        """Take text and node of ``error``."""
        made = super().__new__(cls, error)
        made.node = error.node
        return made

    node: str


class Upstream:
    """Sends requests to nodes; to be used by ``async with``.

    Attributes:
        under_way: requests in progress, at most --http-client-max-requests.
        asked: requests in total.
        failed: requests that ended with an UpstreamError.
    """

    asked = 0
    failed = 0

    def __init__(
        self, options: NsqadminOptions, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """``transport`` reaches all nodes, instead of the network.

        Raises:
            OptionsError: a file of the TLS options, or of the token, can't be used.
        """
        self._request_timeout_s = options.http_client_request_timeout_ns / SECOND_NS
        most = options.http_client_max_requests
        self._limit = trio.CapacityLimiter(most)
        # The URL of nodes that require HTTPS, by their host:port of HTTP.
        self._secured: dict[str, str] = {}
        try:
            # For nodes, not for other servers.
            self._authorization = bearer_of(options.http_client_token_file)
        except OSError as error:
            raise OptionsError(f"--http-client-token-file: {error}") from None
        connect_s = options.http_client_connect_timeout_ns / SECOND_NS
        self._client = httpx2.AsyncClient(
            headers=_HEADERS,
            transport=transport,
            verify=_tls_context(options) if transport is None else False,
            timeout=httpx2.Timeout(None, connect=connect_s),
            limits=httpx2.Limits(max_keepalive_connections=4 * most, keepalive_expiry=_IDLE_S),
            trust_env=False,
            follow_redirects=False,
            # No cookies: nodes need none.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    @property
    def under_way(self) -> int:
        """See the class."""
        return int(self._limit.borrowed_tokens)

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

    async def get_json(self, url: str, kind: type[T], *, timeout_s: float | None = None) -> T:
        """The JSON that is at ``url`` (``http://host:port/path?query``), as ``kind``.

        Args:
            url: for GET.
            kind: a msgspec type.
            timeout_s: for the whole request; default: --http-client-request-timeout.

        Raises:
            UpstreamError: no answer in time, another status than 200, or not of that type.
        """
        body = await self._request("GET", url, timeout_s)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            node = node_of(url)
            raise UpstreamError(node, f"{node} answered no {kind.__name__}: {error}", 200) from None

    async def get_bytes(self, url: str, *, timeout_s: float | None = None) -> bytes:
        """The bytes that are at ``url``; else as `get_json`."""
        return await self._request("GET", url, timeout_s)

    async def get_foreign(self, url: str) -> ForeignResponse:
        """The response to GET ``url``, whatever its status, from a server outside NSQ.

        A user and a password in the URL are sent.

        Raises:
            UpstreamError: no answer in time.
        """
        async with self._limit:
            with trio.move_on_after(self._request_timeout_s):
                answer, body = await self._exchange("GET", url, None, {"Accept": "*/*"})
                headers = {name.lower(): value for name, value in answer.headers.items()}
                return ForeignResponse(answer.status_code, headers, body)
        raise UpstreamError(node_of(url), f"no answer within {self._request_timeout_s:g} s")

    async def post(self, url: str, body: bytes = b"", *, timeout_s: float | None = None) -> bytes:
        """POST ``body`` to ``url`` and return the answer; else as `get_json`.

        A POST that may have reached the node is never sent a second time.
        """
        return await self._request("POST", url, timeout_s, body)

    async def send(
        self, method: str, url: str, body: bytes = b"", *, timeout_s: float | None = None
    ) -> bytes:
        """As `post`, by another method: PUT or DELETE."""
        return await self._request(method, url, timeout_s, body)

    async def _request(
        self, method: str, url: str, timeout_s: float | None, body: bytes | None = None
    ) -> bytes:
        timeout_s = self._request_timeout_s if timeout_s is None else timeout_s
        node = node_of(url)
        async with self._limit:
            self.asked += 1
            with trio.move_on_after(timeout_s):
                try:
                    return await self._request_with_https(method, url, node, body)
                except UpstreamError:
                    self.failed += 1
                    raise
        self.failed += 1
        text = f'{method.title()} "{url}": no answer within {timeout_s:g} s'
        raise UpstreamError(node, text, may_have_happened=method != "GET")

    async def _request_with_https(
        self, method: str, url: str, node: str, body: bytes | None
    ) -> bytes:
        secured = self._secured.get(node)
        if secured is not None:
            try:
                return await self._request_once(method, _moved(url, secured), body)
            except UpstreamError as error:
                if error.status is not None:
                    raise  # the node responded
                # The node may have been restarted without TLS.
                self._secured.pop(node, None)
                if error.may_have_happened:
                    raise
        try:
            return await self._request_once(method, url, body)
        except _TlsRequiredError as error:
            secured = f"https://{format_address(urlsplit(url).hostname or '', error.https_port)}"
            answer = await self._request_once(method, _moved(url, secured), body)
        if len(self._secured) >= _MAX_SECURED:
            self._secured.clear()
        self._secured[node] = secured
        return answer

    async def _request_once(self, method: str, url: str, body: bytes | None) -> bytes:
        node = node_of(url)
        answer, content = await self._exchange(method, url, body, self._authorization)
        if answer.status_code == 200:
            return content
        text = f"got response {_status(answer)} {_quoted(content)}"
        https_port = _https_port(answer.status_code, url, content)
        if https_port is not None:
            raise _TlsRequiredError(node, text, https_port)
        raise UpstreamError(node, text, answer.status_code)

    async def _exchange(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[httpx2.Response, bytes]:
        node = node_of(url)
        try:
            request = self._client.build_request(method, url, content=body, headers=headers)
            answer = await self._client.send(request, stream=True)
            try:
                return answer, await _read(answer, node)
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            text = f'{method.title()} "{shown_url(url)}": {_why(error)}'
            sent = method != "GET" and not isinstance(error, _NEVER_SENT)
            raise UpstreamError(node, text, may_have_happened=sent) from error


class _TlsRequiredError(UpstreamError):
    def __init__(self, node: str, text: str, https_port: int) -> None:
        super().__init__(node, text, 403)
        self.https_port = https_port


def node_of(url: str) -> str:
    """The ``host:port`` of a URL; one that makes no sense as it is."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return url


def _moved(url: str, to: str) -> str:
    """The same path and query at another scheme and port."""
    parts, target = urlsplit(url), urlsplit(to)
    return SplitResult(target.scheme, target.netloc, parts.path, parts.query, "").geturl()


async def _read(answer: httpx2.Response, node: str) -> bytes:
    content, nbytes = list[bytes](), 0
    # Cancelling ends the inner generators; a break would leave them to the garbage collector.
    with trio.CancelScope() as scope:
        async for piece in answer.aiter_raw():
            nbytes += len(piece)
            if nbytes > MAX_RESPONSE_BYTES:
                scope.cancel()
                content.clear()
            else:
                content.append(piece)
    if nbytes > MAX_RESPONSE_BYTES:
        text = f"{node} answered more than {MAX_RESPONSE_BYTES} bytes"
        raise UpstreamError(node, text, answer.status_code)
    return b"".join(content)


def _https_port(status: int, url: str, content: bytes) -> int | None:
    if status != 403 or not url.startswith("http:"):
        return None
    try:
        port = json.loads(content).get("https_port")
    except (ValueError, AttributeError, RecursionError):
        return None
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        return port
    return None


def _status(answer: httpx2.Response) -> str:
    """``404 Not Found``, also of servers that send the number only."""
    phrase = answer.reason_phrase or http.client.responses.get(answer.status_code, "")
    return f"{answer.status_code} {phrase}".rstrip()


def _quoted(content: bytes) -> str:
    return json.dumps(content[:_QUOTED_BYTES].decode(errors="replace"), ensure_ascii=False)


def _why(error: Exception) -> str:
    """The text of the operating system's error behind this one, else the error's own text."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause.exceptions[-1] if isinstance(cause, BaseExceptionGroup) else cause)
    for cause in reversed(causes):
        if isinstance(cause, ConnectionError | TimeoutError) and cause.errno:
            return os.strerror(cause.errno)  # trio's own text repeats the address
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    texts = [str(each) for each in causes if str(each)]
    return texts[0] if texts else type(error).__name__


def _tls_context(options: NsqadminOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.http_client_tls_root_ca_file or None)
        if options.http_client_tls_insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if options.http_client_tls_cert:
            context.load_cert_chain(options.http_client_tls_cert, options.http_client_tls_key)
    except (OSError, ValueError) as error:
        raise OptionsError(f"failed to build the TLS config of requests - {error}") from error
    return context


def json_of(content: bytes) -> Any:
    """Any JSON; raises ValueError."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
