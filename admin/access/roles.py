"""Roles, and the mark by which each path says which of them it needs.

A path without a mark needs an admin: what is forgotten is closed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

__all__ = ["Need", "Role", "User", "need_of", "require"]

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
_MARK: Final = "role_needed"


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


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a path needs: ``role``, or with the original's ACL (--admin-user) ``acl``."""

    role: Role
    acl: Role


def require(role: Role, *, acl: Role | None = None) -> Callable[[F], F]:
    """Mark the function of a path: it is for users with ``role`` only.

    Args:
        role: the least role.
        acl: the least role where --admin-user decides, if it is another one: the original lets
            everybody read.
    """

    def mark(function: F) -> F:
        function.__dict__[_MARK] = Need(role, role if acl is None else acl)
        return function

    return mark


def need_of(function: object) -> Need | None:
    """What ``function`` was marked with; None: it was not."""
    need = getattr(function, _MARK, None)
    return need if isinstance(need, Need) else None
