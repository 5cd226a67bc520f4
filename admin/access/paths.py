"""Whom each path needs. Pages say so themselves by `roles.require`; here are the other paths.

What neither names is for admins: what is forgotten is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from admin.access.roles import Role, required

__all__ = ["NEEDED", "NEEDED_WITH_ACL", "needed"]

_EVERYONE, _VIEWER, _OPERATOR, _ADMIN = Role.EVERYONE, Role.VIEWER, Role.OPERATOR, Role.ADMIN

NEEDED: Final[Mapping[str, Role]] = {
    "GET /ping": _EVERYONE,
    "GET /static/<path:asset>": _EVERYONE,
    "GET /fonts/<path:asset>": _EVERYONE,
    "POST /sign-in": _EVERYONE,
    "POST /sign-out": _VIEWER,
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
    "GET /events": _VIEWER,
}
"""By method and path, as it is registered."""

# The original leaves these to --allow-config-from-cidr alone.
NEEDED_WITH_ACL: Final[Mapping[str, Role]] = {
    "GET /config/<opt>": _VIEWER,
    "PUT /config/<opt>": _VIEWER,
}
"""What is different where --admin-user decides."""


def needed(method: str, path: str, function: object, *, acl: bool) -> Role:
    """The least role for a path.

    Args:
        method: of the request.
        path: as it is registered, below the base path: ``/topics/<topic>``.
        function: what answers there; its `roles.require` mark comes before the table.
        acl: --admin-user decides.
    """
    key = f"{method} {path}"
    if acl and key in NEEDED_WITH_ACL:
        return NEEDED_WITH_ACL[key]
    role = required(function)
    return NEEDED.get(key, Role.ADMIN) if role is None else role
