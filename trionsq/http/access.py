"""What the users of --acl-file may do over nsqd's HTTP API; docs/acl.md has the table."""

from __future__ import annotations

from typing import Final

from trionsq.daemon.acl import AclUser
from trionsq.web.protocol import Query

__all__ = ["may_use"]

_ANY_USER: Final = frozenset({"/info", "/stats", "/metrics"})
_PUBLISH: Final = frozenset({"/pub", "/mpub", "/put", "/mput"})
_READ: Final = frozenset({"/topic/peek", "/topic/log"})
# How far the log of a topic reaches is for its readers, too.
_SETTINGS: Final = ("GET", "/topic/settings")
# The other routes below these are about the topic in their query; all else is about the node.
_OF_A_TOPIC: Final = ("/topic/", "/channel/")


def may_use(user: AclUser, method: str, path: str, values: Query) -> bool:
    """See `trionsq.web.access.Rule`."""
    if path in _ANY_USER:
        return True
    topic = values.get(b"topic", b"").decode(errors="replace")
    if path in _PUBLISH:
        return user.may_publish(topic)
    if path in _READ or (topic and (method, path) == _SETTINGS):
        return user.may_read(topic)
    if path == "/channel/peek":
        channel = values.get(b"channel", b"").decode(errors="replace")
        return user.may_subscribe(topic, channel) or user.may_read(topic)
    return user.may_administer(topic if path.startswith(_OF_A_TOPIC) else "")
