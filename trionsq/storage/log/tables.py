"""The tables of the log engine's state: all SQL that reads and changes rows.

Each statement of the module `sqlite3` releases the GIL and takes it again, which costs milliseconds
beside a busy event loop. So rows come in few statements, as one JSON array and one BLOB, however
many they are.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from trionsq.storage.log.rows import (
    AddChannel,
    AddTopic,
    Change,
    DropChannel,
    DropHeld,
    DropTopic,
    ForgetTopic,
    PutHeld,
    PutMeta,
    StateContent,
    StoredChannel,
    StoredHeld,
    StoredTopic,
    UpdateChannel,
    UpdateTopic,
)

__all__ = ["SCHEMA_VERSION", "StateConnection", "StateTables", "empty_state"]

SCHEMA_VERSION: Final = 1

# Rows and bytes for one statement: encoding them holds the GIL for less than a millisecond.
_MAX_ROWS: Final = 500
_MAX_BLOB_BYTES: Final = 4 << 20

_SCHEMA: Final = f"""
CREATE TABLE topics (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    durability TEXT NOT NULL,
    paused INTEGER NOT NULL,
    frontier INTEGER CHECK (typeof(frontier) IN ('integer', 'null')),
    first INTEGER NOT NULL CHECK (typeof(first) = 'integer'),
    "end" INTEGER NOT NULL CHECK (typeof("end") = 'integer'),
    gaps TEXT NOT NULL,
    scan TEXT NOT NULL
);
CREATE TABLE channels (
    number INTEGER PRIMARY KEY,
    topic INTEGER NOT NULL,
    name TEXT NOT NULL,
    paused INTEGER NOT NULL,
    next INTEGER NOT NULL CHECK (typeof(next) = 'integer'),
    frontier INTEGER NOT NULL CHECK (typeof(frontier) = 'integer'),
    open BLOB NOT NULL,
    fired_ns INTEGER NOT NULL CHECK (typeof(fired_ns) = 'integer')
);
CREATE INDEX channels_by_topic ON channels (topic);
CREATE TABLE held (
    channel INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    count INTEGER NOT NULL,
    max_due_ns INTEGER NOT NULL CHECK (typeof(max_due_ns) = 'integer'),
    data BLOB NOT NULL,
    PRIMARY KEY (channel, chunk)
);
CREATE TABLE tombstones (number INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE numbers (next INTEGER NOT NULL);
INSERT INTO numbers VALUES (1);
PRAGMA user_version = {SCHEMA_VERSION};
"""

# {0}, {1}, ...: the values of a row, in the order of its array. {blob}: the row's part of the BLOB.
_ADD_TOPICS: Final = """
INSERT OR REPLACE INTO topics
(number, name, durability, paused, frontier, first, "end", gaps, scan)
SELECT {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8} FROM json_each(?1) AS j"""
_UPDATE_TOPICS: Final = """
UPDATE topics SET durability = {2}, paused = {3}, frontier = {4}, first = {5}, "end" = {6},
gaps = {7}, scan = {8} FROM json_each(?1) AS j WHERE number = {0}"""
_ADD_CHANNELS: Final = """
INSERT OR REPLACE INTO channels (number, topic, name, paused, next, frontier, fired_ns, open)
SELECT {0}, {1}, {2}, {3}, {4}, {5}, {6}, {blob} FROM json_each(?1) AS j
WHERE EXISTS (SELECT 1 FROM topics WHERE number = {1})"""
_UPDATE_CHANNELS: Final = """
UPDATE channels SET paused = {3}, next = {4}, frontier = {5}, fired_ns = {6}, open = {blob}
FROM json_each(?1) AS j WHERE number = {0}"""
_PUT_HELD: Final = """
INSERT OR REPLACE INTO held (channel, chunk, count, max_due_ns, data)
SELECT {0}, {1}, {2}, {3}, {blob} FROM json_each(?1) AS j
WHERE EXISTS (SELECT 1 FROM channels WHERE number = {0})"""
_DROP_HELD: Final = """
DELETE FROM held WHERE (channel, chunk) IN (SELECT {0}, {1} FROM json_each(?1) AS j)"""
_PUT_META: Final = """
INSERT OR REPLACE INTO meta (key, value) SELECT {0}, {blob} FROM json_each(?1) AS j"""
_ADD_TOMBSTONES: Final = """
INSERT OR REPLACE INTO tombstones (number, name) SELECT {0}, {1} FROM json_each(?1) AS j"""

_THESE: Final = "(SELECT value FROM json_each(?1))"
_CHANNELS_OF_THESE: Final = f"(SELECT number FROM channels WHERE topic IN {_THESE})"
_DROP_TOPICS: Final = (
    "INSERT OR REPLACE INTO tombstones (number, name) "
    f"SELECT number, name FROM topics WHERE number IN {_THESE}",
    f"DELETE FROM held WHERE channel IN {_CHANNELS_OF_THESE}",
    f"DELETE FROM channels WHERE topic IN {_THESE}",
    f"DELETE FROM topics WHERE number IN {_THESE}",
)
_DROP_CHANNELS: Final = (
    f"DELETE FROM held WHERE channel IN {_THESE}",
    f"DELETE FROM channels WHERE number IN {_THESE}",
)
_FORGET_TOPICS: Final = (f"DELETE FROM tombstones WHERE number IN {_THESE}",)

_T = TypeVar("_T")
# What a statement takes: the values of a row, and its bytes.
_Row = tuple[tuple[object, ...], bytes]


class StateConnection(Protocol):
    """What is used of a connection to SQLite, as `sqlite3` and others have it."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Iterator[Any]: ...
    def close(self) -> None: ...


@cache
def empty_state() -> bytes:
    """Return the file of a state that has nothing, without WAL."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(_SCHEMA)
        return connection.serialize()
    finally:
        connection.close()


class _Changes:
    """Changes by kind and key, so that each kind is one statement.

    Changes of different keys may change places, and numbers are never given again: what is dropped
    stays dropped.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self.added_topics: dict[int, StoredTopic] = {}
        self.topics: dict[int, StoredTopic] = {}
        self.added_channels: dict[int, StoredChannel] = {}
        self.channels: dict[int, StoredChannel] = {}
        self.held: dict[tuple[int, int], StoredHeld | None] = {}  # None: dropped
        self.meta: dict[str, bytes] = {}
        self.dropped_topics: dict[int, str | None] = {}  # with the name if added here
        self.dropped_channels: set[int] = set()
        self.forgotten_first: set[int] = set()  # before anything is dropped
        self.forgotten: set[int] = set()
        self.next_number = 0
        for change in changes:
            self._add(change)

    def _add(self, change: Change) -> None:
        match change:
            case UpdateChannel(row):
                self.channels[row.number] = row
            case UpdateTopic(row):
                self.topics[row.number] = row
            case PutHeld(row):
                self.held[row.channel, row.chunk] = row
            case DropHeld(channel, chunks):
                self.held.update(dict.fromkeys((channel, chunk) for chunk in chunks))
            case PutMeta(key, value):
                self.meta[key] = value
            case AddTopic(row):
                self.next_number = max(self.next_number, row.number + 1)
                self.topics.pop(row.number, None)
                self.added_topics[row.number] = row
            case AddChannel(row):
                self.next_number = max(self.next_number, row.number + 1)
                self.channels.pop(row.number, None)
                self.added_channels[row.number] = row
            case DropTopic(number):
                added = self.added_topics.get(number)
                self.dropped_topics.setdefault(number, added.name if added else None)
            case DropChannel(number):
                self.dropped_channels.add(number)
            case ForgetTopic(number) if number in self.dropped_topics:
                self.forgotten.add(number)
            case ForgetTopic(number):
                self.forgotten_first.add(number)


class StateTables:
    """The SQL of the state: schema version 1."""

    def __init__(self, connection: StateConnection) -> None:
        self.connection = connection

    def fault(self, *, quick: bool = False) -> str | None:
        """Return why the file cannot be used, as a predicate; ``quick``: by its version alone."""
        version = self._value("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            return f"has schema version {version}; this nsqd knows versions up to {SCHEMA_VERSION}"
        if version < 1:
            return "is no state of nsqd"
        result = "ok" if quick else self._value("PRAGMA quick_check(1)")
        return None if result == "ok" else f"is damaged: {result}"

    def load(self) -> StateContent:
        """Return all rows."""
        rows = self.connection.execute
        return StateContent(
            topics=[
                StoredTopic(
                    number,
                    name,
                    durability,
                    bool(paused),
                    frontier,
                    first,
                    end,
                    _gaps(gaps),
                    _place(scan),
                )
                for number, name, durability, paused, frontier, first, end, gaps, scan in rows(
                    'SELECT number, name, durability, paused, frontier, first, "end", gaps, scan '
                    "FROM topics ORDER BY number"
                )
            ],
            channels=[
                StoredChannel(number, topic, name, bool(paused), *rest)
                for number, topic, name, paused, *rest in rows(
                    "SELECT number, topic, name, paused, next, frontier, open, fired_ns "
                    "FROM channels ORDER BY number"
                )
            ],
            held=[
                StoredHeld(*row)
                for row in rows(
                    "SELECT channel, chunk, count, max_due_ns, data "
                    "FROM held ORDER BY channel, chunk"
                )
            ],
            tombstones=dict(rows("SELECT number, name FROM tombstones ORDER BY number")),
            meta=dict(rows("SELECT key, value FROM meta ORDER BY key")),
            next_number=self._value("SELECT max(next) FROM numbers"),
        )

    def write(self, changes: Sequence[Change]) -> None:
        """Change the rows; the caller begins and ends the transaction."""
        new = _Changes(changes)
        self._delete(_FORGET_TOPICS, new.forgotten_first)
        self._delete(_DROP_TOPICS, new.dropped_topics)
        dropped = new.dropped_topics.items()
        self._write(_ADD_TOMBSTONES, (((number, name), b"") for number, name in dropped if name))
        self._delete(_DROP_CHANNELS, new.dropped_channels)
        self._delete(_FORGET_TOPICS, new.forgotten)
        self._write(_ADD_TOPICS, _without(new.added_topics, new.dropped_topics, _topic_values))
        self._write(
            _ADD_CHANNELS, _without(new.added_channels, new.dropped_channels, _channel_values)
        )
        self._write(_UPDATE_TOPICS, map(_topic_values, new.topics.values()))
        self._write(_UPDATE_CHANNELS, map(_channel_values, new.channels.values()))
        self._write(_DROP_HELD, ((key, b"") for key, row in new.held.items() if row is None))
        self._write(_PUT_HELD, (_held_values(row) for row in new.held.values() if row))
        self._write(_PUT_META, (((key,), value) for key, value in new.meta.items()))
        if new.next_number:
            self._run("UPDATE numbers SET next = max(next, ?1)", new.next_number)

    def _value(self, sql: str) -> Any:
        [(value,)] = self.connection.execute(sql)
        return value

    def _delete(self, statements: Iterable[str], numbers: Iterable[int]) -> None:
        if array := list(numbers):
            for sql in statements:
                self._run(sql, json.dumps(array))

    def _write(self, sql: str, rows: Iterable[_Row]) -> None:
        """Run the statement with the rows, in as few steps as `_MAX_ROWS` and the like allow."""
        arrays: list[tuple[object, ...]] = []
        blobs: list[bytes] = []
        nbytes = 0
        for values, data in rows:
            if len(arrays) == _MAX_ROWS or (blobs and nbytes + len(data) > _MAX_BLOB_BYTES):
                self._write_arrays(sql, arrays, blobs)
                arrays, blobs, nbytes = [], [], 0
            arrays.append((*values, nbytes + 2, len(data)))
            blobs.append(data)
            nbytes += len(data)
        if arrays:
            self._write_arrays(sql, arrays, blobs)

    def _write_arrays(self, sql: str, arrays: list[tuple[object, ...]], blobs: list[bytes]) -> None:
        count = len(arrays[0])
        values = [f"json_extract(j.value, '$[{place}]')" for place in range(count)]
        blob = f"substr(?2, {values[-2]}, {values[-1]})"
        parameters: tuple[object, ...] = (json.dumps(arrays),)
        if "{blob}" in sql:
            # SQLite makes NULL of the parts of an empty BLOB; so it is never empty.
            parameters += (b"\0" + b"".join(blobs),)
        self._run(sql.format(*values, blob=blob), *parameters)

    def _run(self, sql: str, *parameters: object) -> None:
        for _ in self.connection.execute(sql, parameters):
            pass


def _place(text: str) -> tuple[int, int, int] | None:
    found = json.loads(text)
    return None if found is None else tuple(found)


def _gaps(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((first, end) for first, end in json.loads(text))


def _without(
    rows: dict[int, _T], dropped: Iterable[int], values: Callable[[_T], _Row]
) -> Iterator[_Row]:
    gone = frozenset(dropped)
    return (values(row) for number, row in rows.items() if number not in gone)


def _topic_values(row: StoredTopic) -> _Row:
    values = (row.number, row.name, row.durability, row.paused)
    texts = json.dumps(row.gaps), json.dumps(row.scan)
    return (*values, row.frontier, row.first, row.end, *texts), b""


def _channel_values(row: StoredChannel) -> _Row:
    values = (row.number, row.topic, row.name, row.paused, row.next, row.frontier, row.fired_ns)
    return values, row.open


def _held_values(row: StoredHeld) -> _Row:
    return (row.channel, row.chunk, row.count, row.max_due_ns), row.data
