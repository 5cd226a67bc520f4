"""Places in the logs of topics as Spark's offsets, and how a range becomes partitions. No I/O.

An offset is ``{"positions": {topic: {nsqd: sequence}}, "tokens": {topic: {nsqd: token}}}``. The
token says of which log the sequence is: a topic that was deleted and made again has another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from pipelines.options import timestamp

__all__ = [
    "BEGINNING",
    "END",
    "LogName",
    "Place",
    "Places",
    "Positions",
    "cut_range",
    "offset_of",
    "parse_positions",
    "places_of",
    "position_at",
    "share_messages",
]

BEGINNING: Final = "beginning"
END: Final = "end"
"""Positions, as nsqd names them."""

_KAFKA_NUMBERS: Final = {-2: BEGINNING, -1: END}
_WORDS: Final = {"earliest": BEGINNING, "latest": END}


class LogName(NamedTuple):
    """The log that one nsqd has of a topic. ``nsqd``: ``host:port`` or URL of its HTTP."""

    topic: str
    nsqd: str

    def __str__(self) -> str:
        return f"topic {self.topic} of {self.nsqd}"


class Place(NamedTuple):
    """A place in a log: the sequence of the next message, and nsqd's token for the place."""

    sequence: int
    token: str


Places: TypeAlias = dict[LogName, Place]


def offset_of(places: Mapping[LogName, Place]) -> dict[str, Any]:
    """The offset that Spark keeps in its checkpoint. Equal places give equal texts."""
    positions: dict[str, dict[str, int]] = {}
    tokens: dict[str, dict[str, str]] = {}
    for (topic, nsqd), (sequence, token) in sorted(places.items()):
        positions.setdefault(topic, {})[nsqd] = sequence
        tokens.setdefault(topic, {})[nsqd] = token
    return {"positions": positions, "tokens": tokens}


def places_of(offset: Mapping[str, Any]) -> Places:
    """The places of an offset.

    Raises:
        ValueError: it is not one of ``mode=log``.
    """
    try:
        return {
            LogName(topic, nsqd): Place(int(sequence), str(offset["tokens"][topic][nsqd]))
            for topic, sequences in offset["positions"].items()
            for nsqd, sequence in sequences.items()
        }
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            "the checkpoint was not written by mode=log: use the mode that wrote it, or a new "
            "checkpointLocation"
        ) from None


# Positions that options name


class Positions(NamedTuple):
    """Where to begin or to end: a position of nsqd, for all logs or for some of them."""

    default: str
    by_log: Mapping[LogName, str] = {}

    def __str__(self) -> str:
        return {BEGINNING: "earliest", END: "latest"}.get(self.default, self.default)

    def of(self, log: LogName) -> str:
        """The position for a log."""
        return self.by_log.get(log, self.default)


def parse_positions(default: str, text: str) -> Positions:
    """``earliest``, ``latest``, or JSON as Kafka's source has it.

    In ``{"orders": {"127.0.0.1:4151": 81237}}`` -2 means the beginning and -1 the end; a text is
    earliest, latest or a time.

    Args:
        default: the position of logs that the JSON does not name.
        text: of the option.

    Raises:
        ValueError: it is none of these.
    """
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return Positions(word)
    try:
        by_log = {
            LogName(topic, nsqd): _position(value)
            for topic, sequences in json.loads(text).items()
            for nsqd, value in sequences.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{text!r} is neither earliest, latest nor JSON such as "
            '{"orders": {"127.0.0.1:4151": 81237}}'
        ) from None
    return Positions(default, by_log)


def _position(value: object) -> str:
    if isinstance(value, str):
        return _WORDS.get(value.lower()) or position_at(timestamp(value))
    if not isinstance(value, int) or isinstance(value, bool) or value < min(_KAFKA_NUMBERS):
        raise ValueError
    return _KAFKA_NUMBERS.get(value, str(value))


def position_at(moment: datetime) -> str:
    """The position of a time in UTC."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06}Z"


# Microbatches and partitions


def share_messages(backlogs: Mapping[LogName, int], count: int) -> dict[LogName, int]:
    """Share a number of messages among logs by their backlogs, so that none is left behind.

    The shares add up to ``count``, or to all backlogs if these are less.
    """
    total = sum(backlogs.values())
    if count >= total:
        return dict(backlogs)
    shares: dict[LogName, int] = {}
    before = 0
    for log, backlog in backlogs.items():
        # The difference of two rounded sums: so the sum of all is exact.
        shares[log] = (before + backlog) * count // total - before * count // total
        before += backlog
    return shares


def cut_range(first: int, end: int, parts: int) -> list[int]:
    """The first sequences of even parts of a range, and its end."""
    count = end - first
    parts = max(1, min(parts, count))
    return [first + count * index // parts for index in range(parts + 1)]
