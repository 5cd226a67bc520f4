"""Roles and users, and the role that each path requires."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final

__all__ = ["REQUIRED_ROLES", "REQUIRED_ROLES_WITH_ACL", "Role", "User", "required_role"]


class Role(enum.IntEnum):
    """A set of permissions; each role includes those before it.

    EVERYONE is not a user's role: the sign-in page requires it.
    """

    EVERYONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def title(self) -> str:
        """As users write it: ``viewer``."""
        return self.name.lower()

    @classmethod
    def named(cls, title: str) -> Role:
        """The role of that title, in upper or lower case. Raises ValueError: there is none."""
        for role in (cls.VIEWER, cls.OPERATOR, cls.ADMIN):
            if role.title == title.strip().lower():
                return role
        raise ValueError(f"unknown role {title!r}: use viewer, operator or admin")


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """The sender of a request.

    Attributes:
        name: "" if there are no names.
        role: the permissions.
        how: how the user was identified: ``none``, ``header``, ``session``, ``basic``;
            ``nobody``: not signed in.
    """

    name: str
    role: Role
    how: str

    def may(self, role: Role) -> bool:
        """Whether the user has the permissions of ``role``."""
        return self.role >= role


_EVERYONE, _VIEWER, _OPERATOR, _ADMIN = Role.EVERYONE, Role.VIEWER, Role.OPERATOR, Role.ADMIN

REQUIRED_ROLES: Final[Mapping[str, Role]] = {
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
    # pause, unpause; for "empty" the handler requires an admin
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
    # of the process; --debug-from has to allow them, too
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
    "GET /search": _VIEWER,
    "GET /policies": _VIEWER,
    "GET /policies/edit": _OPERATOR,
    "GET /drain": _VIEWER,
    # they have bodies; for "discard" the handler requires an admin
    "GET /deadletters": _OPERATOR,
    "GET /deadletters/<verb>": _OPERATOR,
    "GET /clients": _VIEWER,
    "GET /nodes": _VIEWER,
    "GET /nodes/<node>": _VIEWER,
    "GET /counter": _VIEWER,
    "GET /lookup": _VIEWER,
    "GET /audit": _ADMIN,
    "GET /peek": _OPERATOR,
    "GET /message": _OPERATOR,
    "GET /publish": _OPERATOR,
    "GET /confirm/<verb>": _ADMIN,
    # the forms of the pages
    "POST /do/create": _OPERATOR,
    "POST /do/pause": _OPERATOR,
    "POST /do/unpause": _OPERATOR,
    # pause, unpause; for "delete" the handler requires an admin
    "POST /do/selected": _OPERATOR,
    # requeue; for "finish" and "cancel" the handler requires an admin
    "POST /do/message": _OPERATOR,
    "POST /do/letters": _OPERATOR,
    "POST /do/policy": _OPERATOR,
    "POST /do/drain": _ADMIN,
    "POST /do/publish": _OPERATOR,
    "POST /do/empty": _ADMIN,
    "POST /do/delete": _ADMIN,
    "POST /do/tombstone": _ADMIN,
    "POST /do/forget": _ADMIN,
}
"""By method and registered path, below the base path. Other paths require an admin."""

# The original leaves these to --allow-config-from-cidr alone.
REQUIRED_ROLES_WITH_ACL: Final[Mapping[str, Role]] = {
    "GET /config/<opt>": _VIEWER,
    "PUT /config/<opt>": _VIEWER,
}
"""The differences where --admin-user decides."""


def required_role(method: str, path: str, *, acl: bool) -> Role:
    """The least role for a registered path; ``acl``: whether --admin-user decides."""
    key = f"{method} {path}"
    if acl and key in REQUIRED_ROLES_WITH_ACL:
        return REQUIRED_ROLES_WITH_ACL[key]
    return REQUIRED_ROLES.get(key, _ADMIN)
