"""A reader of GET /topic/log for tests: both forms of an answer as plain values."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import trio

from tests.http.ways import Way, way
from trionsq.httpget import StreamedAnswer, stream
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire.logstream import LogMessages, LogStreamDecoder

__all__ = ["LogAnswer", "ask", "begin", "serving"]


@dataclass
class LogAnswer:
    """An answer that has come to its end.

    Attributes:
        status: 200, else `notes` has the refusal.
        headers: by name.
        bodies: by sequence.
        ids: by sequence.
        due_ns: of deferred messages, by sequence.
        notes: all notes, in order.
    """

    status: int
    headers: Mapping[str, str]
    bodies: dict[int, bytes] = field(default_factory=dict)
    ids: dict[int, bytes] = field(default_factory=dict)
    due_ns: dict[int, int] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def end(self) -> dict[str, Any]:
        """The last note."""
        assert self.notes[-1]["note"] == "end", self.notes
        return self.notes[-1]

    @property
    def outcome(self) -> tuple[str, int]:
        """Why it ended, and where."""
        return self.end["reason"], self.end["sequence"]

    @property
    def skipped(self) -> list[tuple[int, int, str]]:
        """What was skipped, and why."""
        return [
            (note["from"], note["to"], note["reason"])
            for note in self.notes
            if note["note"] == "skipped"
        ]

    def add_lines(self, data: bytes) -> None:
        """Take over an answer of lines."""
        for line in data.splitlines():
            one = json.loads(line)
            if "note" in one:
                self.notes.append(one)
                continue
            body = one["body"].encode()
            if one["body_encoding"] == "base64":
                body = base64.b64decode(body)
            self._add(one["sequence"], one["id"].encode(), body)
            if "due" in one:
                self.due_ns[one["sequence"]] = one["due"]

    def add_frames(self, data: bytes) -> None:
        """Take over an answer of frames."""
        for event in LogStreamDecoder().feed(data):
            if not isinstance(event, LogMessages):
                self.notes.append(dict(event.fields))
                continue
            columns = event.columns
            assert set(columns.attempts) == {1}
            for at, (id_, body) in enumerate(zip(columns.ids, columns.bodies, strict=True)):
                self._add(event.sequence + at, id_, body)
                if event.defer_ms:
                    due_ns = columns.timestamps_ns[at] + event.defer_ms * 1_000_000
                    self.due_ns[event.sequence + at] = due_ns

    def _add(self, sequence: int, id_: bytes, body: bytes) -> None:
        assert sequence not in self.bodies
        self.bodies[sequence], self.ids[sequence] = body, id_


@asynccontextmanager
async def serving(disk: SimulatedDisk | None = None, **options: Any) -> AsyncIterator[Way]:
    """A broker whose topics get logs of small segments, and its HTTP server."""
    given = {"storage": "log", "durability": "always", "max_msg_size": 10**6, **options}
    async with way(fast_path=True, disk=disk, max_body_size=10**7, **given) as server:
        assert server.broker.logs.node is not None
        server.broker.logs.node.segment_bytes = 600
        yield server


@asynccontextmanager
async def begin(
    server: Way, topic: str = "t", **parameters: object
) -> AsyncIterator[StreamedAnswer]:
    """An answer whose head has come."""

    async def dial(_host: str, _port: int) -> trio.SocketStream:
        return server.connect()

    pairs = {name.rstrip("_"): value for name, value in parameters.items()}
    url = f"http://localhost:1/topic/log?{urlencode({'topic': topic, **pairs})}"
    async with stream(url, dial=dial, silence_timeout_s=0) as answer:
        yield answer


async def ask(server: Way, topic: str = "t", **parameters: object) -> LogAnswer:
    """An answer to its end; ``from_`` is the parameter of that name."""
    async with begin(server, topic, **parameters) as streamed:
        data = b""
        while piece := await streamed.receive():
            data += piece
    answer = LogAnswer(streamed.status, streamed.headers)
    if streamed.status != 200:
        answer.notes.append(json.loads(data))
    elif streamed.headers["content-type"] == "application/octet-stream":
        answer.add_frames(data)
    else:
        answer.add_lines(data)
    return answer
