"""One message to one address: POST, or GET with the message in the URL.

Connections are kept and used again. Redirections are followed. Of an answer only the status
counts; its body is read as far as that allows to use the connection again, and no further.

Spec: tools, nsq_to_http.
"""

from __future__ import annotations

import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote_plus

import httpx2
import trio

from trionsq import NSQ_VERSION, durations
from trionsq.tools.nsq_to_http.options import Options, headers_of

__all__ = ["RequestError", "Requests"]

_REDIRECTS_MAX: Final = 10
_ANSWER_NBYTES_MAX: Final = 256 * 1024
# An idle connection is kept so long.
_IDLE_S: Final = 30.0


class RequestError(Exception):
    """The message was not taken; the text says why."""


class Requests:
    """Sends messages, as the options say; to be used by ``async with``."""

    def __init__(self, options: Options) -> None:
        """At most ``options.n`` connections are made."""
        self._is_post = bool(options.post)
        self._timeout_s = options.request_timeout_ns / durations.SECOND_NS
        headers = httpx2.Headers({"User-Agent": f"nsq_to_http v{NSQ_VERSION}"})
        if self._is_post:
            headers["Content-Type"] = options.content_type
        for name, value in headers_of(options).items():
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
            RequestError: it took too long, can't be sent, or the status is none of success.
        """
        try:
            with trio.fail_after(self._timeout_s):
                status = await self._status(self._request(address, body))
        except trio.TooSlowError:
            raise RequestError(f"no answer within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RequestError(_why(error)) from error
        if not (200 <= status < 300 if self._is_post else status == 200):
            raise RequestError(f"got status code {status}")

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
        raise RequestError(f"stopped after {_REDIRECTS_MAX} redirects")


def _why(error: Exception) -> str:
    """What the error, or else what is behind it, says."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause) if cause is not None else type(error).__name__
