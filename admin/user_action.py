"""What a user did, as the audit and the notification endpoint learn of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UserAction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAction:
    """Something that a user did, or tried to.

    Attributes:
        action: such as ``pause_channel``, one of those of spec/nsqadmin, section 4.
        topic, channel, node: to what; "" where there is none.
        time_s: seconds since 1970.
        user: who, as far as known; "" if not.
        remote_ip: host:port of the connection.
        user_agent, url: of the request.
        warnings: what went wrong at single nodes.
        error: why nothing was done; "" if it was.
    """

    action: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    time_s: float
    user: str
    remote_ip: str
    user_agent: str
    url: str
    warnings: tuple[str, ...] = ()
    error: str = ""
