"""The documents of /debug/loop and /debug/heap, in the broker's terms."""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Any, Final

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.broker.options import NsqdOptions
from trionsq.debug.heap import Allocations
from trionsq.debug.loop import LoopFigures
from trionsq.options import table

__all__ = [
    "allocations_document",
    "broker_figures",
    "checks_document",
    "limits_document",
    "loop_document",
    "trio_figures",
]

# Topics, channels and clients that are looked at before other tasks get their turn.
_LOOKS_MAX: Final = 200
_LIMITS: Final = frozenset(
    {
        "max_connections",
        "max_connection_rate",
        "max_connection_burst",
        "max_http_connections",
        "mem_queue_size",
        "max_msg_size",
        "max_body_size",
        "max_rdy_count",
        "max_channel_consumers",
        "max_msg_timeout_ns",
        "max_req_timeout_ns",
        "max_heartbeat_interval_ns",
    }
)


def loop_document(figures: LoopFigures) -> dict[str, Any]:
    """What the event loop did."""
    seconds = figures.seconds
    return {
        "seconds": seconds,
        "turns_per_second": figures.turns / seconds,
        "task_steps_per_second": figures.steps / seconds,
        "busy_share": figures.busy_seconds / seconds,
        "cpu_share": figures.cpu_seconds / seconds,
        "lag_ms": {
            "p50": figures.lag_quantile_ms(0.5),
            "p99": figures.lag_quantile_ms(0.99),
            "max": figures.lag_quantile_ms(1.0),
        },
        "longest_steps": [
            {
                "duration_ms": step.duration_ms,
                "cpu_ms": step.cpu_ms,
                "waited_for_cpu_ms": step.queued_ms,
                "garbage_ms": step.garbage_ms,
                "task": step.task,
                "ran": step.ran,
                "gave_way_at": None if step.after is None else str(step.after),
            }
            for step in figures.slowest
        ],
        "garbage_collections": [
            {
                "generation": generation,
                "count": pauses.count,
                "longest_cpu_ms": pauses.longest_cpu_ms,
            }
            for generation, pauses in sorted(figures.garbage.items())
        ],
    }


def trio_figures() -> dict[str, Any]:
    """trio's own statistics."""
    statistics = trio.lowlevel.current_statistics()
    io = statistics.io_statistics
    return {
        "tasks_living": statistics.tasks_living,
        "tasks_runnable": statistics.tasks_runnable,
        "seconds_to_next_deadline": _finite(statistics.seconds_to_next_deadline),
        "calls_from_threads_waiting": statistics.run_sync_soon_queue_size,
        "io_backend": io.backend,
        "tasks_waiting_to_read": getattr(io, "tasks_waiting_read", None),
        "tasks_waiting_to_write": getattr(io, "tasks_waiting_write", None),
    }


class _Sums:
    """What is added up, some topics, channels and clients at a time."""

    def __init__(self) -> None:
        self.channels = self.in_memory = self.held = self.in_flight = self.deferred = 0
        self.queued_nbytes = self.behind = 0

    async def add_all(self, broker: Broker, top: int) -> list[Client]:
        """Add all; the ``top`` clients that owe most to their sockets."""
        turns = _Turns()
        for topic in list(broker.topics.values()):
            self.in_memory += topic.core.store.memory.depth
            await turns.spend()
            for channel in list(topic.channels.values()):
                core = channel.core
                self.channels += 1
                self.held += core.held
                self.in_flight += core.in_flight_count
                self.deferred += core.deferred_count
                await turns.spend()
        # The number breaks ties: clients have no order.
        most: list[tuple[int, int, Client]] = []
        for number, client in enumerate(list(broker.clients)):
            if pending := client.output.pending:
                self.queued_nbytes += pending
                self.behind += 1
                if len(most) < top:
                    heappush(most, (pending, number, client))
                elif top:
                    heappushpop(most, (pending, number, client))
            await turns.spend()
        return [client for _, _, client in sorted(most, reverse=True)]


class _Turns:
    """Gives other tasks their turn after some looks."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = 0

    async def spend(self) -> None:
        self._looks += 1
        if self._looks >= _LOOKS_MAX:
            self._looks = 0
            await trio.lowlevel.checkpoint()


async def broker_figures(broker: Broker, top: int, now_s: float) -> dict[str, Any]:
    """What the broker holds, and the ``top`` connections that owe most to their sockets.

    ``now_s`` is the monotonic time of trio. Sums are made in turns, so they are of no one moment.
    """
    sums = _Sums()
    most = await sums.add_all(broker, top)
    return {
        "health": broker.health,
        "connections": broker.admission.connections,
        "connections_max": broker.admission.limit or None,
        "connections_refused": broker.admission.refused,
        "connections_failed_by_defects": broker.client_failures,
        "defects": {part: count for part, count in broker.defect_counts.items() if count},
        "last_defects": dict(broker.defects.last),
        "stopped_by_defects": dict(broker.defects.stopped),
        "topics": len(broker.topics),
        "channels": sums.channels,
        "messages_in_memory_at_topics": sums.in_memory,
        "messages_held_in_memory_at_channels": sums.held,
        "messages_in_flight": sums.in_flight,
        "messages_deferred": sums.deferred,
        **_asked_for(broker),
        "output_queued_bytes": sums.queued_nbytes,
        "connections_with_queued_output": sums.behind,
        "most_queued_output": [_behind(client, now_s) for client in most],
    }


def checks_document(broker: Broker) -> dict[str, Any]:
    """Whether what topics and channels count adds up: the first find of each that does not."""
    checks = broker.checks
    return {
        "queues_checked_since_start": checks.checks_count,
        "queues_that_do_not_add_up": checks.broken_count,
        "finds": [{"queue": queue, "find": find} for queue, find in checks.broken.items()],
    }


def _asked_for(broker: Broker) -> dict[str, Any]:
    """Clients for which auth servers are asked; nothing without such servers."""
    servers = broker.auth_servers
    if servers is None:
        return {}
    return {
        "clients_asked_for_at_auth_servers": servers.active_requests,
        "clients_waiting_to_be_asked_for": servers.waiting_requests,
    }


def limits_document(options: NsqdOptions) -> dict[str, Any]:
    """The limits that operators set, by their flags; 0 of some means none."""
    return {
        spec.flag: spec.kind.show(getattr(options, name))
        for name, spec in table(options)
        if name in _LIMITS
    }


def _behind(client: Client, now_s: float) -> dict[str, Any]:
    since_s = client.output.blocked_since_s
    return {
        "client": client.peer,
        "client_id": client.identity.client_id,
        "queued_bytes": client.output.pending,
        "blocked_seconds": None if since_s is None else now_s - since_s,
        "in_flight": len(client.consumer.in_flight),
    }


def allocations_document(allocations: Allocations) -> dict[str, Any]:
    """Who allocated what is alive."""
    return {
        "seconds": allocations.seconds,
        "alive_bytes": allocations.nbytes,
        "peak_bytes": allocations.peak_nbytes,
        "notes_bytes": allocations.notes_nbytes,
        "sites": [
            {"bytes": site.nbytes, "blocks": site.blocks, "at": list(site.stack)}
            for site in allocations.sites
        ],
    }


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds
