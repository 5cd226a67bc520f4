"""Loads of policies: a thousand of them, and thousands of topics that they apply to."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from benchmarks.capacity.topics import write_metadata
from benchmarks.generator import MeasureError
from benchmarks.stalls.daemons import Daemon
from benchmarks.stalls.queues import TOPICS
from benchmarks.stalls.stage import Stage, await_true, post

__all__ = ["many_policies"]

_POLICIES = 1_000
_CHANGES = 20


def _policy(number: int, bound: int) -> dict[str, object]:
    """One for some topics: patterns of each kind occur."""
    patterns = (f"t{number % 100:02d}*", f"*{number:03d}", f"t*{number % 97}?", f"t{number:05d}")
    return {"topics": patterns[number % 4], "priority": number % 7, "max_messages": bound}


def _write(path: Path, count: int, bound: int) -> None:
    tables = []
    for number in range(count):
        lines = [f"{key} = {json.dumps(value)}" for key, value in _policy(number, bound).items()]
        tables.append(f"[p{number}]\n" + "\n".join(lines))
    path.write_text("\n".join(tables))


def _ask(nsqd: Daemon, method: str, path: str, body: str = "") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=120)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise MeasureError(f"{method} {path}: {answer.status} {data[:200]!r}")
    return data


def many_policies(stage: Stage) -> None:
    """1,000 policies of a file, and 5,000 topics."""
    topics, count = stage.some(TOPICS, 10), stage.some(_POLICIES, 10)
    changes, made = stage.some(_CHANGES, 2), stage.some(200, 2)
    with stage.folder() as folder:
        write_metadata(folder, topics, 1)
        path = folder / "policies.toml"
        _write(path, count, 1_000_000)
        with stage.nsqd(f"--policy-file={path}", folder=folder) as nsqd:
            title = f"{count:,} policies, {topics:,} topics"
            with stage.watch(nsqd, f"{title}: {changes} changes by HTTP"):
                for number in range(changes):
                    policy = _policy(4 * number, 1_000 + number)
                    _ask(nsqd, "PUT", "/policy/mine", json.dumps(policy))
            with stage.watch(nsqd, f"{title}: {made} topics are made"):
                for number in range(made):
                    post(nsqd, f"/topic/create?topic=t9{number:04d}")
            with stage.watch(nsqd, f"{title}: the file changes"):
                _write(path, count, 2_000_000)
                await_true(lambda: b"2000000" in _ask(nsqd, "GET", "/policy"), "the file is read")
