"""Signing in and out, and the audit."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote, urlencode

from quart import Response, g, request

from admin.access.audit import Entry
from admin.access.cross_site import form
from admin.access.guard import NOBODY, SIGN_IN_PATH
from admin.access.passwords import Busy, TooManyAttempts
from admin.access.session import cookie_name, is_https
from admin.access.users import Account
from admin.pages.listing import Column, make_listing
from admin.pages.site import Site, arguments
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

__all__ = ["AccountPages", "safe_path"]

log = logging.getLogger("trionsq")

_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")

_PROBLEMS: Final[Mapping[str, str]] = {
    "wrong": "Wrong name or password.",
    "slow": "Too many attempts from your address. Try again in {wait} seconds.",
    "busy": "Too many sign-ins at the moment. Try again.",
}

_NAME_COOKIE: Final = "nsqadmin_name"
_NAME_S: Final = 60
_MAX_NAME: Final = 64

_COLUMNS: Final[Sequence[Column[Entry]]] = (
    Column("time", "Time (UTC)", lambda row: row.time_s, is_number=False),
    Column("user", "User", lambda row: row.user, is_number=False),
    Column("action", "Action", lambda row: row.action or row.path, is_number=False),
    Column("on", "On", lambda row: (row.topic, row.channel, row.node), is_number=False),
    Column("from", "From", lambda row: row.address, is_number=False),
    Column("result", "Result", lambda row: row.status, is_number=False),
)


def safe_path(path: str, base_path: str) -> str:
    """``path`` if it is a path of the dashboard, else its first page; never another site."""
    home = base_path + "/"
    inside = path == base_path or path.startswith((home, base_path + "?"))
    return path if inside and _PATH.fullmatch(path) and "/.." not in path else home


class AccountPages:
    """GET and POST /sign-in, POST /sign-out, GET /audit."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._access = site.dashboard.access
        self._base_path = site.dashboard.base_path

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", SIGN_IN_PATH, self.sign_in),
            ("POST", SIGN_IN_PATH, self.submit_sign_in),
            ("POST", "/sign-out", self.sign_out),
            ("GET", "/audit", self.audit),
        ]

    async def sign_in(self) -> Response:
        """GET /sign-in: ``problem``, ``wait`` in seconds, and ``next``, where to go afterwards."""
        query = arguments()
        next_path = safe_path(query.get("next", ""), self._base_path)
        if not self._access.has_sign_in or self._access.allows("viewer"):
            return _redirect(next_path)
        wait = query.get("wait", "")
        wait = wait if wait.isascii() and wait.isdigit() and len(wait) < 6 else "some"
        problem = _PROBLEMS.get(query.get("problem", ""), "").format(wait=wait)
        name = unquote(request.cookies.get(_NAME_COOKIE, ""))[:_MAX_NAME]
        answer = self._site.lone(
            "signin.html", "Sign in", problem=problem, next=next_path, name=name
        )
        answer.delete_cookie(_NAME_COOKIE, path=f"{self._base_path}{SIGN_IN_PATH}")
        return answer

    async def submit_sign_in(self) -> Response:
        """POST /sign-in: fields ``name``, ``password`` and ``next``."""
        access = self._access
        if not access.has_sign_in:
            raise HttpError(404, "NOT_FOUND")
        fields = await form()
        name, next_path = fields.get("name", ""), fields.get("next", "")
        address = access.address()
        try:
            account = await access.passwords.check(name, fields.get("password", ""), address)
        except TooManyAttempts as error:
            return self._sign_in_again(
                "slow", next_path, wait=str(max(1, round(error.wait_s + 0.5)))
            )
        except Busy:
            return self._sign_in_again("busy", next_path)
        if account is None:
            log.warning("ACCESS: wrong user or password from %s", address or "a unix socket")
            # An unknown name is not recorded: it may be a password, typed into the wrong field.
            known = name if access.users.find(name) is not None else "(unknown)"
            access.record(user=known, action="sign_in", note="wrong password", refused=True)
            return self._sign_in_again("wrong", next_path, name=name[:_MAX_NAME])
        return self._start_session(account, next_path)

    def _start_session(self, account: Account, next_path: str) -> Response:
        access = self._access
        # The old session of this browser ends; the new one has a new token.
        if g.session is not None:
            access.sessions.end_session(g.session)
        token = access.sessions.start_session(account.name, account.seal)
        access.record(user=account.name, role=account.role.title, how="session", action="sign_in")
        answer = _redirect(safe_path(next_path, self._base_path))
        answer.set_cookie(
            cookie_name(access.port),
            token,
            path=self._base_path or "/",
            httponly=True,
            samesite="Lax",
            secure=is_https(),
        )
        return answer

    async def sign_out(self) -> Response:
        """POST /sign-out: the session ends, here and in every copy of its cookie."""
        access = self._access
        access.record_action("sign_out")
        if g.session is not None:
            access.sessions.end_session(g.session)
        g.user, g.session = NOBODY, None
        answer = _redirect(self._base_path + (SIGN_IN_PATH if access.has_sign_in else "/"))
        path = self._base_path or "/"
        answer.delete_cookie(cookie_name(access.port), path=path, httponly=True, samesite="Lax")
        return answer

    def _sign_in_again(
        self, problem: str, next_path: str, *, name: str = "", **more: str
    ) -> Response:
        query = {"problem": problem, **more}
        if next_path:
            query["next"] = safe_path(next_path, self._base_path)
        path = f"{self._base_path}{SIGN_IN_PATH}"
        answer = _redirect(f"{path}?{urlencode(query)}")
        if name:
            # Not in the address, which browsers keep: it may be a password in the wrong field.
            answer.set_cookie(
                _NAME_COOKIE, quote(name), max_age=_NAME_S, path=path, httponly=True, samesite="Lax"
            )
        return answer

    async def audit(self) -> Response:
        """GET /audit."""
        audit = self._access.audit
        listing = make_listing(
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


def _redirect(path: str) -> Response:
    response = Response(b"", 303)
    response.headers["Location"] = path
    return response
