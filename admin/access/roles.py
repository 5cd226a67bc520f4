"""Roles, and users, who have one."""

from __future__ import annotations

import dataclasses
import enum

__all__ = ["Role", "User"]


class Role(enum.IntEnum):
    """What somebody may do; each includes those before it.

    EVERYONE is no user's role: it is what the sign-in page needs.
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
        """The role of a user that is written so, in any case. Raises ValueError: there is none."""
        for role in (cls.VIEWER, cls.OPERATOR, cls.ADMIN):
            if role.title == title.strip().lower():
                return role
        raise ValueError(f"unknown role {title!r}: use viewer, operator or admin")


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """Somebody at the dashboard.

    Attributes:
        name: "" if there are no names.
        role: what they may do.
        how: by what they are known: ``none``, ``header``, ``session``, ``basic``; ``nobody`` has
            not signed in.
    """

    name: str
    role: Role
    how: str

    def may(self, role: Role) -> bool:
        """Whether they may do what needs ``role``."""
        return self.role >= role
