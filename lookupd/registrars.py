"""Which nsqds may register: those with the token of a user of --acl-file that has `register`.

A file without such a user leaves the registration open, as the original's is: its nsqds send no
token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from trionsq.daemon.acl import Authenticator, TooManyAttempts
from trionsq.hostport import split_address
from trionsq.wire import gojson

__all__ = ["Registrars", "read_token"]

log = logging.getLogger("trionsq")


def read_token(body: bytes) -> str:
    """The token in the body of an IDENTIFY, which no log may show; empty without one.

    Raises:
        ValueError: it is not a JSON object, or the token is no string.
    """
    token = gojson.read_members(body, {"auth_token": str}).get("auth_token", "")
    assert isinstance(token, str)
    return token


class Registrars:
    """Looks at the tokens of nsqds, at IDENTIFY and when the file changes."""

    def __init__(self, users: Authenticator | None) -> None:
        """``users``: of --acl-file, None without one."""
        self._users = users
        # The token of each connection that has identified itself.
        self._tokens: dict[trio.CancelScope, bytes] = {}
        if users is not None:
            users.file.observers.append(self._look_again)

    def __repr__(self) -> str:
        return f"<Registrars guards={self.guards} connections={len(self._tokens)}>"

    @property
    def guards(self) -> bool:
        """Whether nsqds need a token."""
        return self._users is not None and self._users.file.acl.has_registrars

    @contextmanager
    def connection(self) -> Iterator[trio.CancelScope]:
        """Be the scope of one connection: it ends when its token is not good any more."""
        with trio.CancelScope() as scope:
            try:
                yield scope
            finally:
                self._tokens.pop(scope, None)

    def admit(self, scope: trio.CancelScope, remote_address: str, token: str) -> bool:
        """Return whether the nsqd of a connection may register."""
        self._tokens[scope] = token.encode(errors="replace")
        users = self._users
        if users is None or not self.guards:
            return True
        try:
            host, _ = split_address(remote_address) or (remote_address, 0)
            user = users.authenticate(host, self._tokens[scope], "")
        except TooManyAttempts:
            log.warning("ACL: too many attempts of %s", remote_address)
            return False
        return user is not None and user.register

    def _look_again(self) -> None:
        if self._users is None or not self.guards:
            return
        for scope, token in list(self._tokens.items()):
            user = self._users.find(token, "")
            if user is None or not user.register:
                log.info("ACL: an nsqd may not register any more; its connection ends")
                scope.cancel()
