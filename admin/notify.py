"""Notifications of user actions to --notification-http-endpoint. Spec: nsqadmin, section 4."""

from __future__ import annotations

import socket

from admin.options import NsqadminOptions
from admin.posting import Poster
from admin.user_action import UserAction
from trionsq.durations import SECOND_NS
from trionsq.web.protocol import json_bytes

__all__ = ["Notifier", "notification"]


class Notifier:
    """POSTs user actions in their order, in its own task; each once."""

    def __init__(self, options: NsqadminOptions) -> None:
        timeout_s = options.http_client_request_timeout_ns / SECOND_NS
        self._poster = Poster("NOTIFY", options.notification_http_endpoint, timeout_s)
        self._via = socket.gethostname()

    @property
    def dropped(self) -> int:
        """Notifications for which the queue had no room."""
        return self._poster.dropped

    def queue_notification(self, done: UserAction) -> None:
        """Queue a notification; an observer, see `admin.dashboard`."""
        self._poster.queue(notification(done, self._via), f"the notification of {done.action}")

    async def run(self) -> None:
        """Send until cancelled; then the queue gets a second."""
        await self._poster.run()


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
