"""Who may do what, by a file: users with tokens or client certificates, and their rights.

    [users.billing]
    token_sha256 = "..."                          # of the token, in hex; or a list of several
    certificate = "billing.example"               # common name of a client certificate; or a list
    publish = ["invoices*"]                       # topics
    subscribe = ["orders/billing", "audit*"]      # topic/channel, or topic: all of its channels
    admin = ["invoices*"]                         # topics; "*" is the node as well
    register = true                               # of an nsqd: it may register at nsqlookupd

Tokens are long and random (docs/acl.md), so a fast hash of them tells nobody anything.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from trionsq.daemon.token_buckets import TokenBuckets

__all__ = ["Acl", "AclError", "AclFile", "AclUser", "Authenticator", "TooManyAttempts", "read_acl"]

log = logging.getLogger("trionsq")

_KEYS: Final = frozenset(
    {"token_sha256", "certificate", "publish", "subscribe", "admin", "register"}
)
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_USER: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.#*-]{1,74}")
# Each wildcard multiplies what a name costs at worst.
_MAX_WILDCARDS: Final = 3
_MAX_FILE_BYTES: Final = 4 * 2**20
# How often the file is looked at.
_CHECK_S: Final = 1.0
# As nsqadmin limits passwords: then one attempt in so many seconds for each address.
_ATTEMPTS_AT_ONCE: Final = 10
_ATTEMPT_S: Final = 2.0
_MAX_ADDRESSES: Final = 10_000
_NODE: Final = "*"

_Name = re.Pattern[str]


class AclError(Exception):
    """The file cannot be used; the text says why, and has no token."""


class TooManyAttempts(Exception):
    """Too many wrong tokens came from an address.

    Attributes:
        wait_s: seconds until the next one is looked at.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class AclUser:
    """A user.

    Attributes:
        name: of the user.
        digests: SHA-256 of the tokens.
        certificates: common names.
        publish, subscribe, admin: patterns as in the file.
        register: whether an nsqd with its token may register at nsqlookupd.
    """

    name: str
    digests: tuple[bytes, ...] = field(default=(), repr=False)
    certificates: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    register: bool = False

    def may_publish(self, topic: str) -> bool:
        """Whether the user may publish to a topic."""
        return any(_compiled(one).fullmatch(topic) for one in self.publish)

    def may_subscribe(self, topic: str, channel: str) -> bool:
        """Whether the user may consume a channel."""
        pairs = (one.partition("/") for one in self.subscribe)
        return any(
            _compiled(topics).fullmatch(topic) and _compiled(channels or "*").fullmatch(channel)
            for topics, _, channels in pairs
        )

    def may_read(self, topic: str) -> bool:
        """Whether the user may see the messages of a topic, that is of any channel."""
        pairs = (one.partition("/") for one in self.subscribe)
        return self.may_administer(topic) or any(
            channels in ("", "*") and _compiled(topics).fullmatch(topic)
            for topics, _, channels in pairs
        )

    def may_administer(self, topic: str = "") -> bool:
        """Whether the user may change a topic, or the node: an empty name."""
        if not topic:
            return _NODE in self.admin
        return any(_compiled(one).fullmatch(topic) for one in self.admin)


_cache: dict[str, _Name] = {}


def _compiled(pattern: str) -> _Name:
    found = _cache.get(pattern)
    if found is None:
        if len(_cache) >= 4096:
            _cache.clear()
        text = ".*".join(map(re.escape, pattern.split("*")))
        found = _cache[pattern] = re.compile(text)
    return found


class Acl:
    """The users of a file, or of nowhere."""

    def __init__(self, users: Iterable[AclUser] = ()) -> None:
        """Raises AclError: two users have one token or certificate."""
        self._users = tuple(users)
        self._digests: dict[bytes, AclUser] = {}
        self._certificates: dict[str, AclUser] = {}
        for user in self._users:
            for digest in user.digests:
                if digest in self._digests:
                    raise AclError("a token occurs twice")
                self._digests[digest] = user
            for name in user.certificates:
                if name in self._certificates:
                    raise AclError(f"the certificate {name} occurs twice")
                self._certificates[name] = user

    def __len__(self) -> int:
        return len(self._users)

    @property
    def has_tokens(self) -> bool:
        return bool(self._digests)

    @property
    def has_registrars(self) -> bool:
        return any(user.register for user in self._users)

    @property
    def has_certificates(self) -> bool:
        return bool(self._certificates)

    def by_token(self, token: bytes) -> AclUser | None:
        """Return the user of a token.

        The time that it takes depends on the hash of the token, which tells nothing of others.
        """
        return self._digests.get(hashlib.sha256(token).digest())

    def by_certificate(self, common_name: str) -> AclUser | None:
        """Return the user of a client certificate that was verified."""
        return self._certificates.get(common_name) if common_name else None


def read_acl(text: str) -> Acl:
    """Return the users in the text of a file, checked as a whole.

    Raises:
        AclError: it is not valid.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AclError(f"not TOML: {error}") from None
    if unknown := sorted(set(document) - {"users"}):
        raise AclError(f"unknown key {unknown[0]}")
    users = document.get("users")
    if not isinstance(users, dict) or not users:
        raise AclError("no users")
    return Acl([_user(name, entry) for name, entry in users.items()])


def _user(name: str, entry: object) -> AclUser:
    if not _USER.fullmatch(name):
        raise AclError(f"{name!r} is not the name of a user")
    if not isinstance(entry, dict):
        raise AclError(f"user {name}: not a table")
    if unknown := sorted(set(entry) - _KEYS):
        raise AclError(f"user {name}: unknown key {unknown[0]}")
    digests = _texts(name, entry, "token_sha256")
    if not all(map(_DIGEST.fullmatch, digests)):
        raise AclError(f"user {name}: token_sha256 is not 64 hex digits")
    if not isinstance(entry.get("register", False), bool):
        raise AclError(f"user {name}: register is not true or false")
    user = AclUser(
        name,
        tuple(map(bytes.fromhex, digests)),
        _texts(name, entry, "certificate"),
        _patterns(name, entry, "publish"),
        _patterns(name, entry, "subscribe"),
        _patterns(name, entry, "admin"),
        entry.get("register") is True,
    )
    if not user.digests and not user.certificates:
        raise AclError(f"user {name}: neither token_sha256 nor certificate")
    return user


def _texts(name: str, entry: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) and one for one in values):
        raise AclError(f"user {name}: {key} is not a list of strings")
    return tuple(values)


def _patterns(name: str, entry: Mapping[str, object], right: str) -> tuple[str, ...]:
    values = _texts(name, entry, right)
    for value in values:
        parts = value.split("/", 1) if right == "subscribe" else [value]
        for part in parts:
            if not _PATTERN.fullmatch(part) or part.count("*") > _MAX_WILDCARDS:
                raise AclError(f"user {name}: {right} has the bad pattern {value!r}")
    return values


class AclFile:
    """A file of users that is read again when it changes.

    Attributes:
        acl: what it had when it was valid last.
        observers: called after each change.
    """

    def __init__(self, path: str) -> None:
        """Read it. Raises AclError."""
        self._path = path
        self.observers: list[Callable[[], None]] = []
        self._look = trio.Event()
        self._seen = self._state()
        self.acl = self._read()

    def __repr__(self) -> str:
        return f"<AclFile {self._path} users={len(self.acl)}>"

    def reload(self) -> None:
        """Have it read again soon, whatever its time says."""
        self._look.set()

    async def _read_again(self) -> None:
        """Read it. If it is not valid, the log says so, and the users stay."""
        self._seen = self._state()
        try:
            # A large file takes a second.
            self.acl = await trio.to_thread.run_sync(self._read)
        except AclError as error:
            log.error("ACL: the users stay as they were: %s", error)
            return
        log.info("ACL: read %d users from %s", len(self.acl), self._path)
        for observer in self.observers:
            observer()

    async def watch(self) -> None:
        """Read it again after each change, for ever."""
        while True:
            with trio.move_on_after(_CHECK_S):
                await self._look.wait()
            is_asked, self._look = self._look.is_set(), trio.Event()
            if is_asked or self._state() != self._seen:
                await self._read_again()

    def _state(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Acl:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise AclError(f"{self._path}: {error.strerror}") from None
        if len(data) > _MAX_FILE_BYTES:
            raise AclError(f"{self._path}: larger than {_MAX_FILE_BYTES} bytes")
        try:
            return read_acl(data.decode())
        except UnicodeDecodeError:
            raise AclError(f"{self._path}: not UTF-8") from None
        except AclError as error:
            raise AclError(f"{self._path}: {error}") from None


class Authenticator:
    """Finds the user of a request, and limits the attempts of those that know no token."""

    def __init__(
        self,
        file: AclFile,
        now_s: Callable[[], float] = trio.current_time,
        *,
        trusts_certificates: bool,
    ) -> None:
        """``trusts_certificates``: the names in client certificates are verified."""
        self.file = file
        self._now_s = now_s
        self._trusts_certificates = trusts_certificates
        self._attempts = TokenBuckets(_ATTEMPT_S, _ATTEMPTS_AT_ONCE, _MAX_ADDRESSES)
        self._own: dict[bytes, AclUser] = {}
        if file.acl.has_certificates and not trusts_certificates:
            log.warning("ACL: certificates count only with --tls-client-auth-policy=require-verify")

    def add_own(self, token: bytes, user: AclUser) -> None:
        """Add a user of this process."""
        self._own[hashlib.sha256(token).digest()] = user

    def by_certificate(self, common_name: str) -> AclUser | None:
        """Return the user of a client certificate."""
        return self.file.acl.by_certificate(common_name) if self._trusts_certificates else None

    def find(self, token: bytes | None, common_name: str) -> AclUser | None:
        """Return the user of a token, else that of a certificate, without a limit."""
        if token:
            user = self.file.acl.by_token(token)
            user = user or self._own.get(hashlib.sha256(token).digest())
            if user is not None:
                return user
        return self.by_certificate(common_name)

    def authenticate(self, host: str, token: bytes | None, common_name: str) -> AclUser | None:
        """As `find`, for a request from ``host``; a token that is wrong counts as an attempt.

        Raises:
            TooManyAttempts: the token was not looked at.
        """
        if not token:
            return self.by_certificate(common_name)
        now_s = self._now_s()
        wait_s = self._attempts.take_token(host, now_s)
        if wait_s:
            raise TooManyAttempts(wait_s)
        user = self.find(token, common_name)
        if user is not None:
            self._attempts.return_token(host, now_s)
        return user
