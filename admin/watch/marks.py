"""Marks in the charts: restarts of nodes, and what users did by this nsqadmin."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from admin.user_action import UserAction

__all__ = ["MAX_MARKS", "Mark", "Marks"]

MAX_MARKS: Final = 500
"""The oldest go first."""
_MAX_TEXT: Final = 200


class Mark(Struct, frozen=True):
    """A moment in a chart.

    Attributes:
        at_s: in seconds since 1970.
        text: what happened.
        topic, channel, node: where; "" for any.
        user: who did it; "" if nobody did, or the name is not known.
        action: such as ``pause_channel``; "" for a restart.
    """

    at_s: float
    text: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    user: str = ""
    action: str = ""


class Marks:
    """The latest marks."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)

    def add(self, mark: Mark) -> None:
        """Add the newest mark."""
        self._marks.append(mark)

    def restore(self, marks: Iterable[Mark]) -> None:
        """Put remembered marks before the others."""
        self._marks = deque([*marks, *self._marks], maxlen=MAX_MARKS)

    def note_action(self, action: UserAction) -> None:
        """Add what a user did; an observer, see `admin.dashboard`."""
        if action.error:
            return
        text = action.action.replace("_", " ")
        by = f" by {action.user}" if action.user else ""
        self.add(
            Mark(
                action.time_s,
                f"{text}{by}"[:_MAX_TEXT],
                action.topic,
                action.channel,
                action.node,
                action.user,
                action.action,
            )
        )

    def of_topic(self, topic: str, channel: str, nodes: Collection[str]) -> Sequence[Mark]:
        """The marks of a topic, or of a channel and its topic, and of their ``nodes``."""
        return [
            mark
            for mark in self._marks
            if (mark.topic == topic and (not channel or mark.channel in ("", channel)))
            or (not mark.topic and mark.node in nodes)
        ]

    def find_last(self, action: str, topic: str, channel: str = "") -> Mark | None:
        """The newest mark of that action; None if none is remembered."""
        wanted = action, topic, channel
        for mark in reversed(self._marks):
            if (mark.action, mark.topic, mark.channel) == wanted:
                return mark
        return None

    def of_node(self, node: str) -> Sequence[Mark]:
        """The marks of a node."""
        return [mark for mark in self._marks if mark.node == node]

    def all(self) -> Sequence[Mark]:
        """All marks, the newest last."""
        return list(self._marks)
