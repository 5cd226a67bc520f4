"""What an auth server is asked and what it allows. No I/O, no clock.

Patterns are RE2's, as in the original, whose matching takes time linear in the text whatever the
pattern: an auth server that lies can't stop the broker with one. What compiling and matching cost
is bounded by the sizes below; an answer beyond them is refused like any other invalid one.

Spec: tcp-protocol, section 9.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from trionsq.hostport import format_address
from trionsq.wire import gojson

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

__all__ = [
    "ANSWER_NBYTES_MAX",
    "Grant",
    "Question",
    "answer",
    "https_retry_url",
    "load_patterns",
    "question_url",
    "read_grant",
]

ANSWER_NBYTES_MAX: Final = 512 * 1024
"""Bytes of an auth server's answer that are read. Some 48 are read at a time."""

# Different ones in an answer. A usual one takes 25 us to compile.
_PATTERNS_MAX: Final = 4096
# Instructions of them all: compiling and matching take time in proportion to it, so an answer costs
# some 30 ms at the very worst. A usual pattern has about ten.
_INSTRUCTIONS_MAX: Final = 50_000
# What the patterns of an answer may take, by the limits that they were compiled with: 4,096 small
# ones. A usual pattern takes 3 kB of its 16.
_GRANT_NBYTES_MAX: Final = 64 * 1024 * 1024
# Patterns with repetitions: a topic that is published to for the first time is searched for all.
_SEARCHES_MAX: Final = 16_384
# Topics whose verdict a grant remembers.
_VERDICTS_MAX: Final = 1024
_TTL_MAX_S: Final = 2**63 - 1
_PORT_MAX: Final = 65_535
# Go writes these so, lest the JSON be taken for HTML or JavaScript.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

Pattern = Callable[[str], object]
"""Searches a text: something else than None if the pattern is found."""


@dataclass(frozen=True, slots=True)
class Question:
    """What nsqd tells an auth server of a client.

    Attributes:
        secret: that the client sent with AUTH.
        remote_ip: its address.
        tls: whether its connection is encrypted.
        common_name: of its TLS certificate, else empty.
    """

    secret: bytes = field(repr=False)
    remote_ip: str
    tls: bool
    common_name: str

    def query(self) -> str:
        """For a GET: keys sorted, values URL encoded."""
        return urlencode(
            {
                "common_name": self.common_name,
                "remote_ip": self.remote_ip,
                "secret": self.secret,
                "tls": str(self.tls).lower(),
            }
        )

    def body(self) -> bytes:
        """For a POST: a JSON object of lists with the same keys."""
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
    """Where an auth server is asked, without the query.

    Args:
        address: ``host:port``, or a full URL that is taken as it is.
    """
    return address if "://" in address else f"http://{address}/auth"


def https_retry_url(url: str, body: bytes) -> str | None:
    """Where to ask again after a 403 from ``url``; None if that was a refusal like any other.

    Args:
        url: that was asked, without the query.
        body: of the answer: JSON with an ``https_port`` says that the server wants https.
    """
    try:
        parts = urlsplit(url)
        said = _document(body)
    except ValueError:
        return None
    port = said.get("https_port")
    if parts.scheme != "http" or type(port) is not int or not 0 < port <= _PORT_MAX:
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
    """What an auth server allows a client, for some time.

    Attributes:
        identity, identity_url: who it says the client is; may be empty.
        ttl_s: how long the grant holds, in seconds.
        verdicts: what `may_publish` has found, by topic, for those who ask again and again.
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
        """Entries in the list of authorizations."""
        return len(self._authorizations)

    def may_publish(self, topic: str) -> bool:
        """Whether an entry allows to publish there: one of its channels matches the empty name."""
        verdict = self.verdicts.get(topic)
        if verdict is None:
            if len(self.verdicts) == _VERDICTS_MAX:
                self.verdicts.clear()
            verdict = any(
                entry.publish and entry.matches(topic, "") for entry in self._authorizations
            )
            self.verdicts[topic] = verdict
        return verdict

    def may_subscribe(self, topic: str, channel: str) -> bool:
        """Whether an entry allows to subscribe there."""
        return any(
            entry.subscribe and entry.matches(topic, channel) for entry in self._authorizations
        )


def answer(grant: Grant) -> bytes:
    """The data of the frame that answers AUTH."""
    members = {
        "identity": grant.identity,
        "identity_url": grant.identity_url,
        "permission_count": len(grant),
    }
    text = json.dumps(members, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES).encode()


def read_grant(body: bytes) -> Grant:
    """Read what an auth server answered with status 200.

    Raises:
        ValueError: it is invalid; the text quotes nothing of it.
    """
    members = _document(body)
    ttl_s = members.get("ttl", 0)
    if type(ttl_s) is not int or not 0 < ttl_s <= _TTL_MAX_S:
        raise ValueError("ttl is no whole number of seconds above 0")
    entries = [_entry(entry) for entry in _array(members, "authorizations")]
    # Compiled one after the other up to the limit, too many would cost as much as the most allowed.
    distinct = {text for entry in entries for text in (entry.topic, *entry.channels)}
    if len(distinct) > _PATTERNS_MAX:
        raise ValueError(f"more than {_PATTERNS_MAX} patterns")
    if sum(1 + len(entry.channels) for entry in entries) > _SEARCHES_MAX:
        raise ValueError(f"more than {_SEARCHES_MAX} patterns, with repetitions")
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
    nbytes_max: int


class _NotCompiled(Exception):
    """It is no pattern, or one that takes more memory than it may."""


@dataclass(frozen=True, slots=True)
class _Size:
    """How large a pattern may be, and how many such are kept: answers have the same ones as a rule.

    Attributes:
        text_max: characters of its text.
        nbytes_max: of the compiled pattern with what it remembers of its matches.
        kept: patterns.
    """

    text_max: int
    nbytes_max: int
    kept: int


# Of usual patterns all are kept that an answer may have, of others few: 124 MiB are the most that
# texts (of four bytes for each character) and patterns can take together.
_SIZES: Final = (
    _Size(text_max=1024, nbytes_max=16 * 1024, kept=_PATTERNS_MAX),
    _Size(text_max=8 * 1024, nbytes_max=128 * 1024, kept=128),
    _Size(text_max=ANSWER_NBYTES_MAX, nbytes_max=1024 * 1024, kept=8),
)


def _compiler(size: _Size) -> _lru_cache_wrapper[_Compiled]:
    """What compiles patterns of a size; it raises `_NotCompiled` for others."""

    @lru_cache(maxsize=size.kept)
    def compiled(text: str) -> _Compiled:
        # Not above: 4 MiB of memory that an nsqd without auth servers does without.
        import re2

        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = size.nbytes_max
        try:
            pattern = re2.compile(text, options)
        except re2.error:
            raise _NotCompiled from None
        return _Compiled(pattern.search, pattern.programsize, size.nbytes_max)

    return compiled


_COMPILERS: Final = tuple((size.text_max, _compiler(size)) for size in _SIZES)


def _compiled(text: str) -> _Compiled:
    """A pattern, compiled within the smallest limit that it fits in.

    Raises:
        ValueError: it is none.
    """
    for text_max, compiler in _COMPILERS:
        if len(text) <= text_max:
            try:
                return compiler(text)
            except _NotCompiled:
                continue
    raise ValueError("a pattern does not compile")


def load_patterns() -> None:
    """Load the library for patterns now, which takes 20 ms, and not with the first answer."""
    _compiled("")


class _Patterns:
    """The patterns of an answer, within the limits."""

    def __init__(self) -> None:
        self._searches: dict[str, Pattern] = {}
        self._instructions = 0
        self._nbytes = 0

    def compile(self, text: str) -> Pattern:
        """Raises ValueError if it is no pattern, or all are too large together."""
        search = self._searches.get(text)
        if search is not None:
            return search
        search, instructions, nbytes_max = _compiled(text)
        self._instructions += instructions
        self._nbytes += nbytes_max
        if self._instructions > _INSTRUCTIONS_MAX or self._nbytes > _GRANT_NBYTES_MAX:
            raise ValueError("the patterns are too large")
        self._searches[text] = search
        return search


class _Entry(NamedTuple):
    """An authorization as it was sent."""

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
