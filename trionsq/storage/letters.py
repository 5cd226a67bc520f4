"""The dead letters of a node, in a SQLite file: each with its body, and why it is one.

A letter is durable when `DeadLetterStore.add` returns; only then its channel forgets the message.
One connection, used by one thread at a time, is the only one to the file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from trionsq.disk import Disk, close_quietly
from trionsq.storage.letter_schema import LETTERS_SCHEMA, LETTERS_VERSION

__all__ = [
    "LETTERS_FILE",
    "DeadLetter",
    "DeadLetterStore",
    "FoundLetters",
    "LetterError",
    "LetterFilter",
    "LetterTally",
    "SqliteLetters",
    "StoredLetter",
]

LETTERS_FILE: Final = "trionsq.dead.db"

# Pages that are given back to the disk with each removal: 4 MiB.
_VACUUM_PAGES: Final = 1_000
# Letters that one transaction removes.
_MAX_REMOVED: Final = 1_000
# A copy takes so many pages at a time, 4 MiB, and lets others do something in between.
_COPIED_PAGES: Final = 1_000
_COPY_BREAK_S: Final = 0.001

_COLUMNS: Final = (
    "id, dead_topic, topic, channel, node, message, reason, attempts, first_ns, last_ns, client"
)
_WHOLE: Final = 2**31 - 1


class LetterError(Exception):
    """The file of the dead letters cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a channel has given up.

    Attributes:
        id: of the letter, and of the message in the dead-letter topic.
        dead_topic: the dead-letter topic; empty if no name was possible.
        topic, channel, node, message: where it was, and its id there.
        reason: why it was given up.
        attempts: deliveries.
        first_ns: when it was published, in nanoseconds since the epoch.
        last_ns: when it was given up.
        client: who had it last.
        body: unchanged.
    """

    id: str
    dead_topic: str
    topic: str
    channel: str
    node: str
    message: str
    reason: str
    attempts: int
    first_ns: int
    last_ns: int
    client: str
    body: bytes


class StoredLetter(NamedTuple):
    """A letter in the store.

    Attributes:
        number: rises with each letter, and is never given again.
        letter: the letter.
        is_fed: whether the dead-letter topic got it.
        is_replayed: whether it is to go back to its channel.
        body_nbytes: of its body, of which `DeadLetterStore.find` gives only the begin.
    """

    number: int
    letter: DeadLetter
    is_fed: bool
    is_replayed: bool
    body_nbytes: int


class LetterTally(NamedTuple):
    """How many letters there are of one channel in one dead-letter topic.

    Attributes:
        letters: how many there are.
        nbytes: of their bodies.
        unfed: those that the dead-letter topic has not got.
        oldest_ns: when the oldest letter of the channel was given up.
    """

    topic: str
    channel: str
    dead_topic: str
    letters: int
    nbytes: int
    unfed: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters; what is empty, or None, selects all.

    Attributes:
        ids: of letters.
        until_ns: they were given up by then.
        after: their numbers are higher.
        unfed: the dead-letter topic has not got them.
    """

    topic: str = ""
    channel: str = ""
    reason: str = ""
    ids: tuple[str, ...] = ()
    until_ns: int | None = None
    dead_topic: str = ""
    after: int = 0
    unfed: bool = False

    def sql(self) -> tuple[str, list[Any]]:
        """Return a condition, and its values."""
        parts, values = ["number > ?"], list[Any]([self.after])
        for column in ("topic", "channel", "reason", "dead_topic"):
            if value := getattr(self, column):
                parts.append(f"{column} = ?")
                values.append(value)
        if self.ids:
            parts.append(f"id IN ({', '.join('?' * len(self.ids))})")
            values += self.ids
        if self.unfed:
            parts.append("fed = 0")
        if self.until_ns is not None:
            parts.append("last_ns <= ?")
            values.append(self.until_ns)
        return " AND ".join(parts), values


class FoundLetters(NamedTuple):
    """A page of letters, the oldest first, and how many the filter selects in all."""

    letters: list[StoredLetter]
    total: int


class DeadLetterStore(Protocol):
    """The letters. All methods block, and raise `LetterError`."""

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Keep letters; one replaces an older one of the same message."""

    def find(self, wanted: LetterFilter, limit: int, max_body: int) -> FoundLetters:
        """Return the first letters that a filter selects, with so much of their bodies."""

    def remove(self, wanted: LetterFilter, limit: int) -> int:
        """Remove the first letters that a filter selects; return how many."""

    def unfed(self, dead_topic: str, limit: int) -> list[StoredLetter]:
        """Return the first letters that a dead-letter topic has not got."""

    def mark_fed(self, numbers: Iterable[int]) -> None:
        """Note that the dead-letter topic has letters."""

    def mark_replay(self, wanted: LetterFilter, limit: int, *, replay: bool = True) -> int:
        """Note that the first letters of a filter are to be replayed, or not; return how many."""

    def to_replay(self, limit: int) -> list[StoredLetter]:
        """Return the first letters that are to be replayed."""

    def remove_numbers(self, numbers: Iterable[int]) -> int:
        """Remove letters; return how many there were."""

    def tallies(self) -> list[LetterTally]:
        """Return the counts of all channels that have letters."""

    def copy_to(self, disk: Disk) -> None:
        """Copy all letters to another folder, which has none, durably; as of the end of the copy.

        Raises OSError as well.
        """

    def close(self) -> None:
        """Release the file."""


class SqliteLetters:
    """A `DeadLetterStore` in the file `LETTERS_FILE` of a folder."""

    def __init__(self, disk: Disk, path: str = "") -> None:
        """Open the file, or make it; ``path`` is another place for it.

        Raises:
            LetterError: it is damaged, of a later version, or cannot be made.
        """
        self.path = path or os.path.join(disk.path, LETTERS_FILE)
        self._lock = Lock()
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            try:
                self._configure()
                # The name of the file has to last as long as what it has.
                disk.sync_folder()
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise LetterError(f"{self.path}: {error}") from error

    def __repr__(self) -> str:
        return f"<SqliteLetters {self.path}>"

    def _configure(self) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        # A journal that is rolled back: a crash, also of the machine, undoes a transaction whole.
        run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = TRUNCATE")
        run("PRAGMA synchronous = EXTRA")
        run("PRAGMA temp_store = MEMORY")
        (version,) = run("PRAGMA user_version").fetchone()
        if version == 0:
            self._connection.executescript(f"BEGIN IMMEDIATE;{LETTERS_SCHEMA}COMMIT;")
        elif version != LETTERS_VERSION:
            raise LetterError(
                f"{self.path} is of version {version}; this nsqd knows {LETTERS_VERSION}"
            )

    def _run(self, *steps: tuple[str, Sequence[Any]]) -> int:
        """Run statements as one transaction; return how many rows they changed."""
        with self._lock:
            try:
                if self._connection.in_transaction:  # a rollback failed
                    self._connection.execute("ROLLBACK")
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    count = sum(self._connection.execute(*step).rowcount for step in steps)
                    self._connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                    raise
                return count
            except sqlite3.Error as error:
                raise LetterError(f"{self.path}: {error}") from error

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise LetterError(f"{self.path}: {error}") from error

    def add(self, letters: Sequence[DeadLetter]) -> None:
        # Not REPLACE: the trigger of removals does not see what that removes.
        steps: list[tuple[str, Sequence[Any]]] = []
        for one in letters:
            place = (one.topic, one.channel, one.message)
            steps.append(("DELETE FROM letters WHERE (topic, channel, message) = (?, ?, ?)", place))
            values = [*(getattr(one, name) for name in _COLUMNS.split(", ")), one.body]
            marks = ", ".join("?" * len(values))
            steps.append((f"INSERT INTO letters ({_COLUMNS}, body) VALUES ({marks})", values))
        self._run(*steps)

    def find(self, wanted: LetterFilter, limit: int, max_body: int) -> FoundLetters:
        condition, values = wanted.sql()
        found = self._letters(f"{condition} ORDER BY number LIMIT ?", [*values, limit], max_body)
        if len(found) < limit:
            return FoundLetters(found, len(found))
        rows = self._rows(f"SELECT count(*) FROM letters WHERE {condition}", values)
        return FoundLetters(found, rows[0][0])

    def _letters(
        self, rest: str, values: Sequence[Any], max_body: int = _WHOLE
    ) -> list[StoredLetter]:
        rows = self._rows(
            f"SELECT number, fed, replay, length(body), {_COLUMNS},"
            f" coalesce(substr(body, 1, ?), x'') FROM letters WHERE {rest}",
            [max_body, *values],
        )
        return [
            StoredLetter(number, DeadLetter(*letter), bool(fed), bool(replay), nbytes)
            for number, fed, replay, nbytes, *letter in rows
        ]

    def remove(self, wanted: LetterFilter, limit: int) -> int:
        condition, values = wanted.sql()
        removed = 0
        while removed < limit:
            part = min(_MAX_REMOVED, limit - removed)
            count = self._run(
                (
                    "DELETE FROM letters WHERE number IN"
                    f" (SELECT number FROM letters WHERE {condition} ORDER BY number LIMIT ?)",
                    [*values, part],
                )
            )
            removed += count
            self._shrink()
            if count < part:
                break
        return removed

    def remove_numbers(self, numbers: Iterable[int]) -> int:
        steps = [("DELETE FROM letters WHERE number = ?", (number,)) for number in numbers]
        count = self._run(*steps)
        self._shrink()
        return count

    def _shrink(self) -> None:
        with self._lock:
            try:
                # `execute` would do one step of it.
                self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            except sqlite3.Error as error:
                raise LetterError(f"{self.path}: {error}") from error

    def unfed(self, dead_topic: str, limit: int) -> list[StoredLetter]:
        return self._letters(
            "fed = 0 AND dead_topic = ? ORDER BY number LIMIT ?", [dead_topic, limit]
        )

    def mark_fed(self, numbers: Iterable[int]) -> None:
        sql = "UPDATE letters SET fed = 1 WHERE number = ?"
        self._run(*((sql, (number,)) for number in numbers))

    def mark_replay(self, wanted: LetterFilter, limit: int, *, replay: bool = True) -> int:
        condition, values = wanted.sql()
        sql = (
            "UPDATE letters SET replay = ? WHERE number IN (SELECT number FROM letters"
            f" WHERE {condition} AND replay <> ? ORDER BY number LIMIT ?)"
        )
        return self._run((sql, [replay, *values, replay, limit]))

    def to_replay(self, limit: int) -> list[StoredLetter]:
        return self._letters("replay = 1 ORDER BY number LIMIT ?", [limit])

    def tallies(self) -> list[LetterTally]:
        rows = self._rows(
            "SELECT topic, channel, dead_topic, count, bytes, unfed,"
            " (SELECT last_ns FROM letters WHERE letters.topic = tallies.topic"
            "  AND letters.channel = tallies.channel ORDER BY number LIMIT 1)"
            " FROM tallies WHERE count > 0"
        )
        return [
            LetterTally(topic, channel, dead_topic, letters, nbytes, unfed, oldest_ns or 0)
            for topic, channel, dead_topic, letters, nbytes, unfed, oldest_ns in rows
        ]

    def copy_to(self, disk: Disk) -> None:
        def let_others(_status: int, _remaining: int, _total: int) -> None:
            self._lock.release()
            time.sleep(_COPY_BREAK_S)
            self._lock.acquire()

        path = os.path.join(disk.path, LETTERS_FILE)
        try:
            with closing(sqlite3.connect(path)) as target, self._lock:
                self._connection.backup(target, pages=_COPIED_PAGES, progress=let_others)
        except sqlite3.Error as error:
            raise LetterError(f"{path}: {error}") from error
        file = disk.open(LETTERS_FILE)
        try:
            file.sync()
        finally:
            close_quietly(file)
        disk.sync_folder()

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()
