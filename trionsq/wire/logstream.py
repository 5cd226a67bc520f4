"""The binary form of GET /topic/log: NSQ's frames.

Messages are message frames, as consumers get them; their attempts are 1. A response frame has a
*note*, a JSON object with a field ``note``. Messages have consecutive sequences, from that of the
last note ``run`` on. docs/replay.md has all notes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from trionsq.wire.client import ColumnDecoder, Columns, FrameError, Response
from trionsq.wire.frames import response

__all__ = ["LogMessages", "LogNote", "LogStreamDecoder", "encode_note"]

# A message may have --max-msg-size, which has no limit of its own.
_MAX_FRAME_BYTES: Final = 2**31 - 1


class LogMessages(NamedTuple):
    """Consecutive messages.

    Attributes:
        sequence: of the first one.
        defer_ms: the delay with which they were published, in milliseconds.
        columns: the messages.
    """

    sequence: int
    defer_ms: int
    columns: Columns


class LogNote(NamedTuple):
    """What is said between messages.

    Attributes:
        kind: its field ``note``.
        fields: all of them.
    """

    kind: str
    fields: Mapping[str, Any]


def encode_note(fields: Mapping[str, object]) -> bytes:
    """Return the frame of a note."""
    return response(json.dumps(fields, separators=(",", ":")).encode())


class LogStreamDecoder:
    """Decodes the stream, in any fragmentation.

    ::

        for event in decoder.feed(data):
            ...
    """

    def __init__(self) -> None:
        self._frames = ColumnDecoder(_MAX_FRAME_BYTES)
        self._sequence: int | None = None
        self._defer_ms = 0

    def __repr__(self) -> str:
        return f"<LogStreamDecoder at {self._sequence}>"

    def feed(self, data: bytes) -> Iterator[LogMessages | LogNote]:
        """Yield what is whole with ``data``.

        Raises:
            FrameError: these are not the bytes of such a stream.
        """
        self._frames.feed(data)
        columns = self._frames.pop_columns()
        at = 0
        for count, frame in self._frames.pop_others():
            if count > at:
                yield self._messages(columns, at, count)
                at = count
            if not isinstance(frame, Response):
                raise FrameError("an error frame")
            yield self._note(frame.data)
        if len(columns.ids) > at:
            yield self._messages(columns, at, len(columns.ids))
        for _ in self._frames:  # raises what is wrong behind the good ones
            pass

    def _messages(self, columns: Columns, first: int, end: int) -> LogMessages:
        if self._sequence is None:
            raise FrameError("messages before a note that says which they are")
        sequence = self._sequence
        self._sequence += end - first
        if (first, end) != (0, len(columns.ids)):
            columns = Columns(
                columns.timestamps_ns[first:end],
                columns.attempts[first:end],
                columns.ids[first:end],
                columns.bodies[first:end],
            )
        return LogMessages(sequence, self._defer_ms, columns)

    def _note(self, data: bytes) -> LogNote:
        try:
            fields = json.loads(data)
            kind = fields["note"]
            if kind == "run":
                self._sequence, self._defer_ms = int(fields["sequence"]), int(fields["defer_ms"])
        except (ValueError, TypeError, KeyError):
            raise FrameError("a response that is no note") from None
        return LogNote(str(kind), fields)
