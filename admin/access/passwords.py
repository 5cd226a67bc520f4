"""Passwords: hashed and checked by Argon2, and set by ``nsqadmin --add-user``.

Hashes are computed in a bounded number of threads. A check of an unknown name takes as long as any
other.
"""

from __future__ import annotations

import contextlib
import getpass
import hmac
import os
import secrets
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

import argon2
import trio
from argon2.exceptions import VerificationError

from admin.access.roles import Role
from admin.access.users import NAME, Account, Users, UsersError, parse_users
from admin.options import OptionsError
from trionsq.daemon.token_buckets import TokenBuckets

__all__ = [
    "ATTEMPTS_AT_ONCE",
    "ATTEMPT_INTERVAL_S",
    "MAX_ADDRESSES",
    "MAX_PASSWORD_BYTES",
    "Busy",
    "Passwords",
    "TooManyAttempts",
    "add_user",
    "hash_password",
]

MAX_PASSWORD_BYTES: Final = 1024
# Each hash takes 64 MiB of memory and a processor while it runs.
_MAX_CONCURRENT: Final = 2
_MAX_WAITING: Final = 32
# Wrong passwords from one address: five at once, then one every ten seconds. A right one is free.
ATTEMPTS_AT_ONCE: Final = 5
ATTEMPT_INTERVAL_S: Final = 10.0
MAX_ADDRESSES: Final = 10_000
# HTTP clients send their password with each request; right ones are remembered.
_MAX_REMEMBERED: Final = 1000
_REMEMBERED_S: Final = 300.0

_HASHER: Final = argon2.PasswordHasher()


class TooManyAttempts(Exception):
    """Wrong passwords came from this address too often.

    Attributes:
        wait_s: until the next password is checked.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


class Busy(Exception):
    """Too many passwords wait to be checked."""


def hash_password(password: str) -> str:
    """The Argon2 hash for the users file; slow. Raises ValueError: empty or too long."""
    if not password or len(_encoded(password)) > MAX_PASSWORD_BYTES:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes")
    return _HASHER.hash(_encoded(password))


@lru_cache(maxsize=1)
def _nobodys_hash() -> str:
    return _HASHER.hash(secrets.token_hex())


def _verify(password_hash: str | None, password: str) -> bool:
    try:
        _HASHER.verify(password_hash or _nobodys_hash(), _encoded(password))
    except VerificationError:
        return False
    return password_hash is not None


def _encoded(password: str) -> bytes:
    # Clients that do not send UTF-8 cause surrogates.
    return password.encode(errors="surrogatepass")


class Passwords:
    """Checks passwords of ``users``."""

    def __init__(self, users: Users, now_s: Callable[[], float]) -> None:
        """``now_s`` is the clock of waiting times, in seconds."""
        self._users = users
        self._now_s = now_s
        self._attempts = TokenBuckets(ATTEMPT_INTERVAL_S, ATTEMPTS_AT_ONCE, MAX_ADDRESSES)
        self._limiter = trio.CapacityLimiter(_MAX_CONCURRENT)
        self._key = secrets.token_bytes(32)
        # By a keyed hash of name and password: the account's seal, and until when.
        self._right: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._under_way: dict[bytes, trio.Event] = {}

    async def check(self, name: str, password: str, address: str) -> Account | None:
        """The account with this name and password, None if there is none; hashes each time.

        Raises:
            TooManyAttempts: this address sent too many wrong passwords.
            Busy: too many checks wait.
        """
        if (wait_s := self._attempts.take_token(address, self._now_s())) > 0:
            raise TooManyAttempts(wait_s)
        account = self._users.find(name)
        right = False
        try:
            right = await self._is_right(account, password)
        except (Busy, trio.Cancelled):
            # Nothing was compared.
            self._attempts.return_token(address, self._now_s())
            raise
        if not right:
            return None
        self._attempts.return_token(address, self._now_s())
        return account

    async def check_remembered(self, name: str, password: str, address: str) -> Account | None:
        """As `check`, but hashes a right password only every five minutes."""
        account = self._users.find(name)
        key = self._digest(name, password)
        while True:
            if account is not None and self._remembered(key) == account.seal:
                return account
            if (under_way := self._under_way.get(key)) is None:
                break
            await under_way.wait()
        self._under_way[key] = done = trio.Event()
        try:
            account = await self.check(name, password, address)
        finally:
            del self._under_way[key]
            done.set()
        if account is not None:
            self._remember(key, account.seal)
        return account

    async def _is_right(self, account: Account | None, password: str) -> bool:
        if self._limiter.statistics().tasks_waiting >= _MAX_WAITING:
            raise Busy
        password_hash = None if account is None else account.password_hash
        password = password if len(password) <= MAX_PASSWORD_BYTES else ""
        return await trio.to_thread.run_sync(
            _verify, password_hash, password, limiter=self._limiter
        )

    def _digest(self, name: str, password: str) -> bytes:
        text = f"{len(name)}:{name}{password}".encode(errors="replace")
        return hmac.digest(self._key, text, "sha256")

    def _remembered(self, key: bytes) -> str | None:
        seal, until_s = self._right.get(key, ("", 0.0))
        return seal if self._now_s() < until_s else None

    def _remember(self, key: bytes, seal: str) -> None:
        self._right[key] = seal, self._now_s() + _REMEMBERED_S
        self._right.move_to_end(key)
        if len(self._right) > _MAX_REMEMBERED:
            self._right.popitem(last=False)


def add_user(who: str, users_file: str) -> None:
    """Read the password of ``who``, ``name:role``, and write the user's line.

    The line replaces the user's line in ``users_file`` or is added to the file; without a file it
    goes to standard output. The password is typed twice at a terminal, otherwise it is the first
    line of standard input.

    Raises:
        OptionsError: not a name and a role, no password, or the file can't be read or written.
    """
    name, _, title = who.partition(":")
    if not NAME.fullmatch(name):
        raise OptionsError(
            "--add-user must be name:role; a name can't contain spaces, colons or commas"
        )
    try:
        role = Role.named(title)
        line = f"{name}:{role.title}:{hash_password(_typed_password())}"
    except ValueError as error:
        raise OptionsError(f"--add-user: {error}") from None
    if not users_file:
        print(line)
        return
    try:
        _write_user(Path(users_file), name, line)
    except OSError as error:
        raise OptionsError(f"failed to write {users_file} - {error.strerror}") from None
    except (UsersError, UnicodeDecodeError) as error:
        raise OptionsError(f"failed to read {users_file} - {error}") from None


def _typed_password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise ValueError("the passwords differ")
    return password


def _write_user(path: Path, name: str, line: str) -> None:
    """Replace the line of ``name``, or add one, atomically."""
    path = path.resolve()
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    parse_users(old)
    others = [each for each in old.splitlines() if not each.strip().startswith(f"{name}:")]
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join([*others, line, ""]))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            status = path.stat()
            os.chmod(draft, status.st_mode & 0o777)
            with contextlib.suppress(PermissionError):  # another user's file becomes ours
                os.chown(draft, status.st_uid, status.st_gid)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
