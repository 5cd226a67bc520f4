"""POSTs to an endpoint outside NSQ, in their order, from a bounded queue."""

from __future__ import annotations

import hashlib
import hmac
import logging
import ssl
from collections.abc import Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2
import trio

from trionsq import NSQ_VERSION
from trionsq.httpget import shown_url

__all__ = ["MAX_QUEUE", "SIGNATURE", "Poster"]

log = logging.getLogger("trionsq")

MAX_QUEUE: Final = 1000
"""Bodies in the queue; further ones are dropped, with a log line."""
SIGNATURE: Final = "X-Nsqadmin-Signature"
"""The header with ``sha256=`` and the HMAC-SHA256 of the body, in hexadecimal."""
# Time for the queue when nsqadmin stops.
_LAST_S: Final = 1.0


class Poster:
    """Sends bodies of JSON to a URL, in its own task.

    Attributes:
        dropped: bodies for which the queue had no room.
    """

    def __init__(
        self,
        name: str,
        url: str,
        timeout_s: float,
        *,
        key: bytes = b"",
        retries_s: Sequence[float] = (),
    ) -> None:
        """Make a poster; `run` sends.

        Args:
            name: for log lines, as ``NOTIFY``.
            url: of the endpoint.
            timeout_s: of a request.
            key: signs the bodies by `SIGNATURE`; empty: they are not signed.
            retries_s: waits before further tries of a body that failed, in seconds.
        """
        self._name = name
        self._url = url
        self._timeout_s = timeout_s
        self._key = key
        self._retries_s = retries_s
        self._send, self._receive = trio.open_memory_channel[bytes](MAX_QUEUE)
        self.dropped = 0

    def queue(self, body: bytes, what: str) -> None:
        """Queue a body; ``what`` names it in the log if there is no room."""
        try:
            self._send.send_nowait(body)
        except trio.WouldBlock:
            self.dropped += 1
            log.error("%s: dropped %s: the queue is full", self._name, what)
        except trio.BrokenResourceError:
            log.error("%s: dropped %s: nsqadmin is stopping", self._name, what)

    async def run(self) -> None:
        """Send until cancelled; then the queue gets a second."""
        async with httpx2.AsyncClient(
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"nsqadmin v{NSQ_VERSION}",
            },
            verify=ssl.create_default_context(),
            timeout=httpx2.Timeout(None),
            limits=httpx2.Limits(max_connections=1),
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        ) as client:
            current: list[bytes] = []
            try:
                while True:
                    current.append(await self._receive.receive())
                    await self._post_with_retries(client, current[0])
                    current.clear()
            finally:
                with trio.move_on_after(_LAST_S, shield=True) as last:
                    await self._flush(client, current)
                if last.cancelled_caught:
                    log.error("%s: stopped with unsent notifications", self._name)

    async def _flush(self, client: httpx2.AsyncClient, current: list[bytes]) -> None:
        """Send the interrupted body again (it may arrive twice), then the queue."""
        for body in current:
            await self._post(client, body)
        while True:
            try:
                body = self._receive.receive_nowait()
            except trio.WouldBlock:
                return
            await self._post(client, body)

    async def _post_with_retries(self, client: httpx2.AsyncClient, body: bytes) -> None:
        for wait_s in self._retries_s:
            if await self._post(client, body):
                return
            await trio.sleep(wait_s)
        await self._post(client, body)

    async def _post(self, client: httpx2.AsyncClient, body: bytes) -> bool:
        """Whether the endpoint has taken the body."""
        headers = {}
        if self._key:
            headers[SIGNATURE] = f"sha256={hmac.new(self._key, body, hashlib.sha256).hexdigest()}"
        try:
            with trio.fail_after(self._timeout_s):
                async with client.stream(
                    "POST", self._url, content=body, headers=headers
                ) as answer:
                    status = answer.status_code
        except trio.TooSlowError:
            why = f"no answer within {self._timeout_s:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        else:
            if 200 <= status < 300:
                return True
            why = f"got status code {status}"
        log.error("%s: POST %s failed: %s", self._name, shown_url(self._url), why)
        return False
