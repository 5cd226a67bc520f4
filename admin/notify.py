"""Notifications of user actions to --notification-http-endpoint. Spec: nsqadmin, section 4."""

from __future__ import annotations

import logging
import socket
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2
import trio

from admin.options import NsqadminOptions
from admin.user_action import UserAction
from trionsq import NSQ_VERSION
from trionsq.durations import SECOND_NS
from trionsq.httpget import shown_url
from trionsq.web.protocol import json_bytes

__all__ = ["MAX_QUEUE", "Notifier", "notification"]

log = logging.getLogger("trionsq")

MAX_QUEUE: Final = 1000
"""Notifications in the queue; further ones are dropped, with a log line."""
# Time for the queue when nsqadmin stops.
_LAST_S: Final = 1.0


class Notifier:
    """POSTs user actions in their order, in its own task.

    Attributes:
        dropped: notifications for which the queue had no room.
    """

    def __init__(self, options: NsqadminOptions) -> None:
        self._url = options.notification_http_endpoint
        self._timeout_s = options.http_client_request_timeout_ns / SECOND_NS
        self._via = socket.gethostname()
        self._send, self._receive = trio.open_memory_channel[bytes](MAX_QUEUE)
        self.dropped = 0

    def queue_notification(self, done: UserAction) -> None:
        """Queue a notification; an observer, see `admin.dashboard`."""
        try:
            self._send.send_nowait(notification(done, self._via))
        except trio.WouldBlock:
            self.dropped += 1
            log.error("NOTIFY: dropped the notification of %s: the queue is full", done.action)
        except trio.BrokenResourceError:
            log.error("NOTIFY: dropped the notification of %s: nsqadmin is stopping", done.action)

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
                    await self._post(client, current[0])
                    current.clear()
            finally:
                with trio.move_on_after(_LAST_S, shield=True) as last:
                    await self._flush(client, current)
                if last.cancelled_caught:
                    log.error("NOTIFY: stopped with unsent notifications")

    async def _flush(self, client: httpx2.AsyncClient, current: list[bytes]) -> None:
        """Send the interrupted notification again (it may arrive twice), then the queue."""
        for body in current:
            await self._post(client, body)
        while True:
            try:
                body = self._receive.receive_nowait()
            except trio.WouldBlock:
                return
            await self._post(client, body)

    async def _post(self, client: httpx2.AsyncClient, body: bytes) -> None:
        try:
            with trio.fail_after(self._timeout_s):
                async with client.stream("POST", self._url, content=body) as answer:
                    status = answer.status_code
        except trio.TooSlowError:
            why = f"no answer within {self._timeout_s:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        else:
            if 200 <= status < 300:
                return
            why = f"got status code {status}"
        log.error("NOTIFY: POST %s failed: %s", shown_url(self._url), why)


def notification(done: UserAction, via: str) -> bytes:
    """The JSON of a notification; ``via`` is the name of this host."""
    optional = {"channel": done.channel, "node": done.node, "user": done.user}
    present = {name: value for name, value in optional.items() if value}
    names = ("action", "topic", "channel", "node", "timestamp", "user")
    values = {"action": done.action, "topic": done.topic, "timestamp": int(done.time_s), **present}
    head = {name: values[name] for name in names if name in values}
    tail = {
        "remote_ip": done.remote_ip,
        "user_agent": done.user_agent,
        "url": done.url,
        "via": via,
    }
    return json_bytes({**head, **tail})
