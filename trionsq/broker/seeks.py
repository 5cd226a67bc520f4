"""Where channels of topics with a log begin, and begin again: the operator's choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.logs import log_of
from trionsq.broker.topic import Topic
from trionsq.storage.folder import error_text
from trionsq.storage.log.cursor import Cursor
from trionsq.storage.log.peek import LogPart
from trionsq.storage.log.runs import durable_end
from trionsq.storage.log.seeking import (
    LogPosition,
    WantedPosition,
    find_position,
    first_kept,
)
from trionsq.storage.log.topiclog import TopicLog

__all__ = [
    "SeekFailed",
    "begin_channel",
    "cursor_of",
    "find_ends",
    "find_in_log",
    "seek_channel",
]

# Segments are left, and channels deleted, while a position is looked for; then it is once more.
_ATTEMPTS: Final = 10

_T = TypeVar("_T")


class SeekFailed(Exception):
    """Nothing has changed; the text says why."""


def cursor_of(channel: Channel) -> Cursor | None:
    """Return the position of a channel in its topic's log; None if it has none."""
    backend = channel.core.store.backend
    return backend if isinstance(backend, Cursor) else None


async def seek_channel(find: Callable[[], Channel], wanted: WantedPosition) -> LogPosition:
    """Let a channel forget what it has, and go on elsewhere; return where.

    Args:
        find: returns the channel, which has a `cursor_of`; it is called again after each wait.
        wanted: where to go on.

    Raises:
        SeekFailed: the log cannot be read.
    """

    def end_of(channel: Channel) -> tuple[TopicLog, int]:
        topic_log, cursor = _log_and_cursor(channel)
        return topic_log, cursor.frontier

    channel, position = await _find(find, end_of, wanted)
    _, cursor = _log_and_cursor(channel)
    await channel.seek(partial(cursor.seek, position.sequence)).wait()
    return position


async def begin_channel(
    find: Callable[[], Topic], name: str, wanted: WantedPosition
) -> LogPosition:
    """Make a channel that begins at a position of its topic's log; return it.

    Args:
        find: returns the topic, which has a log and no such channel; it is called again after each
            wait.
        name: of the channel; not an ephemeral one.
        wanted: where to begin.

    Raises:
        SeekFailed: the log cannot be read.
    """

    def end_of(topic: Topic) -> tuple[TopicLog, int]:
        topic_log = log_of(topic)
        assert topic_log is not None
        # What no channel has had comes to all that there are; the first one may pass it over.
        return topic_log, topic_log.frontier if topic.channels else topic_log.safe_end

    topic, position = await _find(find, end_of, wanted)
    topic.channel(name, position.sequence)
    return position


async def find_in_log(find: Callable[[], TopicLog], wanted: WantedPosition) -> LogPosition:
    """Return where a wanted position is among the durable messages of a log.

    Args:
        find: returns the log; it is called again after each wait.
        wanted: the position.

    Raises:
        SeekFailed: the log cannot be read.
    """

    def end_of(topic_log: TopicLog) -> tuple[TopicLog, int]:
        return topic_log, max(durable_end(topic_log), first_kept(topic_log))

    _, position = await _find(find, end_of, wanted)
    return position


async def find_ends(topic_log: TopicLog) -> tuple[LogPosition | None, LogPosition | None]:
    """Return the first and the last message of a log; None: there is none, or it is unreadable."""
    first, end = first_kept(topic_log), topic_log.safe_end
    last = end - 1
    for begin, behind in reversed(list(topic_log.gaps)):
        if behind > last:
            last = begin - 1
    look = partial(_find_ends, topic_log.part, first, last, end)
    try:
        found = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
    except OSError:  # segments are left just now, or the disk fails
        return None, None
    return found


def _find_ends(
    part: LogPart, first: int, last: int, end: int
) -> tuple[LogPosition | None, LogPosition | None]:
    oldest = find_position(part, WantedPosition("beginning"), first, end)
    newest = find_position(part, WantedPosition("sequence", last), first, end)
    return (
        None if oldest.time_ns is None else oldest,
        None if newest.time_ns is None else newest,
    )


def _log_and_cursor(channel: Channel) -> tuple[TopicLog, Cursor]:
    cursor = cursor_of(channel)
    assert cursor is not None
    topic_log = channel.topic.core.store.backend
    assert isinstance(topic_log, TopicLog)
    return topic_log, cursor


async def _find(
    find: Callable[[], _T], end_of: Callable[[_T], tuple[TopicLog, int]], wanted: WantedPosition
) -> tuple[_T, LogPosition]:
    """Return a position that is good until something else runs, and whose it is."""
    for _ in range(_ATTEMPTS):
        owner = find()
        topic_log, end = end_of(owner)
        if wanted.kind == "end":
            return owner, LogPosition(end)
        look = partial(find_position, topic_log.part, wanted, first_kept(topic_log), end)
        try:
            position = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
        except FileNotFoundError:
            continue  # it is left
        except OSError as error:
            raise SeekFailed(error_text(error)) from error
        owner = find()
        now_log, end = end_of(owner)
        if now_log is topic_log and first_kept(topic_log) <= position.sequence <= end:
            return owner, position
    raise SeekFailed("the log changes too fast")
