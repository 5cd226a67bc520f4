"""The webhook of problems: told once, again after a failure, signed."""

from __future__ import annotations

import hashlib
import hmac
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from trio.testing import MockClock

from admin.alerts import RETRIES_S, Alerts
from admin.options import NsqadminOptions, OptionsError
from admin.posting import SIGNATURE
from admin.watch.snapshot import Problem, Severity, Snapshot

URL = "http://hook/alerts"


class Endpoint(httpx2.AsyncBaseTransport):
    """Keeps what it gets; fails as often as ``failures`` says."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, str | None]] = []
        self.failures = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        if self.failures:
            self.failures -= 1
            return httpx2.Response(503)
        self.requests.append((body, request.headers.get(SIGNATURE)))
        return httpx2.Response(200)

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The bodies."""
        return [json.loads(body) for body, _ in self.requests]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """Instead of the network."""
    made = Endpoint()
    client = partial(httpx2.AsyncClient, transport=made)
    monkeypatch.setattr("admin.posting.httpx2.AsyncClient", client)
    return made


def problem(where: str, severity: Severity = "warning") -> Problem:
    """A problem of a place."""
    return Problem(severity, f"{where} is slow.", where, "/nodes", "slow", since_s=5.0)


def snapshot(*problems: Problem) -> Snapshot:
    """With these problems."""
    return Snapshot(1, 100.0, problems=list(problems))


async def test_changes_are_told(autojump_clock: MockClock, endpoint: Endpoint) -> None:
    """What begins, gets worse and ends; not what stays, and no notices."""
    alerts = Alerts(NsqadminOptions(alert_http_endpoint=URL))
    for problems in (
        [],
        [problem("a"), problem("n", "notice")],
        [problem("a"), problem("n", "notice")],
        [problem("a", "critical"), problem("b")],
        [problem("b")],
    ):
        alerts.note_snapshot(snapshot(*problems))
    with trio.move_on_after(1.0):
        await alerts.run()
    told = [
        ([each["where"] for each in document["began"]], [e["where"] for e in document["ended"]])
        for document in endpoint.documents
    ]
    assert told == [(["a"], []), (["a", "b"], []), ([], ["a"])]
    assert endpoint.documents[1]["critical"] == 1
    assert endpoint.documents[0]["began"][0]["since"] == 5.0
    assert endpoint.requests[0][1] is None


async def test_a_post_that_fails_is_repeated_and_signed(
    autojump_clock: MockClock, endpoint: Endpoint, tmp_path: Path
) -> None:
    """A receiver that is restarted misses nothing, and knows who sent it."""
    key = tmp_path / "key"
    key.write_text("secret\n")
    alerts = Alerts(NsqadminOptions(alert_http_endpoint=URL, alert_secret_file=str(key)))
    endpoint.failures = len(RETRIES_S)
    alerts.note_snapshot(snapshot(problem("a")))
    with trio.move_on_after(sum(RETRIES_S) + 1.0):
        await alerts.run()
    [(body, signature)] = endpoint.requests
    assert signature == f"sha256={hmac.new(b'secret', body, hashlib.sha256).hexdigest()}"


def test_a_key_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    """At the start, not when something is wrong."""
    empty = tmp_path / "empty"
    empty.touch()
    for path in (empty, tmp_path / "none"):
        with pytest.raises(OptionsError, match="alert-secret-file"):
            Alerts(NsqadminOptions(alert_http_endpoint=URL, alert_secret_file=str(path)))
