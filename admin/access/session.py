"""Sessions and their cookie.

Sessions are in memory, so that sign-out and expiry take effect at once. The cookie is a random
token; only its hash is stored here. A session ends when it was not used for its lifetime, a week
after its start, at sign-out, when the user's line in the users file changes, and with the process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from quart import request

__all__ = [
    "ABSOLUTE_S",
    "COOKIE",
    "MAX_SESSIONS",
    "MAX_SESSIONS_PER_USER",
    "Session",
    "Sessions",
    "cookie_name",
    "is_https",
]

MAX_SESSIONS: Final = 10_000
# The user's least recently used session goes first; other users keep theirs.
MAX_SESSIONS_PER_USER: Final = 50
ABSOLUTE_S: Final = 7 * 24 * 3600.0
_TOKEN_BYTES: Final = 32


@dataclasses.dataclass(slots=True)
class Session:
    """A user who has signed in.

    Attributes:
        name: the user's.
        seal: `users.Account.seal` of the user's line at sign-in.
        key: the hash of the token; identifies the session.
        began_s, seen_s: start and last use, by the clock of `Sessions`.
    """

    name: str
    seal: str
    key: str
    began_s: float
    seen_s: float


class Sessions:
    """All sessions, limited in number."""

    def __init__(self, lifetime_s: float, now_s: Callable[[], float]) -> None:
        """Sessions end ``lifetime_s`` after their last use by the clock ``now_s``."""
        self._lifetime_s = lifetime_s
        self._now_s = now_s
        # By last use, the oldest first.
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def start_session(self, name: str, seal: str) -> str:
        """Start a session of a user and return its token, which is stored nowhere."""
        self._forget_expired()
        own = [key for key, session in self._sessions.items() if session.name == name]
        if len(own) >= MAX_SESSIONS_PER_USER:
            del self._sessions[own[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        key, now_s = _key(token), self._now_s()
        self._sessions[key] = Session(name, seal, key, now_s, now_s)
        return token

    def find_session(self, token: str) -> Session | None:
        """The session of ``token``, None if there is none. Counts as a use of the session."""
        session = self._sessions.get(_key(token))
        if session is None:
            return None
        if self._expired(session):
            del self._sessions[session.key]
            return None
        session.seen_s = self._now_s()
        self._sessions.move_to_end(session.key)
        return session

    def is_alive(self, session: Session) -> bool:
        """Whether the session has not ended. Does not count as a use."""
        return self._sessions.get(session.key) is session and not self._expired(session)

    def end_session(self, session: Session) -> None:
        """End the session, if it has not ended."""
        self._sessions.pop(session.key, None)

    def _expired(self, session: Session) -> bool:
        now_s = self._now_s()
        return now_s - session.seen_s >= self._lifetime_s or now_s - session.began_s >= ABSOLUTE_S

    def _forget_expired(self) -> None:
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if not self._expired(session):
                return
            del self._sessions[key]


def _key(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


COOKIE: Final = "nsqadmin_session"
_SCHEMES: Final = ("X-Scheme", "X-Forwarded-Proto")


def cookie_name(port: int) -> str:
    """The name of the cookie for the request that is being answered.

    Browsers keep cookies by host: they do not separate ports, and HTTP does not replace a cookie
    that came by HTTPS. With one name for all, a sign-in at one dashboard would be a sign-out at
    another.
    So the name contains our port (``port``; below 1: none), the port that the browser sees, if it
    is another one (a tunnel, a proxy), and whether the browser sees HTTPS.
    """
    host = request.headers.get(":authority", "")
    browser_port = host.rpartition(":")[2] if not host.endswith("]") else ""
    parts = [COOKIE]
    if port > 0:
        parts.append(str(port))
    if (
        browser_port.isascii()
        and browser_port.isdigit()
        and ":" in host
        and len(browser_port) <= 5
        and browser_port != str(port)
    ):
        parts.append(browser_port)
    if is_https():
        parts.append("tls")
    return "_".join(parts)


def is_https() -> bool:
    """Whether the browser sees HTTPS. Any sender is trusted: a lie only costs its own cookie."""
    schemes = (request.scope.get("scheme"), *(request.headers.get(name) for name in _SCHEMES))
    return "https" in schemes
