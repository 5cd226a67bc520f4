"""The original's access control: a header names the user (--admin-user). Spec: section 4."""

from __future__ import annotations

from quart import request

from admin.options import NsqadminOptions

__all__ = ["HeaderAccess"]


class HeaderAccess:
    """Everybody may look; if there are admin users, only they may change things."""

    def __init__(self, options: NsqadminOptions) -> None:
        self._users = frozenset(options.admin_user)
        self._header = options.acl_http_header

    def allows(self, role: str) -> bool:
        """Whether the sender of the request has that role."""
        return role == "viewer" or not self._users or self._named() in self._users

    def user(self) -> str:
        """The name in HTTP's basic authentication, which nobody has checked; "" without."""
        given = request.authorization
        if given is not None and given.type == "basic":
            return given.username or ""
        return ""

    def _named(self) -> str:
        return request.headers.get(self._header, "")
