"""Whom each path needs, below the base path. A path that is not here needs an admin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from admin.access.roles import Role

__all__ = ["NEEDED", "NEEDED_WITH_ACL", "needed"]

_EVERYONE, _VIEWER, _OPERATOR, _ADMIN = Role.EVERYONE, Role.VIEWER, Role.OPERATOR, Role.ADMIN

NEEDED: Final[Mapping[str, Role]] = {
    "GET /ping": _EVERYONE,
    "GET /live": _EVERYONE,
    "GET /ready": _EVERYONE,
    "GET /static/<path:asset>": _EVERYONE,
    "GET /fonts/<path:asset>": _EVERYONE,
    "GET /sign-in": _EVERYONE,
    "POST /sign-in": _EVERYONE,
    "POST /sign-out": _VIEWER,
    "GET /metrics": _VIEWER,
    # the JSON API
    "GET /api/topics": _VIEWER,
    "POST /api/topics": _OPERATOR,
    "GET /api/topics/<topic>": _VIEWER,
    # pause, unpause; for "empty" the handler asks for an admin
    "POST /api/topics/<topic>": _OPERATOR,
    "DELETE /api/topics/<topic>": _ADMIN,
    "GET /api/topics/<topic>/<channel>": _VIEWER,
    "POST /api/topics/<topic>/<channel>": _OPERATOR,
    "DELETE /api/topics/<topic>/<channel>": _ADMIN,
    "GET /api/nodes": _VIEWER,
    "GET /api/nodes/<node>": _VIEWER,
    "DELETE /api/nodes/<node>": _ADMIN,
    "GET /api/counter": _VIEWER,
    "GET /api/graphite": _VIEWER,
    "GET /render": _VIEWER,
    "GET /config/<opt>": _ADMIN,
    "PUT /config/<opt>": _ADMIN,
    # of the process; --debug-from has to allow it too
    "GET /debug/pprof": _ADMIN,
    "GET /debug/pprof/cmdline": _ADMIN,
    "GET /debug/pprof/symbol": _ADMIN,
    "POST /debug/pprof/symbol": _ADMIN,
    "GET /debug/pprof/profile": _ADMIN,
    "GET /debug/pprof/heap": _ADMIN,
    "GET /debug/pprof/goroutine": _ADMIN,
    "GET /debug/pprof/block": _ADMIN,
    "GET /debug/pprof/threadcreate": _ADMIN,
    # pages
    "GET /": _VIEWER,
    "GET /events": _VIEWER,
    "GET /topics": _VIEWER,
    "GET /topics/<topic>": _VIEWER,
    "GET /topics/<topic>/<channel>": _VIEWER,
    "GET /nodes": _VIEWER,
    "GET /nodes/<node>": _VIEWER,
    "GET /counter": _VIEWER,
    "GET /lookup": _VIEWER,
    "GET /audit": _ADMIN,
    "GET /peek": _OPERATOR,
    "GET /publish": _OPERATOR,
    "GET /confirm/<verb>": _ADMIN,
    # what their forms do
    "POST /do/create": _OPERATOR,
    "POST /do/pause": _OPERATOR,
    "POST /do/unpause": _OPERATOR,
    "POST /do/publish": _OPERATOR,
    "POST /do/empty": _ADMIN,
    "POST /do/delete": _ADMIN,
    "POST /do/tombstone": _ADMIN,
}
"""By method and path, as it is registered."""

# The original leaves these to --allow-config-from-cidr alone.
NEEDED_WITH_ACL: Final[Mapping[str, Role]] = {
    "GET /config/<opt>": _VIEWER,
    "PUT /config/<opt>": _VIEWER,
}
"""What is different where --admin-user decides."""


def needed(method: str, path: str, *, acl: bool) -> Role:
    """The least role for a path as it is registered, ``acl`` if --admin-user decides."""
    key = f"{method} {path}"
    if acl and key in NEEDED_WITH_ACL:
        return NEEDED_WITH_ACL[key]
    return NEEDED.get(key, _ADMIN)
