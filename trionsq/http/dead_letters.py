"""/deadletter: the messages that channels gave up. The original has no such endpoints."""

from __future__ import annotations

import base64
import logging
from codecs import getincrementaldecoder
from dataclasses import replace
from typing import Final, TypedDict

from quart import Response

from trionsq import durations
from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.dead_letters import ALL_LETTERS
from trionsq.broker.replays import DEFAULT_REPLAY_RATE
from trionsq.http.admin import Administration
from trionsq.storage.letters import LetterError, LetterFilter, StoredLetter
from trionsq.storage.log.seeking import rfc3339
from trionsq.web.protocol import HttpError, Query, valid_argument
from trionsq.web.request import query
from trionsq.web.responses import json_document
from trionsq.wire.names import MAX_REASON, is_valid_reason

__all__ = ["DeadLetterOffice"]

log = logging.getLogger("trionsq")

_Decoder: Final = getincrementaldecoder("utf-8")
_MAX_LIMIT: Final = 1000
_MAX_RATE: Final = 10_000
# Of the bodies of a page together.
_MAX_PAGE_BYTES: Final = 4 << 20
_ID_BYTES: Final = 16


class LetterDocument(TypedDict):
    """A letter; times are as RFC 3339 writes them."""

    id: str
    topic: str
    channel: str
    node: str
    message_id: str
    dead_letter_topic: str
    reason: str
    attempts: int
    first_time: str
    last_time: str
    age_in_seconds: float
    client: str
    state: str
    body_size: int
    body_cut: bool
    body_encoding: str
    body: str


class DeadLetterOffice:
    """The endpoints."""

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._broker = broker
        self._letters = broker.dead_letters
        self._admin = admin

    async def get(self) -> Response:
        """GET /deadletter: letters, the oldest first."""
        values = query()
        after = _number(values, b"after", 0, 0, ALL_LETTERS)
        wanted = replace(self._filter(values), after=after)
        limit = _number(values, b"limit", 100, 1, _MAX_LIMIT)
        default = min(4096, _MAX_PAGE_BYTES // limit)
        max_body = _number(values, b"max_body", default, 0, _MAX_PAGE_BYTES)
        if limit * max_body > _MAX_PAGE_BYTES:
            raise HttpError(400, "INVALID_ARG_MAX_BODY")
        try:
            letters, total = await self._letters.find(wanted, limit, max_body)
        except LetterError as error:
            raise HttpError(500, f"NOT_READ: {error}") from error
        now_ns = self._broker.clock.now_ns()
        document: dict[str, object] = {
            "count": total,
            "next": letters[-1].number if total > len(letters) else None,
            "deadletters": [_document(one, now_ns) for one in letters],
        }
        return json_document(document)

    async def add(self) -> Response:
        """POST /deadletter/add: a message in flight becomes a letter; its client wants that."""
        values = query()
        channel = self._admin.existing_channel()
        id_ = values.get(b"id", b"")
        if len(id_) != _ID_BYTES:
            raise HttpError(400, "INVALID_ARG_ID")
        reason = values.get(b"reason", b"asked").decode(errors="replace")[:MAX_REASON]
        if not is_valid_reason(reason):
            raise HttpError(400, "INVALID_ARG_REASON")
        if not self._give_up(channel, id_, reason):
            raise HttpError(404, "MESSAGE_NOT_IN_FLIGHT")
        return json_document({"count": 1})

    def _give_up(self, channel: Channel, id_: bytes, reason: str) -> bool:
        given_up = channel.given_up
        for client in channel.clients.walk():
            if id_ in client.consumer.in_flight and given_up is not None:
                now_s = self._broker.clock.now_s()
                return given_up.ask(client.consumer, id_, reason, now_s)
        return False

    async def replay(self) -> Response:
        """POST /deadletter/replay: letters go back to the channel that they came from."""
        values = query()
        wanted = self._filter(values)
        rate = _number(values, b"rate", DEFAULT_REPLAY_RATE, 1, _MAX_RATE)
        if wanted.ids:
            found, _ = await self._letters.find(wanted, 1, 0)
            if not found:
                raise HttpError(404, "LETTER_NOT_FOUND")
            self._check_channel(found[0].letter.topic, found[0].letter.channel)
        else:
            topic, channel = valid_argument(values, b"topic"), valid_argument(values, b"channel")
            self._check_channel(topic, channel)
        limit = _number(values, b"count", ALL_LETTERS, 1, ALL_LETTERS)
        try:
            count = await self._letters.replay(wanted, limit, rate)
        except LetterError as error:
            raise HttpError(500, f"NOT_DURABLE: {error}") from error
        log.info("DEADLETTER: %d go back to their channel, %d a second", count, rate)
        return json_document({"count": count})

    def _check_channel(self, topic: str, channel: str) -> None:
        if channel not in self._admin.topic_named(topic).channels:
            raise HttpError(404, "CHANNEL_NOT_FOUND")

    async def discard(self) -> Response:
        """POST /deadletter/discard: letters are removed."""
        values = query()
        wanted = self._filter(values)
        if not wanted.ids:
            valid_argument(values, b"topic")
        limit = _number(values, b"count", ALL_LETTERS, 1, ALL_LETTERS)
        try:
            count = await self._letters.discard(wanted, limit)
        except LetterError as error:
            raise HttpError(500, f"NOT_DURABLE: {error}") from error
        if wanted.ids and not count:
            raise HttpError(404, "LETTER_NOT_FOUND")
        log.info("DEADLETTER: %d were discarded", count)
        return json_document({"count": count})

    def _filter(self, values: Query) -> LetterFilter:
        until_ns: int | None = None
        if (text := values.get(b"older_than")) is not None:
            try:
                until_ns = self._broker.clock.now_ns() - durations.parse(text.decode())
            except ValueError as error:
                raise HttpError(400, "INVALID_ARG_OLDER_THAN") from error
        id_ = values.get(b"id")
        return LetterFilter(
            topic=valid_argument(values, b"topic") if b"topic" in values else "",
            channel=valid_argument(values, b"channel") if b"channel" in values else "",
            reason=values.get(b"reason", b"").decode(errors="replace"),
            ids=() if id_ is None else (id_.decode(errors="replace"),),
            until_ns=until_ns,
        )


def _number(values: Query, name: bytes, default: int, least: int, most: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if value.isdigit() and len(value) <= 18 and least <= int(value) <= most:
        return int(value)
    raise HttpError(400, f"INVALID_ARG_{name.decode().upper()}")


def _document(stored: StoredLetter, now_ns: int) -> LetterDocument:
    letter = stored.letter
    is_cut = len(letter.body) < stored.body_nbytes
    try:
        # Half a character at the end of a truncated body does not make it binary.
        encoding, body = "utf-8", _Decoder().decode(letter.body, final=not is_cut)
    except UnicodeDecodeError:
        encoding, body = "base64", base64.b64encode(letter.body).decode("ascii")
    return {
        "id": letter.id,
        "topic": letter.topic,
        "channel": letter.channel,
        "node": letter.node,
        "message_id": letter.message,
        "dead_letter_topic": letter.dead_topic,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_time": rfc3339(letter.first_ns),
        "last_time": rfc3339(letter.last_ns),
        "age_in_seconds": round((now_ns - letter.last_ns) / 1e9, 3),
        "client": letter.client,
        "state": "replaying" if stored.is_replayed else "handed on" if stored.is_fed else "waiting",
        "body_size": stored.body_nbytes,
        "body_cut": is_cut,
        "body_encoding": encoding,
        "body": body,
    }
