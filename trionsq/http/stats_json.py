"""/stats as JSON, row by row. Spec: nsqd-http, section 5."""

from __future__ import annotations

from typing import Final

from trionsq.broker.statistics import ChannelRow, ClientRow, ProcessRow, ProducerRow, Row, TopicRow
from trionsq.web.answers import json_bytes

__all__ = ["StatsJson"]

# A list that is filled by the rows that follow. Neither can be part of a string in JSON.
_CHANNELS: Final = b'"channels":['
_CLIENTS: Final = b'"clients":['


class StatsJson:
    """Writes the document. What ends a topic or channel is kept until its last row is there."""

    def __init__(self) -> None:
        # What ends each list that is open and the object around it, the innermost last.
        self._ends: list[bytes] = []
        self._memory = b""
        self._has_producers = False
        self._topics_end = b"]"

    def row(self, row: Row) -> bytes:
        """The next row, with what ends those before it."""
        match row:
            case ProcessRow():
                return self._begin(row)
            case TopicRow(stats):
                return self._item(1, json_bytes(stats), _CHANNELS)
            case ChannelRow(stats):
                return self._item(2, json_bytes(stats), _CLIENTS)
            case ClientRow(stats):
                return self._item(3, json_bytes(stats))
            case ProducerRow(stats):
                return self._producer(json_bytes(stats))

    def end(self) -> bytes:
        """What ends the document."""
        return b"]}" if self._has_producers else self._end_topics() + b'"producers":null}'

    def _begin(self, head: ProcessRow) -> bytes:
        if head.memory is not None:
            self._memory = b'"memory":%b,' % json_bytes(head.memory)
        first = json_bytes(
            {"version": head.version, "health": head.health, "start_time": head.start_time}
        )
        if not head.has_topics:
            self._topics_end = b""
        return first.removesuffix(b"}") + (b',"topics":[' if head.has_topics else b',"topics":null')

    def _item(self, level: int, stats: bytes, list_begins: bytes = b"") -> bytes:
        """An item of a list that is so deep; up to ``list_begins`` if it has a list of its own."""
        before = self._end_lists(level)
        begin, has_list, end = stats.partition(list_begins) if list_begins else (stats, b"", b"")
        self._ends.append(end)
        return before + begin + has_list

    def _end_lists(self, level: int) -> bytes:
        """End what is open at this level and below; a comma if there was something."""
        if len(self._ends) < level:
            return b""
        ends = b"".join(reversed(self._ends[level - 1 :]))
        del self._ends[level - 1 :]
        return ends + b","

    def _end_topics(self) -> bytes:
        ends = b"".join(reversed(self._ends)) + self._topics_end
        self._ends.clear()
        return ends + b"," + self._memory

    def _producer(self, stats: bytes) -> bytes:
        if self._has_producers:
            return b"," + stats
        self._has_producers = True
        return self._end_topics() + b'"producers":[' + stats
