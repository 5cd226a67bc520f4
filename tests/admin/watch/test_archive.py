"""The history on disk: there after a restart, bounded, and its damage costs nothing else."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from admin.watch.archive import Archive
from admin.watch.history import History, topic_key
from admin.watch.snapshot import Row, Snapshot, TopicRow

START_S = 1_790_000_100.0


def snapshot(now_s: float, depth: int) -> Snapshot:
    """One topic."""
    topics = {"t": TopicRow(topic="t", depth=depth, rate_in=1.0, nodes=1)}
    return Snapshot(1, now_s, topics=topics, total=Row(depth=depth, nodes=1))


def made() -> History:
    """A day, polled every 30 s."""
    return History(86_400.0, 5.0, idle_interval_s=30.0)


async def filled(path: Path, polls: int, first: int = 0) -> History:
    """A history of so many polls, of which all slots that have ended are in the file."""
    history = made()
    archive = Archive(str(path), history, wall=lambda: START_S + 30.0 * first)
    await archive.load()
    for number in range(first, first + polls):
        await history.add_snapshot(snapshot(START_S + 30.0 * number, number + 1))
        await archive.save()
    return history


async def loaded(path: Path, now_s: float) -> History:
    """The history of the next nsqadmin."""
    history = made()
    await Archive(str(path), history, wall=lambda: now_s).load()
    return history


def depths(history: History, span_s: float) -> list[float]:
    """What is known of the topic."""
    series = history.series(topic_key("t"), span_s)
    return [] if series is None else [each for each in series.depth if not math.isnan(each)]


async def test_the_next_nsqadmin_has_it(tmp_path: Path) -> None:
    """Slots that have ended; at stop the others too. Later polls go on, with a gap between."""
    path = tmp_path / "state.history"
    before = await filled(path, 30)
    after = await loaded(path, START_S + 1000.0)
    assert depths(after, 3600.0) == depths(before, 3600.0)[:-1]
    assert depths(after, 86_400.0) == depths(before, 86_400.0)[:-1]
    archive = Archive(str(path), before)
    with trio.CancelScope() as scope:
        scope.cancel()
        await archive.run()
    assert depths(await loaded(path, START_S + 1000.0), 86_400.0) == depths(before, 86_400.0)
    await after.add_snapshot(snapshot(START_S + 1500.0, 99))
    series = after.series(topic_key("t"), 3600.0)
    assert series is not None
    assert series.depth[-1] == 99.0
    assert math.isnan(series.depth[-3])


async def test_the_file_has_a_bound(tmp_path: Path) -> None:
    """Slots that are older than the history are deleted."""
    path = tmp_path / "state.history"
    history = made()
    archive = Archive(str(path), history)
    for number in (0, 1, 10_000, 10_001, 20_000, 20_001):
        await history.add_snapshot(snapshot(START_S + 300.0 * number, 1))
        await archive.save()
    with closing(sqlite3.connect(path)) as connection:
        slots = [row[0] for row in connection.execute("SELECT slot FROM blocks")]
    assert 1 <= len(slots) <= 8


@pytest.mark.parametrize("damage", ["all", "cut", "block", "folder"])
async def test_damage_costs_the_history_only(tmp_path: Path, damage: str) -> None:
    """It starts without what is damaged, and writes on where it can."""
    path = tmp_path / "state.history"
    await filled(path, 30)
    whole = depths(await loaded(path, START_S + 1000.0), 3600.0)
    if damage == "all":
        path.write_bytes(b"x" * 10_000)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "block":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE blocks SET block = x'00ff' WHERE slot % 2 = 0")
    else:
        path.unlink()
        path.mkdir()
    found = depths(await loaded(path, START_S + 1000.0), 3600.0)
    assert len(found) < len(whole)
    assert bool(found) == (damage == "block")
    await filled(path, 30, first=40)
    again = depths(await loaded(path, START_S + 40 * 30.0 + 1000.0), 3600.0)
    assert bool(again) == (damage != "folder")
