"""Signing in and out: what the forms of the sign-in page are sent to.

The page itself is the pages' matter: ``GET /sign-in``. It is given ``problem`` (``wrong``, ``slow``
with ``wait`` in seconds, ``busy``) and ``next``, the path to go to afterwards.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from quart import Response, g

from admin.access.cookie import came_by_https, cookie_name
from admin.access.csrf import form
from admin.access.guard import NOBODY, SIGN_IN_PATH, Access
from admin.access.passwords import Busy, TooManyAttempts
from admin.access.users import Account
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

if TYPE_CHECKING:
    from admin.dashboard import Dashboard

__all__ = ["endpoints", "safe_path"]

log = logging.getLogger("trionsq")

_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """Sign-in and sign-out."""
    signing = _Signing(dashboard.access, dashboard.base_path)
    return [
        ("POST", SIGN_IN_PATH, signing.sign_in),
        ("POST", "/sign-out", signing.sign_out),
    ]


def safe_path(path: str, base_path: str) -> str:
    """``path`` if it is one of the dashboard, else its first page: never another site."""
    home = base_path + "/"
    inside = path == base_path or path.startswith((home, base_path + "?"))
    return path if inside and _PATH.fullmatch(path) and "/.." not in path else home


class _Signing:
    def __init__(self, access: Access, base_path: str) -> None:
        self._access = access
        self._base_path = base_path

    async def sign_in(self) -> Response:
        """POST /sign-in: fields ``name``, ``password`` and ``next``."""
        access = self._access
        if not access.has_sign_in:
            raise HttpError(404, "NOT_FOUND")
        fields = await form()
        name, wanted = fields.get("name", ""), fields.get("next", "")
        address = access.address()
        try:
            account = await access.passwords.check(name, fields.get("password", ""), address)
        except TooManyAttempts as error:
            return self._again("slow", wanted, wait=str(max(1, round(error.wait_s + 0.5))))
        except Busy:
            return self._again("busy", wanted)
        if account is None:
            log.warning("ACCESS: wrong user or password from %s", address or "a unix socket")
            # Only a name that we know: somebody may have typed the password there.
            known = name if access.users.find(name) is not None else "(unknown)"
            access.record(user=known, action="sign_in", note="wrong password", refused=True)
            return self._again("wrong", wanted)
        return self._welcome(account, wanted)

    def _welcome(self, account: Account, wanted: str) -> Response:
        access = self._access
        # Whoever was signed in here is not any more; the new session has a new token.
        if g.session is not None:
            access.sessions.end(g.session)
        token = access.sessions.begin(account.name, account.seal)
        access.record(user=account.name, role=account.role.title, how="session", action="sign_in")
        answer = _redirect(safe_path(wanted, self._base_path))
        answer.set_cookie(
            cookie_name(access.port),
            token,
            path=self._base_path or "/",
            httponly=True,
            samesite="Lax",
            secure=came_by_https(),
        )
        return answer

    async def sign_out(self) -> Response:
        """POST /sign-out: the session ends, here and in every copy of its cookie."""
        access = self._access
        access.about("sign_out")
        if g.session is not None:
            access.sessions.end(g.session)
        g.user, g.session = NOBODY, None
        answer = _redirect(self._base_path + (SIGN_IN_PATH if access.has_sign_in else "/"))
        path = self._base_path or "/"
        answer.delete_cookie(cookie_name(access.port), path=path, httponly=True, samesite="Lax")
        return answer

    def _again(self, problem: str, wanted: str, **more: str) -> Response:
        query = {"problem": problem, **more}
        if wanted:
            query["next"] = safe_path(wanted, self._base_path)
        return _redirect(f"{self._base_path}{SIGN_IN_PATH}?{urlencode(query)}")


def _redirect(path: str) -> Response:
    answer = Response(b"", 303)
    answer.headers["Location"] = path
    return answer
