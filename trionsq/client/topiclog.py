"""Reads the log of a topic from one nsqd, without a channel: `TopicLogReader`.

::

    reader = TopicLogReader("orders", "127.0.0.1:4151", begin="2026-11-23T06:00:00Z")
    async with aclosing(reader.batches()) as batches:
        async for batch in batches:
            for body in batch.columns.bodies:
                ...
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from random import Random
from typing import Any, Final
from urllib.parse import urlencode

import trio

from trionsq import httpget
from trionsq.client.config import Config
from trionsq.client.errors import ClientError, ConnectError
from trionsq.httpmessage import may_pass
from trionsq.wire.client import Columns, FrameError
from trionsq.wire.logstream import LogMessages, LogStreamDecoder

__all__ = ["LogRefusedError", "TopicLogReader"]

log = logging.getLogger("trionsq.client")

# nsqd ends each answer after so many messages; the next one goes on.
_COUNT: Final = 1_000_000
_WAIT_S: Final = 30
# An answer in which nothing comes for so much longer is given up.
_SILENCE_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 15.0
_MAX_REFUSAL_BYTES: Final = 64 * 1024


class LogRefusedError(ClientError):
    """nsqd refuses to show the log; the text says why.

    Attributes:
        is_access: nsqd does not know the secret, or its user may not read the topic.
    """

    def __init__(self, text: str, *, is_access: bool = False) -> None:
        super().__init__(text)
        self.is_access = is_access


class TopicLogReader:
    """Reads on over broken connections and restarts of nsqd; each message comes once.

    Attributes:
        topic: its name.
        address: of nsqd's HTTP.
        sequence: the message behind the last one that was read; None before the first answer.
        skipped: messages that nsqd could not show any more, or that are damaged.
    """

    def __init__(
        self,
        topic: str,
        address: str,
        *,
        begin: str = "beginning",
        after: str | None = None,
        to: str | None = None,
        config: Config | None = None,
        dial: httpget.Dial = trio.open_tcp_stream,
        random: Random | None = None,
    ) -> None:
        """Make a reader; `batches` connects.

        Args:
            topic: its name.
            address: ``host:port`` or the URL of nsqd's HTTP.
            begin: where to begin: ``beginning``, ``end``, a time as RFC 3339 writes it, or a
                sequence.
            after: a token of this log, in place of ``begin``: what is behind it comes next. Then an
                nsqd that is away is awaited at first, too.
            to: where to end, before the message that this names; None: never. ``end`` is the end
                of the log as it is at first; for a later time or sequence it is waited.
            config: time limits, what is trusted, and ``auth_secret``, which is sent as a bearer
                token; by default `Config()`.
            dial: connects; tests replace it.
            random: for the pauses.
        """
        self.topic = topic
        self.address = address
        self.sequence: int | None = None
        self.skipped = 0
        self._begin = begin
        self._to = to
        self._token = after
        self._config = config or Config()
        self._dial = dial
        self._random = random or Random()
        self._pause_s = 0.0
        # Why the last answer ended, with its last note.
        self._reason = ""
        self._fields: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"<TopicLogReader {self.topic} {self.address} at {self.sequence}>"

    async def batches(self) -> AsyncGenerator[LogMessages, None]:
        """Yield the messages in their order, up to the end that was asked for.

        Raises:
            LogRefusedError: nsqd refuses: there is no such topic, or it has no log, or it was
                deleted and made again meanwhile, or the secret does not open it.
            ConnectError: nsqd cannot be reached at first, and there was no ``after``; later it is
                tried again, in growing pauses up to 15 s.
        """
        while True:
            try:
                answers = self._answer()
                try:
                    async for messages in answers:
                        yield messages
                finally:
                    await answers.aclose()
                reason, fields = self._reason, self._fields
            except (httpget.GetError, FrameError) as error:
                if self._token is None:
                    raise ConnectError(f"reading {self.topic}: {error}") from error
                reason, fields = "", {"error": str(error)}
            if reason == "to":
                return
            if reason == "deleted":
                raise LogRefusedError(f"{self.address}: the topic {self.topic} was deleted")
            if reason in ("end", "count", "time", "removed"):
                self._pause_s = 0.0
                continue
            self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _MAX_PAUSE_S)
            pause_s = self._pause_s * (1 + self._random.random() / 2)
            why = fields.get("error") or reason
            log.warning("%s: reads %s again in %.1f s: %s", self.address, self.topic, pause_s, why)
            await trio.sleep(pause_s)

    async def _answer(self) -> AsyncGenerator[LogMessages, None]:
        """Yield the messages of one answer; then `_reason` says why it ended."""
        self._reason, self._fields = "", {}
        url = self._url()
        context = self._config.ssl_context() if url.startswith("https:") else None
        secret = self._config.auth_secret
        headers = {"Authorization": f"Bearer {secret}"} if secret else None
        async with httpget.stream(
            url,
            headers,
            connect_timeout_s=self._config.dial_timeout_s,
            silence_timeout_s=_WAIT_S + _SILENCE_S,
            ssl_context=context,
            dial=self._dial,
        ) as answer:
            if answer.status != 200:
                await self._refuse(answer)
                return
            decoder = LogStreamDecoder()
            while data := await answer.receive():
                for event in decoder.feed(data):
                    if not isinstance(event, LogMessages):
                        self._take_note(event.kind, event.fields)
                        continue
                    self._pause_s = 0.0
                    messages = self._new_of(event)
                    if messages is not None:
                        self.sequence = messages.sequence + len(messages.columns.ids)
                        yield messages
        if not self._reason:
            raise httpget.AnswerError(f"{self.address}: the answer has no end")

    def _url(self) -> str:
        base = self.address if "://" in self.address else f"http://{self.address}"
        values = {"topic": self.topic, "format": "binary", "count": _COUNT, "wait": _WAIT_S}
        if self._to is not None:
            values["to"] = self._to
        where = {"from": self._begin} if self._token is None else {"after": self._token}
        return f"{base.rstrip('/')}/topic/log?{urlencode({**values, **where})}"

    async def _refuse(self, answer: httpget.StreamedAnswer) -> None:
        body = b""
        while (piece := await answer.receive()) and len(body) < _MAX_REFUSAL_BYTES:
            body += piece
        try:
            text = str(json.loads(body)["message"])
        except (ValueError, TypeError, KeyError):
            text = "no nsqd, or one that cannot show its logs"
        text = f"{self.address}: topic {self.topic}: {answer.status} {text}"
        if not may_pass(answer.status):
            raise LogRefusedError(text, is_access=answer.status in (401, 403))
        self._reason, self._fields = "later", {"error": text}

    def _take_note(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "begin":
            if self.sequence is None:
                self.sequence = fields["from"]
            if fields["to"] is not None:
                self._to = str(fields["to"])
        elif kind == "skipped":
            self._skip(fields["from"], fields["to"], fields["reason"])
        elif kind == "end":
            self._reason, self._fields = fields["reason"], fields
        if fields.get("next") is not None:
            self._token = fields["next"]

    def _skip(self, first: int, end: int, reason: str) -> None:
        assert self.sequence is not None
        first = max(first, self.sequence)
        if first < end:
            self.skipped += end - first
            self.sequence = end
            log.warning(
                "%s: messages %d to %d of %s are %s", self.address, first, end, self.topic, reason
            )

    def _new_of(self, messages: LogMessages) -> LogMessages | None:
        """Return those that have not come yet: a token is of a place before the break."""
        sequence, defer_ms, columns = messages
        known = 0 if self.sequence is None else self.sequence - sequence
        if known <= 0:
            return messages
        if known >= len(columns.ids):
            return None
        rest = Columns(
            columns.timestamps_ns[known:],
            columns.attempts[known:],
            columns.ids[known:],
            columns.bodies[known:],
        )
        return LogMessages(sequence + known, defer_ms, rest)
