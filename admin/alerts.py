"""The webhook of --alert-http-endpoint: a POST when a problem begins, gets worse or ends.

Problems are those of the overview, one for each place; notices are left out. Receivers tell
problems apart by ``where`` and ``kind``.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Final

from admin.options import NsqadminOptions, OptionsError
from admin.posting import Poster
from admin.watch.snapshot import Problem, Snapshot
from trionsq.durations import SECOND_NS
from trionsq.web.protocol import json_bytes

__all__ = ["MAX_LISTED", "RETRIES_S", "Alerts"]

RETRIES_S: Final = (1.0, 5.0, 25.0, 125.0)
"""Waits between tries of a POST that failed."""
MAX_LISTED: Final = 100
"""Problems in a list of a POST; ``..._count`` has the number of all."""


class Alerts:
    """Compares each snapshot with the one before, and POSTs the differences."""

    def __init__(self, options: NsqadminOptions) -> None:
        """Raises OptionsError: the key can't be read."""
        timeout_s = options.http_client_request_timeout_ns / SECOND_NS
        key = _key_of(options.alert_secret_file)
        self._poster = Poster(
            "ALERT", options.alert_http_endpoint, timeout_s, key=key, retries_s=RETRIES_S
        )
        self._via = socket.gethostname()
        self._known: dict[str, Problem] = {}

    @property
    def dropped(self) -> int:
        """Alerts for which the queue had no room."""
        return self._poster.dropped

    def note_snapshot(self, snapshot: Snapshot) -> None:
        """Queue what has changed; an observer of the poller."""
        now = {
            each.where or each.what: each for each in snapshot.problems if each.severity != "notice"
        }
        before, self._known = self._known, now
        began = [
            each
            for place, each in now.items()
            if place not in before
            or (each.severity == "critical" and before[place].severity != "critical")
        ]
        ended = [each for place, each in before.items() if place not in now]
        if not began and not ended:
            return
        document = {
            "time": round(snapshot.taken_s, 3),
            "via": self._via,
            **_listed("began", began),
            **_listed("ended", ended),
            "critical": sum(each.severity == "critical" for each in now.values()),
            "warnings": sum(each.severity == "warning" for each in now.values()),
        }
        self._poster.queue(json_bytes(document), "an alert")

    async def run(self) -> None:
        """Send until cancelled; then the queue gets a second."""
        await self._poster.run()


def _listed(name: str, problems: Iterable[Problem]) -> dict[str, Any]:
    every = list(problems)
    shown = [
        {
            "severity": each.severity,
            "kind": each.kind,
            "where": each.where,
            "what": each.what,
            "since": each.since_s,
            "link": each.link,
        }
        for each in every[:MAX_LISTED]
    ]
    return {name: shown, f"{name}_count": len(every)}


def _key_of(path: str) -> bytes:
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            key = file.read(4096).strip()
    except OSError as error:
        raise OptionsError(f"--alert-secret-file: {error}") from None
    if not key:
        raise OptionsError(f"--alert-secret-file: {path} is empty")
    return key
