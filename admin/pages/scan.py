"""The message browser's walk: over nodes and pages of messages, to those that are wanted.

Each request walks on from a `Place` until it has enough matches, or has looked at `MAX_SCANNED`
messages or for `MAX_S` seconds. It then says how far it came: a search over millions of messages
is a series of short requests, each shown, and ends when nobody asks for more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec import Struct

from admin.cluster.queries import url_of
from admin.cluster.turns import compute
from admin.pages.bodies import body_bytes
from admin.upstream import Upstream, UpstreamError

__all__ = [
    "MAX_S",
    "MAX_SCANNED",
    "BadWishError",
    "Found",
    "Place",
    "Source",
    "Wish",
    "get_page",
    "parse_time",
    "scan",
]

MAX_SCANNED: Final = 5_000
"""Messages that one request looks at."""
MAX_S: Final = 4.0
"""Seconds for which it looks."""
_PAGE: Final = 250
# Of the bodies of a page: decoding takes some milliseconds.
_PAGE_BYTES: Final = 1024 * 1024
_MAX_OFFSET: Final = 10**12
# Of a log: nsqd sends whole bodies, so a page has fewer messages.
_LOG_PAGE: Final = 100
_STEP: Final = re.compile(r"([^.\[\]=!]+)|\[(\d{1,6})\]")


class BadWishError(ValueError):
    """A search makes no sense; ``str()`` says why."""


class PeekPage(Struct):
    """The answer of our nsqd to /topic/peek and /channel/peek; see docs/peek.md."""

    messages: list[dict[str, Any]] | None = None
    counts: dict[str, int] | None = None
    order: str = ""
    more: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What is browsed. ``state``: queued, in_flight or deferred; ``log``: all that the log has."""

    topic: str
    channel: str = ""
    state: str = "queued"
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a walk goes on: at a node (its number), and in it an offset, or a log's token."""

    node: int = 0
    at: str = ""

    @property
    def offset(self) -> int:
        """Messages to skip; of a log 0."""
        at = self.at
        return min(int(at), _MAX_OFFSET) if at.isascii() and at.isdigit() and len(at) < 14 else 0


@dataclass(frozen=True, slots=True)
class Wish:
    """Which messages are wanted.

    Attributes:
        text: the body contains it, in any case.
        path: steps into the JSON body: keys and indexes.
        value: what is there, as JSON or as text; "": anything.
        since_s, until_s: times of publishing, in seconds since 1970.
        min_attempts: at least so many.
    """

    text: str = ""
    path: Sequence[str | int] = ()
    value: str = ""
    since_s: float | None = None
    until_s: float | None = None
    min_attempts: int = 0

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Wish:
        """Raises BadWishError."""
        path, _, value = query.get("json", "").strip().partition("=")
        attempts = query.get("attempts", "").strip()
        if attempts and not (attempts.isascii() and attempts.isdigit() and len(attempts) < 6):
            raise BadWishError("Attempts must be a number.")
        return cls(
            query.get("text", "").strip(),
            _steps(path.strip()),
            value.strip(),
            parse_time(query.get("since", "")),
            parse_time(query.get("until", "")),
            int(attempts or 0),
        )

    @property
    def is_any(self) -> bool:
        """Whether every message is wanted."""
        return self == Wish()

    def matches(self, message: Mapping[str, Any]) -> bool:
        """Whether a message of a node, which may be anything, is wanted."""
        if self.min_attempts and not _at_least(message.get("attempts"), self.min_attempts):
            return False
        stamp = message.get("timestamp")
        published_s = stamp / 1e9 if isinstance(stamp, int) else None
        if self.since_s is not None and (published_s is None or published_s < self.since_s):
            return False
        if self.until_s is not None and (published_s is None or published_s >= self.until_s):
            return False
        if not (self.text or self.path):
            return True
        body = body_bytes(message)
        if self.text and self.text.encode().lower() not in body.lower():
            return False
        return not self.path or self._is_there(body)

    def _is_there(self, body: bytes) -> bool:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        for step in self.path:
            if isinstance(value, dict) and str(step) in value:
                value = value[str(step)]
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return False
        if not self.value:
            return True
        return value == self.value if isinstance(value, str) else _same(value, self.value)


def _at_least(value: object, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _same(value: object, text: str) -> bool:
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return type(value) is type(wanted) and value == wanted


def _steps(path: str) -> tuple[str | int, ...]:
    if not path:
        return ()
    path = path.removeprefix("$").removeprefix(".")
    steps, at = list[str | int](), 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise BadWishError(
                f"Not a JSON path: {path[:100]}. Use items[0].sku or $.customer=Ann."
            )
        steps.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end() + (path[match.end() : match.end() + 1] == ".")
    return tuple(steps)


def parse_time(text: str) -> float | None:
    """A time as a form sends it, or as RFC 3339 writes it, in seconds since 1970; UTC.

    Raises:
        BadWishError: it is neither.
    """
    if not text.strip():
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadWishError(f"Not a time: {text[:40]}. Use 2026-01-31T12:00:05.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(slots=True)
class Found:
    """How far a walk came.

    Attributes:
        messages: those that match, each with its node and its offset there (of a log None).
        scanned: messages that were looked at.
        next: where to go on; None: all nodes were seen to their end.
        counts: of the nodes that were asked, by node.
        order: of the messages of a node.
        problems: errors of nodes, which were left out from there on.
    """

    messages: list[tuple[str, int | None, dict[str, Any]]] = field(default_factory=list)
    scanned: int = 0
    next: Place | None = None
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    order: str = ""
    problems: list[UpstreamError | str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Page:
    """Messages, and where the next ones are; ``at`` is None at the end."""

    messages: Sequence[dict[str, Any]]
    at: str | None
    trouble: str = ""


async def scan(
    upstream: Upstream, nodes: Sequence[str], source: Source, wish: Wish, place: Place, limit: int
) -> Found:
    """Walk on from ``place`` until ``limit`` messages match, or the bounds are reached.

    A cancellation leaves nothing behind.
    """
    found, deadline_s = Found(next=place), trio.current_time() + MAX_S
    while found.next is not None:
        if found.next.node >= len(nodes):
            found.next = None
            break
        place = found.next
        node = nodes[place.node]
        want = limit - len(found.messages)
        size = min(want, _PAGE) if wish.is_any else _PAGE
        try:
            page = await _read(upstream, node, source, place, size, found)
        except UpstreamError as error:
            found.problems.append(error)
            found.next = Place(place.node + 1)
            continue
        if page.trouble:
            found.problems.append(f"{node}: the list is incomplete: {page.trouble}")
        seen, is_log = len(page.messages), source.state == "log"
        # A log goes on behind the page, so all of the page are shown.
        most = seen if is_log else want
        matching = await compute(seen, partial(_matches, page.messages, wish, most))
        if len(matching) == want and not is_log:
            seen = matching[-1] + 1  # go on behind the last one that is shown
        for number in matching:
            offset = None if is_log else place.offset + number
            found.messages.append((node, offset, dict(page.messages[number])))
        found.scanned += seen
        if page.at is None and seen == len(page.messages):
            found.next = Place(place.node + 1)
        elif is_log:
            found.next = Place(place.node, page.at or "")
        else:
            found.next = Place(place.node, str(place.offset + seen))
        full = len(found.messages) >= limit
        if full or found.scanned >= MAX_SCANNED or trio.current_time() >= deadline_s:
            break
    if found.next is not None and found.next.node >= len(nodes):
        found.next = None
    return found


def _matches(messages: Iterable[Mapping[str, Any]], wish: Wish, limit: int) -> list[int]:
    numbers = list[int]()
    for number, message in enumerate(messages):
        if wish.matches(message):
            numbers.append(number)
            if len(numbers) == limit:
                break
    return numbers


async def _read(
    upstream: Upstream, node: str, source: Source, place: Place, size: int, found: Found
) -> _Page:
    if source.state == "log":
        return await _read_log(upstream, node, source, place, min(size, _LOG_PAGE))
    page = await get_page(upstream, node, source, place.offset, size)
    found.counts[node] = page.counts or {}
    found.order = page.order
    messages = (page.messages or [])[:size]
    at = str(place.offset + len(messages)) if page.more and messages else None
    return _Page(messages, at, page.trouble or "")


async def get_page(
    upstream: Upstream,
    node: str,
    source: Source,
    offset: int,
    size: int,
    max_bytes: int = _PAGE_BYTES,
) -> PeekPage:
    """A page of the messages of a node, with ``max_bytes`` of bodies. Raises UpstreamError."""
    query = {"topic": source.topic, "limit": str(size), "offset": str(offset)}
    query["max_bytes"] = str(max_bytes)
    query |= {"channel": source.channel, "state": source.state} if source.channel else {}
    path = "/channel/peek" if source.channel else "/topic/peek"
    return await upstream.get_json(url_of(node, path, **query), PeekPage)


async def _read_log(
    upstream: Upstream, node: str, source: Source, place: Place, size: int
) -> _Page:
    query = {"topic": source.topic, "count": str(size)}
    if place.at:
        query["after"] = place.at
    elif source.since:
        query["from"] = source.since
    if source.until:
        query["to"] = source.until
    body = await upstream.get_bytes(url_of(node, "/topic/log", **query))
    return await compute(len(body) // 200, lambda: _parse_log(body))


_LINE: Final = msgspec.json.Decoder(dict[str, Any])


def _parse_log(body: bytes) -> _Page:
    messages, at, trouble = list[dict[str, Any]](), None, ""
    for line in body.splitlines():
        try:
            row = _LINE.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _Page(messages, None, "the answer broke off")
        note = row.get("note")
        if note is None:
            row["body_size"] = len(body_bytes(row))
            row["where"] = f"sequence {row.get('sequence', '')}"
            messages.append(row)
        elif note == "skipped":
            trouble = f"some messages are {row.get('reason', 'missing')}."
        elif note == "end" and row.get("reason") in ("count", "time", "removed"):
            at = str(row.get("next") or "") or None
    return _Page(messages, at, trouble)
