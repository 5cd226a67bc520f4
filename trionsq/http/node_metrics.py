"""The metrics of a node that are of no single topic: its logs, disk, memory, keys, letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trionsq.broker.broker import Broker
from trionsq.core.keys import KeyWindow
from trionsq.http.logstream import Readers
from trionsq.storage.log.figures import StateFigures
from trionsq.web.metrics import (
    Family,
    HistogramMetrics,
    Labels,
    MetricSet,
    Table,
    counter,
    gauge,
)

__all__ = ["node_metrics", "table_of"]

_STATE: Final = (
    counter("nsqd_log_state_commits", "Transactions of the logs' state."),
    counter("nsqd_log_state_commit_failures", "Transactions that failed; each is repeated."),
    gauge("nsqd_log_disk_full", "1 while no log takes messages: finishing needs the last room."),
    gauge("nsqd_log_io_uring", "1 if the kernel writes small rounds by io_uring, without threads."),
)
_DISK: Final = (
    gauge("nsqd_disk_free_bytes", "Free bytes of the data path's disk."),
    gauge("nsqd_disk_low", "1 while publishes are refused because of --min-free-disk."),
)
_MEMORY: Final = (
    gauge("nsqd_memory_message_bytes", "Bytes of waiting messages in memory; with --max-memory."),
    counter("nsqd_memory_moved_messages", "Messages moved to disk because of --max-memory."),
)
_READERS: Final = (
    gauge("nsqd_log_readers", "Answers to GET /topic/log under way."),
    counter(
        "nsqd_log_readers_refused", "Requests for /topic/log refused: too many were under way."
    ),
)
_KEYS: Final = (
    gauge("nsqd_idempotency_keys", "Keys of idempotent publishes in memory."),
    counter(
        "nsqd_idempotency_keys_forgotten_early",
        "Keys forgotten within --idempotency-window, because there were --idempotency-max-keys.",
    ),
)
_KEYED: Final = counter("nsqd_idempotent_publishes", "Publishes with a key, by what became of it.")
_LETTERS: Final = (
    gauge("nsqd_dead_letters", "Messages that a channel gave up, by where they were."),
    gauge("nsqd_dead_letter_bytes", "Size of their bodies."),
    gauge("nsqd_dead_letter_oldest_age_seconds", "Time since the oldest was given up."),
)
_LETTER_EVENTS: Final = counter(
    "nsqd_dead_letter_events", "Dead letters since the start, by what became of them."
)


def node_metrics(broker: Broker, readers: Readers) -> list[MetricSet]:
    """Return them; ``readers`` read the logs."""
    disk, memory = broker.disk_guard, broker.memory_guard
    return [
        *_keys(broker.registry.keys),
        *_letters(broker),
        *_logs(broker, readers),
        Table(_MEMORY, [({}, [memory.nbytes, memory.moved_count])]),
        Table(_DISK, [({}, [disk.free_bytes, disk.is_low])]),
    ]


def table_of(family: Family, rows: list[tuple[Labels, Sequence[float | None]]]) -> Table:
    """Return a table with one column."""
    return Table([family], rows)


def _keys(keys: KeyWindow) -> list[MetricSet]:
    results = {
        "stored": keys.stored_count,
        "repeated": keys.repeated_count,
        "refused": keys.reused_count,
    }
    return [
        Table(_KEYS, [({}, [len(keys), keys.early_count])]),
        table_of(_KEYED, [({"result": result}, [count]) for result, count in results.items()]),
    ]


def _letters(broker: Broker) -> list[MetricSet]:
    letters, now_ns = broker.dead_letters, broker.clock.now_ns()
    found: dict[tuple[str, str], list[float]] = {}
    for one in letters.tallies:
        row = found.setdefault((one.topic, one.channel), [0, 0, 0.0])
        row[0] += one.letters
        row[1] += one.nbytes
        row[2] = max(row[2], (now_ns - one.oldest_ns) / 1e9)
    rows: list[tuple[Labels, Sequence[float | None]]] = [
        ({"topic": topic, "channel": channel}, row) for (topic, channel), row in found.items()
    ]
    return [
        Table(_LETTERS, rows),
        table_of(_LETTER_EVENTS, [({"event": event}, [n]) for event, n in letters.counts.items()]),
    ]


def _logs(broker: Broker, readers: Readers) -> list[MetricSet]:
    node = broker.logs.node
    figures = StateFigures() if node is None else node.figures
    state: list[tuple[Labels, Sequence[float | None]]] = []
    if node is not None:
        is_direct = broker.folder.background.writes_directly
        state.append(({}, [figures.commits, figures.failed_commits, node.is_full, is_direct]))
    return [
        Table(_STATE, state),
        Table(_READERS, [({}, [readers.count, readers.refused_count])]),
        HistogramMetrics.of(
            "nsqd_log_fsync_duration_seconds",
            "Duration of an fsync of a log.",
            figures.fsync_s,
        ),
    ]
