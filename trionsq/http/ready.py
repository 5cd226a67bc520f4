"""Answers as they go over the wire, made once a second: the same bytes that hypercorn sends."""

from __future__ import annotations

from time import time
from typing import Final
from wsgiref.handlers import format_date_time

from trionsq.web.errors import HttpError
from trionsq.web.text import json_bytes, reason

__all__ = ["ReadyAnswers"]

_TEXT: Final = b"text/plain; charset=utf-8"
_JSON: Final = b"application/json; charset=utf-8"
_NSQ: Final = b"x-nsq-content-type: nsq; version=1.0\r\n"


class ReadyAnswers:
    """The answers of the short way; ``close`` says that the connection ends after them.

    `renew` is to be called before those of a turn are asked for.
    """

    def __init__(self) -> None:
        self._second = 0
        self._date = b""
        self._made: dict[object, bytes] = {}

    def renew(self) -> None:
        """Let the date be that of now."""
        second = int(time())
        if second != self._second:
            self._second = second
            self._date = format_date_time(second).encode("ascii")
            self._made.clear()

    def ok(self, close: bool) -> bytes:
        """Success."""
        key = ("OK", close)
        return self._made.get(key) or self._keep(key, self._answer(200, b"OK", _TEXT, _NSQ, close))

    def ping(self, health: str, close: bool) -> bytes:
        """The answer to /ping."""
        key = ("ping", health, close)
        if (ready := self._made.get(key)) is not None:
            return ready
        status = 200 if health == "OK" else 500
        return self._keep(key, self._answer(status, health.encode(), _TEXT, b"", close))

    def refusal(self, error: HttpError, close: bool) -> bytes:
        """A refusal."""
        key = (error.status, error.code, close)
        if (ready := self._made.get(key)) is not None:
            return ready
        body = json_bytes({"message": error.code})
        return self._keep(key, self._answer(error.status, body, _JSON, _NSQ, close))

    def _answer(self, status: int, body: bytes, kind: bytes, more: bytes, close: bool) -> bytes:
        return (
            b"HTTP/1.1 %d %b\r\ncontent-length: %d\r\ncontent-type: %b\r\n%bdate: %b\r\n%b\r\n%b"
            % (
                status,
                reason(status),
                len(body),
                kind,
                more,
                self._date,
                b"Connection: close\r\n" if close else b"",
                body,
            )
        )

    def _keep(self, key: object, ready: bytes) -> bytes:
        self._made[key] = ready
        return ready
