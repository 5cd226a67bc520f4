"""The sign-in page, and the audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from quart import Response

from admin.access.audit import Entry
from admin.access.signin import safe_path
from admin.pages.listing import Column, listed
from admin.pages.site import Site, arguments
from trionsq.web.app import Endpoint

__all__ = ["Account"]

_PROBLEMS: Final[Mapping[str, str]] = {
    "wrong": "Name or password is wrong.",
    "slow": "Too many attempts from your address. Try again in {wait} seconds.",
    "busy": "Too many people are signing in at the moment. Try again.",
}

_COLUMNS: Final[Sequence[Column[Entry]]] = (
    Column("time", "Time (UTC)", lambda row: row.time_s, is_number=False),
    Column("user", "User", lambda row: row.user, is_number=False),
    Column("action", "Action", lambda row: row.action or row.path, is_number=False),
    Column("on", "On", lambda row: (row.topic, row.channel, row.node), is_number=False),
    Column("from", "From", lambda row: row.address, is_number=False),
    Column("result", "Result", lambda row: row.status, is_number=False),
)


class Account:
    """GET /sign-in and GET /audit."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._access = site.dashboard.access

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [("GET", "/sign-in", self.sign_in), ("GET", "/audit", self.audit)]

    async def sign_in(self) -> Response:
        """GET /sign-in: ``problem``, ``wait`` in seconds, and ``next``, where to go afterwards."""
        query = arguments()
        wanted = safe_path(query.get("next", ""), self._site.dashboard.base_path)
        if not self._access.has_sign_in or self._access.allows("viewer"):
            return _away(wanted)
        wait = query.get("wait", "")
        wait = wait if wait.isascii() and wait.isdigit() and len(wait) < 6 else "some"
        problem = _PROBLEMS.get(query.get("problem", ""), "").format(wait=wait)
        return self._site.lone("signin.html", "Sign in", problem=problem, next=wanted)

    async def audit(self) -> Response:
        """GET /audit."""
        audit = self._access.audit
        listing = listed(
            audit.entries(),
            _COLUMNS,
            arguments(),
            path=self._site.url("audit"),
            text=_text,
            sort="-time",
        )
        return self._site.page(
            "audit.html",
            "Audit",
            "audit",
            listing=listing,
            file=self._site.dashboard.options.audit_file,
            lost=audit.lost,
        )


def _text(row: Entry) -> str:
    parts: Iterable[str] = (
        row.user,
        row.role,
        row.action.replace("_", " "),
        row.topic,
        row.channel,
        row.node,
        row.address,
        row.path,
        row.note,
        "refused" if row.refused else "",
    )
    return " ".join(parts)


def _away(path: str) -> Response:
    response = Response(b"", 303)
    response.headers["Location"] = path
    return response
