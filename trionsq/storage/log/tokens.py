"""Tokens: where a reader of a log goes on, and of which log that is.

The number of a log is its own on its node alone; a data path that was made anew, or restored,
begins to count again. So a token also names the segment that has the last message before it, with
the salt of that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trionsq.storage.log.reading import segment_at
from trionsq.storage.log.seeking import first_kept
from trionsq.storage.log.topiclog import TopicLog

__all__ = ["ForeignTokenError", "ReadToken", "check_token", "token_at"]

_NUMBER: Final = "(0|[1-9][0-9]{0,18})"
_TOKEN: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER}\.([0-9a-f]{{8}}))?")


class ForeignTokenError(Exception):
    """The token is of another log; the text says how that shows."""


@dataclass(frozen=True, slots=True)
class ReadToken:
    """A place in a log.

    Attributes:
        number: of the log.
        sequence: of the next message.
        segment: first sequence of a segment, and its salt; None if the log had none.
    """

    number: int
    sequence: int
    segment: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"{self.number}.{self.sequence}"
        return text if self.segment is None else f"{text}.{self.segment[0]}.{self.segment[1]:08x}"

    @classmethod
    def parse(cls, text: str) -> ReadToken:
        """Return the token that was written so.

        Raises:
            ValueError: it is none.
        """
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise ValueError(f"no token: {text[:64]!r}")
        number, sequence, first, salt = match.groups()
        segment = None if first is None else (int(first), int(salt, 16))
        return cls(int(number), int(sequence), segment)


def token_at(log: TopicLog, sequence: int) -> ReadToken:
    """Return the token of a place in a log."""
    if not log.segments:
        return ReadToken(log.number, sequence)
    segment = log.segments[max(segment_at(log.segments, sequence - 1), 0)]
    return ReadToken(log.number, sequence, (segment.first, segment.header.salt))


def check_token(log: TopicLog, token: ReadToken) -> None:
    """Do nothing if a token is of this log.

    Raises:
        ForeignTokenError: it is not.
    """
    if token.number != log.number:
        raise ForeignTokenError(f"it is of log {token.number}, this is log {log.number}")
    if token.sequence > log.end:
        raise ForeignTokenError(f"this log has no message before {token.sequence} yet")
    if token.segment is None or token.segment[0] < first_kept(log):
        return  # what it names is gone
    first, salt = token.segment
    if not any(one.first == first and one.header.salt == salt for one in log.segments):
        raise ForeignTokenError(f"its segment {first} is not in this log")
