"""The history on disk, beside the file of --state-file: a table of slots in SQLite.

A slot is written when it has ended, and deleted when it is older than the history. So the file has
a bound: a tenth of a kilobyte for a series and an hour, about. A file that SQLite can't read is
deleted and begun anew; a slot that is damaged is left out. Without a disk the history is in memory
only.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec
import trio

from admin.watch.history import Block, History, Tier

__all__ = ["Archive"]

log = logging.getLogger("trionsq")

_MAX_BLOCK_BYTES: Final = 16 * 1024 * 1024
_VALUES: Final = 3
_BUSY_S: Final = 1.0
# Time for the last writing, when nsqadmin stops.
_LAST_S: Final = 2.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS blocks (
    slot_ms INTEGER, slot INTEGER, block BLOB NOT NULL, PRIMARY KEY (slot_ms, slot)
) WITHOUT ROWID
"""
_DECODER: Final = msgspec.msgpack.Decoder(tuple[list[tuple[str, ...]], bytes])


class Archive:
    """Writes the slots of a history to a file; "" as its path: does nothing.

    Attributes:
        failures: blocks that could not be written.
    """

    def __init__(
        self, path: str, history: History, *, wall: Callable[[], float] = time.time
    ) -> None:
        """``wall`` is in seconds since 1970."""
        self._path = path
        self._history = history
        self._wall = wall
        self._failed = False
        self.failures = 0

    async def load(self) -> None:
        """Restore the history of an earlier nsqadmin, as far as it can be read."""
        if not self._path:
            return
        loaded = self._history.like()
        try:
            await trio.to_thread.run_sync(_load, self._path, loaded, self._wall())
        except sqlite3.OperationalError as error:
            # Locked, no such folder, no permission: not the file's fault.
            log.error("HISTORY: failed to read %s: %s", self._path, error)
        except sqlite3.DatabaseError as error:
            log.error("HISTORY: %s is damaged (%s); it is begun anew", self._path, error)
            await trio.to_thread.run_sync(_delete, self._path)
        else:
            self._history.adopt(loaded)

    async def run(self) -> None:
        """Write slots as they end, until cancelled; then the current ones."""
        history = self._history
        try:
            while True:
                await history.slot_ended.wait()
                history.slot_ended = trio.Event()
                await self.save()
        finally:
            with trio.move_on_after(_LAST_S, shield=True):
                history.finish_all()
                await self.save()

    async def save(self) -> None:
        """Write the slots that have ended. An error is logged once, until it is over."""
        history = self._history
        while history.finished:
            place, slot = history.finished.popleft()
            if not self._path:
                continue
            block = await history.block(place, slot)
            try:
                tier = history.tiers[block.tier]
                await trio.to_thread.run_sync(_write, self._path, block, tier)
            except sqlite3.Error as error:
                self._note_failure(error)
                if not isinstance(error, sqlite3.OperationalError):
                    await trio.to_thread.run_sync(_delete, self._path)
            else:
                self._failed = False

    def _note_failure(self, error: sqlite3.Error) -> None:
        self.failures += 1
        if not self._failed:
            log.error("HISTORY: failed to write %s: %s", self._path, error)
        self._failed = True


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S)
    try:
        connection.execute(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _slot_ms(tier: Tier) -> int:
    return round(tier.slot_s * 1000)


def _load(path: str, into: History, now_s: float) -> None:
    with closing(_connect(path)) as connection, connection:
        known = [_slot_ms(tier) for tier in into.tiers]
        marks = ",".join("?" * len(known))
        connection.execute(f"DELETE FROM blocks WHERE slot_ms NOT IN ({marks})", known)
        for place, tier in enumerate(into.tiers):
            now = int(now_s // tier.slot_s)
            rows = connection.execute(
                "SELECT slot, block FROM blocks WHERE slot_ms = ? AND slot > ? AND slot <= ?"
                " ORDER BY slot",
                (_slot_ms(tier), now - tier.points, now),
            )
            for block in _blocks(place, rows):
                into.restore(block)


def _blocks(place: int, rows: Iterator[Sequence[object]]) -> Iterator[Block]:
    damaged = 0
    for slot, packed in rows:
        try:
            if not isinstance(slot, int) or not isinstance(packed, bytes):
                raise ValueError("not a block")
            unpacked = zlib.decompressobj().decompress(packed, _MAX_BLOCK_BYTES)
            keys, body = _DECODER.decode(unpacked)
            values = array("f", body)
            if len(values) != _VALUES * len(keys):
                raise ValueError("of another length")
        except (ValueError, zlib.error):  # msgspec's errors are ValueErrors
            damaged += 1
            continue
        yield Block(place, slot, keys, values)
    if damaged:
        log.error("HISTORY: %d damaged slots are left out", damaged)


def _write(path: str, block: Block, tier: Tier) -> None:
    packed = zlib.compress(msgspec.msgpack.encode((block.keys, block.values.tobytes())), 1)
    slot_ms = _slot_ms(tier)
    with closing(_connect(path)) as connection, connection:
        connection.execute(
            "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)", (slot_ms, block.slot, packed)
        )
        oldest = block.slot - tier.points
        connection.execute("DELETE FROM blocks WHERE slot_ms = ? AND slot <= ?", (slot_ms, oldest))


def _delete(path: str) -> None:
    for name in (path, f"{path}-journal"):
        with suppress(OSError):
            Path(name).unlink()
