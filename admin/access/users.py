"""The users file: a line ``name:role:argon2-hash`` for each user; ``#`` starts a comment.

The file is read again when it has changed. If it can't be read or has a wrong line, that is logged
and the previous users stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import argon2
from argon2.exceptions import InvalidHashError

from admin.access.roles import Role

__all__ = ["NAME", "Account", "FixedUsers", "Users", "UsersError", "UsersFile", "parse_users"]

log = logging.getLogger("trionsq")

NAME: Final = re.compile(r"[^\s:,#\x00-\x1f\x7f][^\s:,\x00-\x1f\x7f]{0,63}")
_MAX_FILE_BYTES: Final = 1 << 20
# The file is checked at most so often.
_LOOK_EVERY_S: Final = 1.0


class UsersError(Exception):
    """The users file can't be used; ``str()`` says why, without any of its content."""


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """A line of the users file."""

    name: str
    role: Role
    password_hash: str = dataclasses.field(repr=False)

    @property
    def seal(self) -> str:
        """A hash of the password hash: it changes with the password."""
        return hashlib.sha256(self.password_hash.encode()).hexdigest()


class Users(Protocol):
    """A source of users."""

    def find(self, name: str) -> Account | None:
        """The user of that name, None if there is none."""


class FixedUsers:
    """Users that never change: the one that is generated at the start."""

    def __init__(self, *accounts: Account) -> None:
        self._accounts = {account.name: account for account in accounts}

    def find(self, name: str) -> Account | None:
        return self._accounts.get(name)


def parse_users(text: str) -> dict[str, Account]:
    """The users of a file.

    Raises:
        UsersError: a line is wrong.
    """
    accounts: dict[str, Account] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                account = _account(line.strip())
                if account.name in accounts:
                    raise ValueError("duplicate user")
            except ValueError as error:
                raise UsersError(f"line {number}: {error}") from None
            accounts[account.name] = account
    return accounts


def _account(line: str) -> Account:
    name, _, rest = line.partition(":")
    title, _, password_hash = rest.partition(":")
    if not NAME.fullmatch(name):
        raise ValueError("it must start with a user name")
    try:
        role = Role.named(title)
    except ValueError:
        raise ValueError("the role must be viewer, operator or admin") from None
    try:
        argon2.extract_parameters(password_hash)
    except InvalidHashError:
        raise ValueError("it must end with an Argon2 hash, see --add-user") from None
    return Account(name, role, password_hash)


class UsersFile:
    """The users of a file that may change."""

    def __init__(self, path: str, now_s: Callable[[], float]) -> None:
        """Read it.

        Raises:
            UsersError: it can't be used.
        """
        self._path = path
        self._now_s = now_s
        self._looked_s = now_s()
        self._seen = _identity(path)
        self._accounts: Mapping[str, Account] = _read(path)
        if not self._accounts:
            log.warning("ACCESS: no users in %s", path)
        if self._seen is not None and self._seen[3] & 0o007:
            log.warning("ACCESS: every user of this machine can read %s", path)

    def find(self, name: str) -> Account | None:
        """The user of that name, by the file as it was at most a second ago."""
        self._look()
        return self._accounts.get(name)

    def _look(self) -> None:
        if self._now_s() - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = self._now_s()
        identity = _identity(self._path)
        if identity == self._seen:
            return
        self._seen = identity
        try:
            self._accounts = _read(self._path)
        except UsersError as error:
            log.error(
                "ACCESS: failed to read %s, keeping the previous users - %s", self._path, error
            )
        else:
            log.info("ACCESS: read %d users from %s", len(self._accounts), self._path)


def _identity(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _read(path: str) -> dict[str, Account]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise UsersError("larger than 1 MiB")
        return parse_users(content.decode())
    except OSError as error:
        raise UsersError(error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise UsersError("not UTF-8") from None
