"""The auth servers, which decide what a client may do.

If anything goes wrong, the client may do nothing. No log line has a secret or text of a server.

Spec: tcp-protocol, section 9 (auth server contract).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeVar

import trio

from trionsq import httpget
from trionsq.broker.options import NsqdOptions
from trionsq.durations import SECOND_NS
from trionsq.transports.tls import client_context
from trionsq.wire.auth import (
    MAX_ANSWER_BYTES,
    Grant,
    Question,
    https_retry_url,
    load_patterns,
    question_url,
    read_grant,
)

__all__ = ["AuthServers", "ClientAuth"]

T = TypeVar("T")

log = logging.getLogger("trionsq")

# Requests at a time, each for one client. After a restart thousands of clients come at once, which
# would overload a slow auth server.
_MAX_REQUESTS: Final = 48
# A longer answer is read in a thread. The worst answer of this size has 400 different patterns that
# take 20 us each to compile: 8 ms in which no client is served.
_MAX_INLINE_BYTES: Final = 2 * 1024
_OK: Final = 200
_FORBIDDEN: Final = 403
_ACCEPT: Final = {"Accept": "application/vnd.nsq; version=1.0"}
_POSTED: Final = {**_ACCEPT, "Content-Type": "application/json"}


class ClientAuth:
    """The grant of a connection.

    Attributes:
        secret: the secret that it sent with AUTH, to renew the grant.
        grant: the auth server's answer.
        expires_s: monotonic time at which the grant has to be renewed, in seconds.
        may_finish_mpub: an MPUB was allowed and its body has not come yet.
    """

    __slots__ = ("expires_s", "grant", "may_finish_mpub", "secret")

    def __init__(self, secret: bytes, grant: Grant, now_s: float) -> None:
        self.secret = secret
        self.grant = grant
        self.expires_s = now_s + grant.ttl_s
        self.may_finish_mpub = False

    def __repr__(self) -> str:
        return f"<ClientAuth {self.grant!r}>"

    def renew(self, grant: Grant, now_s: float) -> None:
        """Replace the grant by a newer one."""
        self.grant = grant
        self.expires_s = now_s + grant.ttl_s


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str


def _value_or_refusal(read: Callable[[bytes], T], body: bytes) -> T | _Refusal:
    """Return an error as a value: a raised one would keep the answer until the next GC."""
    try:
        return read(body)
    except ValueError as error:
        return _Refusal(str(error))


class AuthServers:
    """The servers of ``--auth-http-address``.

    Attributes:
        dial: connects to a server. Tests replace it.
        active_requests: requests under way.
        waiting_requests: clients whose request waits for its turn.
    """

    def __init__(self, options: NsqdOptions, random: Random) -> None:
        load_patterns()
        self.dial: httpget.Dial = trio.open_tcp_stream
        self._urls = [question_url(address) for address in options.auth_http_address]
        self._posts = options.auth_http_request_method == "post"
        self._root_ca_file = options.tls_root_ca_file
        self._ssl_context: ssl.SSLContext | None = None
        self._connect_timeout_s = httpget.limit_s(
            options.http_client_connect_timeout_ns / SECOND_NS
        )
        self._request_timeout_s = httpget.limit_s(
            options.http_client_request_timeout_ns / SECOND_NS
        )
        self._random = random
        self._turns = trio.Semaphore(_MAX_REQUESTS)
        # One at a time: threads compete for the interpreter, with the event loop too.
        self._reading = trio.CapacityLimiter(1)

    def __repr__(self) -> str:
        requests = f"active={self.active_requests} waiting={self.waiting_requests}"
        return f"<AuthServers {len(self._urls)} {requests}>"

    @property
    def active_requests(self) -> int:
        return _MAX_REQUESTS - self._turns.value

    @property
    def waiting_requests(self) -> int:
        return self._turns.statistics().tasks_waiting

    async def request_grant(self, question: Question) -> Grant | None:
        """Ask one server after the other, beginning with a random one, until one answers.

        This waits up to --http-client-request-timeout for its turn, and as long again for each
        server (twice as long if the server redirects to https).

        Returns:
            The first valid answer. None if there is none; the log has the reasons.
        """
        with trio.move_on_after(self._request_timeout_s) as waiting:
            await self._turns.acquire()
        if waiting.cancelled_caught:
            log.error(
                "AUTH: timed out in the queue of requests, %d are under way", self.active_requests
            )
            return None
        try:
            return await self._try_servers(question)
        finally:
            self._turns.release()

    async def _try_servers(self, question: Question) -> Grant | None:
        first = self._random.randrange(len(self._urls))
        for url in self._urls[first:] + self._urls[:first]:
            try:
                return await self._request_from(url, question)
            except httpget.AnswerError:
                reason = "no HTTP answer"  # the error's text may quote what the server said
            except (httpget.GetError, ValueError, OSError) as error:
                reason = str(error)
            log.error("AUTH: asking %s failed: %s", httpget.shown_url(url), reason)
        return None

    async def _request_from(self, url: str, question: Question) -> Grant:
        answer = await self._send(url, question)
        if answer.status == _FORBIDDEN:
            https_url = await self._read(partial(https_retry_url, url), answer.body)
            if https_url is not None:
                answer = await self._send(https_url, question)
        if answer.status != _OK:
            raise ValueError(f"status {answer.status}")
        return await self._read(read_grant, answer.body)

    async def _read(self, read: Callable[[bytes], T], body: bytes) -> T:
        """Parse an answer with ``read``, in a thread if it is long. It can't be cancelled."""
        if len(body) <= _MAX_INLINE_BYTES:
            return read(body)
        content = await trio.to_thread.run_sync(
            _value_or_refusal, read, body, limiter=self._reading
        )
        if isinstance(content, _Refusal):
            raise ValueError(content.reason)
        return content

    async def _send(self, url: str, question: Question) -> httpget.Answer:
        limits = (self._connect_timeout_s, self._request_timeout_s, MAX_ANSWER_BYTES)
        context = self._context() if url.startswith("https://") else None
        if self._posts:
            return await httpget.post(
                url, question.body(), _POSTED, *limits, ssl_context=context, dial=self.dial
            )
        url = f"{url}?{question.query()}"
        return await httpget.get(url, _ACCEPT, *limits, ssl_context=context, dial=self.dial)

    def _context(self) -> ssl.SSLContext:
        """Trust --tls-root-ca-file if it is set, else the system's certificates."""
        if self._ssl_context is None:
            self._ssl_context = client_context(self._root_ca_file)
        return self._ssl_context
