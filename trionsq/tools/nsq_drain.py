#!/usr/bin/env python3
"""``nsq-drain [URL]``: have an nsqd refuse publishes, and wait until it holds no messages.

Exit code 0 when no message waits, is in flight or deferred. At the limit it prints a line for each
topic and channel with messages, as far as nsqd still answers, and exits with 1. It uses Python's
standard library only, so that it starts quickly as the hook of an orchestrator.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["main"]

URL: Final = "http://127.0.0.1:4151"
REQUEST_LIMIT_S: Final = 15.0
PAUSE_S: Final = 0.25
# nsqd may end before its last state was seen.
_MARGIN_S: Final = 1.0

_WORDS: Final = ("waiting", "in flight", "deferred")
_FAILURES: Final = (OSError, ValueError, http.client.HTTPException)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Raises SystemExit as argparse does."""
    parser = argparse.ArgumentParser(
        prog="nsq-drain",
        description="Have an nsqd refuse publishes, deliver all messages, and end.",
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", nargs="?", default=URL, help="default: %(default)s")
    for name, text in (
        ("--limit", "maximum time of the drain, 0: none (default: nsqd's --drain-timeout)"),
        ("--delay", "time before the drain, until load balancers use other nodes (default: 0)"),
    ):
        parser.add_argument(name, metavar="SECONDS", type=float, help=text)
    for name, text in (
        ("--stay", "nsqd stays when it is drained, until something else stops it"),
        ("--cancel", "have nsqd take publishes again"),
        ("--watch", "only wait until there are no messages: for the original's nsqd"),
    ):
        parser.add_argument(name, action="store_true", help=text)
    parser.add_argument("--token-file", metavar="PATH", default="", help="file with nsqd's token")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code."""
    arguments = parse_arguments(argv)
    try:
        nsqd = Nsqd(arguments.url, arguments.token_file)
        if arguments.cancel:
            nsqd.request("PUT", "/config/drain", False)
            return 0
        time.sleep(arguments.delay or 0.0)
        if arguments.watch:
            return _watch(nsqd, arguments.limit)
        return _drain(nsqd, arguments.limit, stay=arguments.stay)
    except _FAILURES as error:
        _print([f"{arguments.url}: {error}"])
        return 1


class Nsqd:
    """The HTTP API of an nsqd."""

    def __init__(self, url: str, token_file: str = "") -> None:
        """Raises OSError if the file cannot be read."""
        self._url = url.rstrip("/")
        self._headers = {}
        if token_file:
            with open(token_file, encoding="utf-8") as file:
                self._headers["Authorization"] = f"Bearer {file.read().strip()}"
        # A proxy of the environment is for other addresses.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Return the JSON object of the response. Raises what `_FAILURES` lists."""
        data = None if method == "GET" else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=REQUEST_LIMIT_S) as response:
                document = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read(500).decode(errors="replace")
            raise ValueError(f"{error.code} {text}") from None
        if not isinstance(document, dict):
            raise ValueError("not the response of an nsqd")
        return document

    def message_counts(self) -> list[str]:
        """Return a line for each topic and channel that has messages. Raises as `request`."""
        query = "format=json&include_clients=false&include_mem=false"
        return message_counts(self.request("GET", f"/stats?{query}"))


def _drain(nsqd: Nsqd, limit_s: float | None, *, stay: bool) -> int:
    wish = {"exit": not stay} | ({} if limit_s is None else {"limit": f"{limit_s}s"})
    drain = nsqd.request("PUT", "/config/drain", wish)
    limit_s = drain["limit_seconds"]
    start_s = time.monotonic()
    lines: list[str] = []
    while drain["state"] == "draining":
        try:
            lines = nsqd.message_counts()
            time.sleep(PAUSE_S)
            drain = nsqd.request("GET", "/config/drain")
        except _FAILURES:
            if stay:
                raise
            # It has ended.
            is_late = limit_s is not None and time.monotonic() - start_s >= limit_s - _MARGIN_S
            drain = {"state": "limit" if lines and is_late else "empty"}
    if drain["state"] == "empty":
        return 0
    _print(["the drain was cancelled"] if drain["state"] == "off" else lines)
    return 1


def _watch(nsqd: Nsqd, limit_s: float | None) -> int:
    start_s = time.monotonic()
    while True:
        try:
            lines = nsqd.message_counts()
        except _FAILURES as error:
            lines = [str(error)]
        if not lines:
            return 0
        if limit_s and time.monotonic() - start_s >= limit_s:
            _print(lines)
            return 1
        time.sleep(PAUSE_S)


def message_counts(stats: dict[str, Any]) -> list[str]:
    """Return a line for each topic and channel of /stats that has messages."""
    lines = []
    for topic in stats["topics"] or ():
        name = topic["topic_name"]
        if topic["depth"]:
            lines.append(f"{name}: {topic['depth']} messages")
        for channel in topic["channels"]:
            counts = [channel[key] for key in ("depth", "in_flight_count", "deferred_count")]
            if any(counts):
                texts = (
                    f"{count} {word}" for count, word in zip(counts, _WORDS, strict=True) if count
                )
                lines.append(f"{name}/{channel['channel_name']}: {', '.join(texts)}")
    return lines


def _print(lines: Sequence[str]) -> None:
    print("".join(f"{line}\n" for line in lines), end="", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
