"""Requests to auth servers, and the grants in their answers. No I/O, no clock.

Patterns are RE2's, as in the original. Matching takes time linear in the text for any pattern, so a
hostile auth server can't stop the broker with one. The limits below bound the cost of compiling and
matching; an answer beyond them is refused as invalid.

Spec: tcp-protocol, section 9.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from trionsq.hostport import format_address
from trionsq.wire import gojson

__all__ = [
    "MAX_ANSWER_BYTES",
    "Grant",
    "Question",
    "answer",
    "https_retry_url",
    "load_patterns",
    "question_url",
    "read_grant",
]

MAX_ANSWER_BYTES: Final = 512 * 1024
"""Limit on an auth server's answer. About 48 answers are read at the same time."""

# Different patterns in an answer. A usual one takes 25 us to compile.
_MAX_PATTERNS: Final = 4096
# Instructions of all patterns of an answer. Compiling and matching take time in proportion to them:
# 30 ms for an answer at worst. A usual pattern has about ten.
_MAX_INSTRUCTIONS: Final = 50_000
# Memory of all patterns of an answer, by the limits that they were compiled with: 4,096 small ones.
# A usual pattern uses 3 kB of its 16.
_MAX_GRANT_BYTES: Final = 64 * 1024 * 1024
# Patterns, repeated ones included. The first publish to a topic searches for all of them.
_MAX_SEARCHES: Final = 16_384
# Topics for which a grant caches its verdict.
_MAX_VERDICTS: Final = 1024
_MAX_TTL_S: Final = 2**63 - 1
_MAX_PORT: Final = 65_535
# Go escapes these, so that JSON is never read as HTML or JavaScript.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

Pattern = Callable[[str], object]
"""Searches a text; returns None if the pattern does not occur in it."""


@dataclass(frozen=True, slots=True)
class Question:
    """The request of nsqd to an auth server, about one client.

    Attributes:
        secret: the secret of the client's AUTH.
        remote_ip: the client's address.
        tls: whether the connection is encrypted.
        common_name: common name of the client's TLS certificate, else empty.
    """

    secret: bytes = field(repr=False)
    remote_ip: str
    tls: bool
    common_name: str

    def query(self) -> str:
        """Return the query of a GET: keys sorted, values URL encoded."""
        return urlencode(
            {
                "common_name": self.common_name,
                "remote_ip": self.remote_ip,
                "secret": self.secret,
                "tls": str(self.tls).lower(),
            }
        )

    def body(self) -> bytes:
        """Return the body of a POST: a JSON object of lists with the same keys."""
        return json.dumps(
            {
                "common_name": [self.common_name],
                "remote_ip": [self.remote_ip],
                "secret": [self.secret.decode(errors="replace")],
                "tls": [str(self.tls).lower()],
            },
            separators=(",", ":"),
        ).encode()


def question_url(address: str) -> str:
    """Return the URL of an auth server, without the query.

    Args:
        address: ``host:port``, or a full URL, which is used unchanged.
    """
    return address if "://" in address else f"http://{address}/auth"


def https_retry_url(url: str, body: bytes) -> str | None:
    """Return the URL to request again after a 403; None if the 403 was a refusal.

    Args:
        url: the URL that answered, without the query.
        body: the body of the answer. JSON with an ``https_port`` means that the server wants https.
    """
    try:
        parts = urlsplit(url)
        members = _document(body)
    except ValueError:
        return None
    port = members.get("https_port")
    if parts.scheme != "http" or type(port) is not int or not 0 < port <= _MAX_PORT:
        return None
    netloc = format_address(parts.hostname or "", port)
    return parts._replace(scheme="https", netloc=netloc).geturl()


@dataclass(frozen=True, slots=True)
class _Authorization:
    topic: Pattern
    channels: tuple[Pattern, ...]
    subscribe: bool
    publish: bool

    def matches(self, topic: str, channel: str) -> bool:
        return self.topic(topic) is not None and any(
            search(channel) is not None for search in self.channels
        )


class Grant:
    """The rights that an auth server gives a client, for a limited time.

    Attributes:
        identity, identity_url: who it says the client is; may be empty.
        ttl_s: how long the grant holds, in seconds.
        verdicts: cached results of `may_publish`, by topic.
    """

    __slots__ = ("_authorizations", "identity", "identity_url", "ttl_s", "verdicts")

    def __init__(
        self, identity: str, identity_url: str, ttl_s: int, authorizations: list[_Authorization]
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.ttl_s = ttl_s
        self._authorizations = authorizations
        self.verdicts: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<Grant {self.identity!r} authorizations={len(self)} ttl={self.ttl_s}s>"

    def __len__(self) -> int:
        """Number of entries in the list of authorizations."""
        return len(self._authorizations)

    def may_publish(self, topic: str) -> bool:
        """Tell whether an entry allows to publish: one of its channels matches the empty name."""
        verdict = self.verdicts.get(topic)
        if verdict is None:
            if len(self.verdicts) == _MAX_VERDICTS:
                self.verdicts.clear()
            verdict = any(
                entry.publish and entry.matches(topic, "") for entry in self._authorizations
            )
            self.verdicts[topic] = verdict
        return verdict

    def may_subscribe(self, topic: str, channel: str) -> bool:
        """Tell whether an entry allows to subscribe."""
        return any(
            entry.subscribe and entry.matches(topic, channel) for entry in self._authorizations
        )


def answer(grant: Grant) -> bytes:
    """Return the data of the frame that answers AUTH."""
    members = {
        "identity": grant.identity,
        "identity_url": grant.identity_url,
        "permission_count": len(grant),
    }
    text = json.dumps(members, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES).encode()


def read_grant(body: bytes) -> Grant:
    """Return the grant in an auth server's answer with status 200.

    Raises:
        ValueError: the answer is invalid. The text quotes nothing of it.
    """
    members = _document(body)
    ttl_s = members.get("ttl", 0)
    if type(ttl_s) is not int or not 0 < ttl_s <= _MAX_TTL_S:
        raise ValueError("ttl is not a whole number of seconds above 0")
    entries = [_entry(entry) for entry in _array(members, "authorizations")]
    # Counted before compiling: otherwise too many patterns would cost as much as the limit allows.
    distinct = {text for entry in entries for text in (entry.topic, *entry.channels)}
    if len(distinct) > _MAX_PATTERNS:
        raise ValueError(f"more than {_MAX_PATTERNS} patterns")
    if sum(1 + len(entry.channels) for entry in entries) > _MAX_SEARCHES:
        raise ValueError(f"more than {_MAX_SEARCHES} patterns, with repetitions")
    patterns = _Patterns()
    authorizations = [_authorization(entry, patterns) for entry in entries]
    return Grant(
        _string(members, "identity"),
        _string(members, "identity_url"),
        ttl_s,
        authorizations,
    )


class _Compiled(NamedTuple):
    search: Pattern
    instructions: int
    max_bytes: int


class _NotCompiled(Exception):
    """Not a pattern, or one that needs too much memory."""


@dataclass(frozen=True, slots=True)
class _Size:
    """Limits for patterns of one size. Compiled patterns are cached: most answers repeat them.

    Attributes:
        max_text: characters of its text.
        max_bytes: of the compiled pattern with what it remembers of its matches.
        kept: patterns.
    """

    max_text: int
    max_bytes: int
    kept: int


# The cache holds all usual patterns of an answer, and few larger ones. Texts (four bytes for each
# character) and patterns together take 124 MiB at most.
_SIZES: Final = (
    _Size(max_text=1024, max_bytes=16 * 1024, kept=_MAX_PATTERNS),
    _Size(max_text=8 * 1024, max_bytes=128 * 1024, kept=128),
    _Size(max_text=MAX_ANSWER_BYTES, max_bytes=1024 * 1024, kept=8),
)


def _compiler(size: _Size) -> _lru_cache_wrapper[_Compiled]:
    """Return a cached compiler for patterns of a size; it raises `_NotCompiled` for others."""

    @lru_cache(maxsize=size.kept)
    def compiled(text: str) -> _Compiled:
        # Imported here: it takes 4 MiB, which an nsqd without auth servers saves.
        import re2

        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = size.max_bytes
        try:
            pattern = re2.compile(text, options)
        except re2.error:
            raise _NotCompiled from None
        return _Compiled(pattern.search, pattern.programsize, size.max_bytes)

    return compiled


_COMPILERS: Final = tuple((size.max_text, _compiler(size)) for size in _SIZES)


def _compiled(text: str) -> _Compiled:
    """Return a pattern compiled within the smallest limits that it fits in.

    Raises:
        ValueError: not a pattern.
    """
    for max_text, compiler in _COMPILERS:
        if len(text) <= max_text:
            try:
                return compiler(text)
            except _NotCompiled:
                continue
    raise ValueError("a pattern does not compile")


def load_patterns() -> None:
    """Load the library for patterns now, which takes 20 ms, instead of at the first answer."""
    _compiled("")


class _Patterns:
    """The patterns of an answer, within the limits."""

    def __init__(self) -> None:
        self._searches: dict[str, Pattern] = {}
        self._instructions = 0
        self._nbytes = 0

    def compile(self, text: str) -> Pattern:
        """Return a compiled pattern.

        Raises:
            ValueError: not a pattern, or all patterns together are too large.
        """
        search = self._searches.get(text)
        if search is not None:
            return search
        search, instructions, max_bytes = _compiled(text)
        self._instructions += instructions
        self._nbytes += max_bytes
        if self._instructions > _MAX_INSTRUCTIONS or self._nbytes > _MAX_GRANT_BYTES:
            raise ValueError("the patterns are too large")
        self._searches[text] = search
        return search


class _Entry(NamedTuple):
    """An authorization before its patterns are compiled."""

    topic: str
    channels: list[str]
    permissions: list[str]


def _entry(value: object) -> _Entry:
    members = gojson.read_object(value, "authorization")
    permissions = _strings(members, "permissions")
    if not {"subscribe", "publish"}.issuperset(permissions):
        raise ValueError("a permission is neither subscribe nor publish")
    return _Entry(_string(members, "topic"), _strings(members, "channels"), permissions)


def _document(body: bytes) -> gojson.JsonObject:
    try:
        document = gojson.decode(body)
    except ValueError:
        raise ValueError("not JSON") from None
    return gojson.read_object(document, "document")


def _string(members: gojson.JsonObject, name: str) -> str:
    return gojson.read_string(members.get(name), name)


def _array(members: gojson.JsonObject, name: str) -> list[object]:
    return gojson.read_array(members.get(name), name)


def _strings(members: gojson.JsonObject, name: str) -> list[str]:
    return [gojson.read_string(value, name) for value in _array(members, name)]


def _authorization(entry: _Entry, patterns: _Patterns) -> _Authorization:
    return _Authorization(
        patterns.compile(entry.topic),
        tuple([patterns.compile(channel) for channel in entry.channels]),
        "subscribe" in entry.permissions,
        "publish" in entry.permissions,
    )
