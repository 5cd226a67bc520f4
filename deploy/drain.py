#!/usr/bin/env python3
"""``nsq-drain [--least=SECONDS] [--limit=SECONDS] [URL]``: wait until an nsqd holds no messages.

Exit code 0 when no message waits, is in flight or deferred. At the limit (default: 30) it prints a
line for each topic and channel with messages, and exits with 1. It only reads statistics: make sure
that no publisher uses this nsqd meanwhile. It uses Python's standard library only.
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


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises SystemExit as argparse does."""
    parser = argparse.ArgumentParser(
        prog="nsq-drain", description="wait until an nsqd is empty", allow_abbrev=False
    )
    parser.add_argument("url", metavar="URL", nargs="?", default=URL, help="default: %(default)s")
    for name, default, text in (
        ("--limit", 30.0, "maximum time"),
        ("--least", 0.0, "minimum time, until publishers use other nodes"),
    ):
        parser.add_argument(
            name,
            metavar="SECONDS",
            type=float,
            default=default,
            help=f"{text} (default: %(default)s)",
        )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Wait, and return the exit code."""
    arguments = parse_arguments(argv)
    start_s = time.monotonic()
    while True:
        try:
            remaining = message_counts(request_stats(arguments.url))
        except (OSError, ValueError, http.client.HTTPException) as error:
            remaining = [f"{arguments.url}: {error}"]
        waited_s = time.monotonic() - start_s
        if not remaining and waited_s >= arguments.least:
            return 0
        if waited_s >= arguments.limit:
            print("".join(f"{line}\n" for line in remaining), end="", file=sys.stderr)
            return 1 if remaining else 0
        time.sleep(PAUSE_S)


def request_stats(url: str) -> dict[str, Any]:
    """The statistics of an nsqd. Raises OSError, ValueError, http.client.HTTPException."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = f"{url.rstrip('/')}/stats?format=json&include_clients=false&include_mem=false"
    with opener.open(query, timeout=REQUEST_LIMIT_S) as response:
        stats = json.load(response)
    if not isinstance(stats, dict):
        raise ValueError("not the statistics of an nsqd")
    return stats


def message_counts(stats: dict[str, Any]) -> list[str]:
    """A line for each topic and channel that has messages."""
    lines = []
    for topic in stats["topics"]:
        name = topic["topic_name"]
        if topic["depth"]:
            lines.append(f"{name}: {topic['depth']} messages")
        for channel in topic["channels"]:
            counts = [channel[key] for key in ("depth", "in_flight_count", "deferred_count")]
            if any(counts):
                texts = (
                    f"{count} {word}" for count, word in zip(counts, WORDS, strict=True) if count
                )
                lines.append(f"{name}/{channel['channel_name']}: {', '.join(texts)}")
    return lines


WORDS: Final = ("waiting", "in flight", "deferred")

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
