"""Who is signed in: in memory, so that signing out and expiry hold at once.

The cookie holds a random token and nothing else; only its hash is kept here. A session ends when
it is not used for its lifetime, a week after its begin, at sign-out, when the user's line in the
users file changes, and with the process.
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
    "OF_ONE_USER_MAX",
    "SESSIONS_MAX",
    "Session",
    "Sessions",
    "cookie_name",
    "is_https",
]

SESSIONS_MAX: Final = 10_000
# A user with more loses the one that was used longest ago; others' are not touched.
OF_ONE_USER_MAX: Final = 50
ABSOLUTE_S: Final = 7 * 24 * 3600.0
_TOKEN_NBYTES: Final = 32


@dataclasses.dataclass(slots=True)
class Session:
    """A user who has signed in.

    Attributes:
        name: the user's.
        seal: what their line in the users file was like (`users.Account.seal`).
        key: names the session, without giving it away.
        began_s, seen_s: when it began and was last used, by the clock of `Sessions`.
    """

    name: str
    seal: str
    key: str
    began_s: float
    seen_s: float


class Sessions:
    """All sessions, bounded in number."""

    def __init__(self, lifetime_s: float, now_s: Callable[[], float]) -> None:
        """Sessions end ``lifetime_s`` after their last use by the clock ``now_s``."""
        self._lifetime_s = lifetime_s
        self._now_s = now_s
        # By last use, the oldest first.
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, name: str, seal: str) -> str:
        """Begin a session of a user, and return its token, which is nowhere else."""
        self._forget_expired()
        own = [key for key, session in self._sessions.items() if session.name == name]
        if len(own) >= OF_ONE_USER_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        token = secrets.token_urlsafe(_TOKEN_NBYTES)
        key, now_s = _key(token), self._now_s()
        self._sessions[key] = Session(name, seal, key, now_s, now_s)
        return token

    def find(self, token: str) -> Session | None:
        """The session of ``token``, which is used by this; None if there is none any more."""
        session = self._sessions.get(_key(token))
        if session is None:
            return None
        if self._expired(session):
            del self._sessions[session.key]
            return None
        session.seen_s = self._now_s()
        self._sessions.move_to_end(session.key)
        return session

    def alive(self, session: Session) -> bool:
        """Whether it has not ended; this is no use of it."""
        return self._sessions.get(session.key) is session and not self._expired(session)

    def end(self, session: Session) -> None:
        """End it, if it has not ended."""
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
    """The name for the request that is being answered.

    It has the port where we listen, the one that the browser sees if that is another (a tunnel, a
    proxy), and whether it sees HTTPS. ``port`` below 1: none.
    """
    host = request.headers.get(":authority", "")
    seen = host.rpartition(":")[2] if not host.endswith("]") else ""
    parts = [COOKIE]
    if port > 0:
        parts.append(str(port))
    if seen.isascii() and seen.isdigit() and ":" in host and len(seen) <= 5 and seen != str(port):
        parts.append(seen)
    if is_https():
        parts.append("tls")
    return "_".join(parts)


def is_https() -> bool:
    """Whether the browser sees HTTPS. Believed of everybody: who lies gets a cookie sent less."""
    given = (request.scope.get("scheme"), *(request.headers.get(name) for name in _SCHEMES))
    return "https" in given
