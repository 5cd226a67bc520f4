"""What a node says of itself, as its page shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.pages.format import UNKNOWN, ago, duration_s, nbytes, number, since
from admin.watch.node_health import DISK_FREE_MIN, FSYNC_P99_S, LAG_P99_S
from admin.watch.snapshot import NodeRow
from admin.watch.vitals import Vitals

__all__ = ["Fact", "NodeFacts", "node_facts"]

_BELOW_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of a node; ``is_bad``: it is a problem."""

    name: str
    value: str
    note: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The figures, and when they were read (seconds since 1970); None: the node tells none."""

    facts: Sequence[Fact]
    at_s: float | None


def node_facts(row: NodeRow | None, vitals: Vitals | None, now_s: float) -> NodeFacts:
    """The figures of a node, from the last reading of its /metrics."""
    facts = []
    if row is None or not (row.up or vitals):
        return NodeFacts([], None)
    if row.start_time:
        up = ago(row.start_time, now_s) if row.up else UNKNOWN
        facts.append(Fact("Uptime", up, f"since {since(row.start_time, now_s)} UTC"))
    if vitals is None:
        return NodeFacts(facts, None)
    value = vitals.value
    facts.append(Fact("Memory", _size(value("process_resident_memory_bytes")), "resident"))
    facts.append(_late("Event loop lag", vitals.lag_p99_s, LAG_P99_S))
    facts.append(_late("fsync", vitals.fsync_p99_s, FSYNC_P99_S))
    files, most = value("process_open_fds"), value("process_max_fds")
    facts.append(Fact("Open files", number(files), f"of {number(most)}"))
    facts.append(_disk(vitals))
    log_bytes = value("nsqd_log_disk_bytes")
    if log_bytes is not None:
        facts.append(Fact("Logs on disk", _size(log_bytes)))
    if row.up:
        note = f"of {number(row.depth)}"
        facts.append(Fact("Messages on disk", number(row.backend_depth), note))
    http = number(value("nsqd_http_connections"))
    facts.append(Fact("Connections", number(value("nsqd_connections")), f"TCP; {http} HTTP"))
    refused = (value("nsqd_connections_refused_total") or 0.0) + (
        value("nsqd_http_connections_refused_total") or 0.0
    )
    facts.append(Fact("Refused", number(refused), "connections since start", bool(vitals.refused)))
    facts.append(Fact("Unread output", _size(value("nsqd_queued_output_bytes")), "of slow clients"))
    facts.append(_lookupds(vitals))
    for name, metric in (("Disk faults", "nsqd_disk_faults"), ("Defects", "nsqd_defects_total")):
        if count := value(metric):
            facts.append(Fact(name, number(count), "see its log", is_bad=True))
    return NodeFacts(facts, vitals.at_s)


def _size(size: float | None) -> str:
    return nbytes(None if size is None or not math.isfinite(size) else int(size))


def _late(name: str, p99_s: float | None, limit_s: float) -> Fact:
    if p99_s is None:
        return Fact(name, UNKNOWN, "none measured")
    text = "< 1ms" if p99_s <= _BELOW_S else f"\u2264 {duration_s(p99_s)}"
    return Fact(name, text, "99 % in the last minute", p99_s > limit_s)


def _disk(vitals: Vitals) -> Fact:
    free = vitals.value("nsqd_disk_free_bytes")
    if vitals.value("nsqd_disk_low") or vitals.value("nsqd_log_disk_full"):
        return Fact("Disk free", _size(free), "publishes are refused", is_bad=True)
    if free is None:
        return Fact("Disk free", UNKNOWN)
    return Fact("Disk free", _size(free), is_bad=free < DISK_FREE_MIN)


def _lookupds(vitals: Vitals) -> Fact:
    lookupds = vitals.reading.lookupds
    connected = sum(lookupds.values())
    gone = ", ".join(name for name, is_there in sorted(lookupds.items()) if not is_there)
    note = f"not at {gone}"[:200] if gone else ""
    return Fact("nsqlookupd", f"{connected} of {len(lookupds)}", note, is_bad=bool(gone))
