"""Answers that are made once a second (trionsq.http.fast_path)."""

from __future__ import annotations

import pytest

from trionsq.http import fast_path
from trionsq.http.fast_path import ReadyResponses
from trionsq.web.protocol import HttpError


def test_the_date_is_that_of_the_last_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the form that HTTP has for it; what was made with another date is forgotten."""
    answers = ReadyResponses()
    for now_s, date in [
        (1795261804.9, b"Sat, 21 Nov 2026 11:50:04 GMT"),
        (1795261805.0, b"Sat, 21 Nov 2026 11:50:05 GMT"),
    ]:
        monkeypatch.setattr(fast_path, "time", lambda now_s=now_s: now_s)
        answers.renew()
        for close, last in ((False, b""), (True, b"Connection: close\r\n")):
            for _ in range(2):
                assert answers.ok(close) == (
                    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"
                    b"content-type: text/plain; charset=utf-8\r\n"
                    b"x-nsq-content-type: nsq; version=1.0\r\n"
                    b"date: " + date + b"\r\n" + last + b"\r\nOK"
                )


def test_ping_and_refusals() -> None:
    """A sick broker answers 500 in its own words; a refusal is JSON. Each is itself, every time."""
    answers = ReadyResponses()
    answers.renew()
    refused = HttpError(503, "EXITING")
    for _ in range(2):
        assert answers.ping("OK", False).startswith(b"HTTP/1.1 200 OK\r\n")
        assert answers.ping("NOK - disk", False).startswith(
            b"HTTP/1.1 500 Internal Server Error\r\n"
        )
        assert answers.ping("NOK - disk", False).endswith(b"\r\n\r\nNOK - disk")
        assert answers.refusal(refused, False).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert answers.refusal(refused, False).endswith(b'\r\n\r\n{"message":"EXITING"}')
        assert b"Connection: close" in answers.refusal(refused, True)
        assert b"x-nsq" not in answers.ping("OK", True)
