#!/usr/bin/env python3
"""``nsq-drain [--least=SECONDS] [--limit=SECONDS] [URL]``: wait until an nsqd holds no messages.

Exit code 0 when nothing waits, is in flight or deferred; 1 when the limit (default: 30) comes
first, after a line for each topic and channel that has some left. It only looks: see to it that
nobody publishes there meanwhile. Python's standard library alone.
"""

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

URL: Final = "http://127.0.0.1:4151"
REQUEST_LIMIT_S: Final = 5.0
PAUSE_S: Final = 0.5


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, read. Raises SystemExit as argparse does."""
    parser = argparse.ArgumentParser(
        prog="nsq-drain", description="wait until an nsqd is empty", allow_abbrev=False
    )
    parser.add_argument("url", metavar="URL", nargs="?", default=URL, help="default: %(default)s")
    for name, default, what in (
        ("--limit", 30.0, "then give up"),
        ("--least", 0.0, "wait so long even if it is empty: until nobody is sent there"),
    ):
        parser.add_argument(
            name,
            metavar="SECONDS",
            type=float,
            default=default,
            help=f"{what} (default: %(default)s)",
        )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Wait, and return the exit code."""
    given = arguments(argv)
    start_s = time.monotonic()
    while True:
        try:
            left = held(asked(given.url))
        except (OSError, ValueError, http.client.HTTPException) as error:
            left = [f"{given.url}: {error}"]
        waited_s = time.monotonic() - start_s
        if not left and waited_s >= given.least:
            return 0
        if waited_s >= given.limit:
            print("".join(f"{line}\n" for line in left), end="", file=sys.stderr)
            return 1 if left else 0
        time.sleep(PAUSE_S)


def asked(url: str) -> dict[str, Any]:
    """The figures of an nsqd. Raises OSError, ValueError, http.client.HTTPException."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = f"{url.rstrip('/')}/stats?format=json&include_clients=false&include_mem=false"
    with opener.open(query, timeout=REQUEST_LIMIT_S) as answer:
        stats = json.load(answer)
    if not isinstance(stats, dict):
        raise ValueError("not the figures of an nsqd")
    return stats


def held(stats: dict[str, Any]) -> list[str]:
    """A line for each topic and channel that has messages. A topic's own have no channel yet."""
    lines = []
    for topic in stats["topics"]:
        name = topic["topic_name"]
        if topic["depth"]:
            lines.append(f"{name}: {topic['depth']} messages")
        for channel in topic["channels"]:
            counts = [channel[key] for key in ("depth", "in_flight_count", "deferred_count")]
            if any(counts):
                texts = (f"{n} {what}" for n, what in zip(counts, WORDS, strict=True) if n)
                lines.append(f"{name}/{channel['channel_name']}: {', '.join(texts)}")
    return lines


WORDS: Final = ("waiting", "in flight", "deferred")

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
