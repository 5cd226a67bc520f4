"""What a user did, as the audit and the notification endpoint learn of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UserAction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAction:
    """An action of a user, done or failed.

    Attributes:
        action: such as ``pause_channel``, one of those of spec/nsqadmin, section 4.
        topic, channel, node: that the action was applied to; "" where there is none.
        time_s: seconds since 1970.
        user: the name; "" if it is not known.
        remote_ip: host:port of the connection.
        user_agent, url: of the request.
        warnings: errors of single nodes.
        error: why nothing was done; "" if something was.
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
