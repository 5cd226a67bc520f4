"""/debug: what this nsqd does right now, for its operator. Ours; docs/debugging.md explains them.

Each page costs something only while it is asked for. Whoever may not ask (--debug-from) is
answered 403.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappush, heappushpop
from typing import Any, Final

import trio
from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.client import Client
from trionsq.broker.options import NsqdOptions
from trionsq.debug import process, tasks
from trionsq.debug.loop import loop_document, trio_metrics, watch_loop
from trionsq.debug.process import allocations_document, census_document, process_metrics
from trionsq.debug.profile import Profile, pprof_bytes, profile, text_lines
from trionsq.options import table
from trionsq.web.app import Endpoint
from trionsq.web.diagnostics import Pprof, as_text, guarded
from trionsq.web.protocol import flag
from trionsq.web.request import chosen, number, query, wants_json
from trionsq.web.responses import attachment, html, json_document, plain

__all__ = ["Debugging"]

_BACK: Final = "<p><a href='/debug'>what this nsqd does</a>\n"
_MAX_SECONDS: Final = 120.0
# The processor's timer ticks no faster on most systems.
_MAX_HZ: Final = 250.0
_MAX_TASKS: Final = 100_000
_MAX_TOP: Final = 1_000

# Path, what it tells, parameters.
_PAGES: Final = (
    ("/debug/tasks", "the tree of tasks: what each does or waits for", "limit=2000 stacks=0|1"),
    ("/debug/loop", "event loop, process and queued output, after a look of", "seconds=1 top=10"),
    ("/debug/checks", "whether what topics and channels count adds up", ""),
    (
        "/debug/heap",
        "what is in memory; with seconds, who allocated it",
        "seconds= top=30 frames=1",
    ),
    (
        "/debug/profile",
        "where the time goes",
        "seconds=5 format=text|pprof hz=100",
    ),
    ("/debug/pprof/", "pages that Go programs have, for tools that ask for them", ""),
)
# Topics, channels and clients that are looked at before other tasks get their turn.
_MAX_LOOKS: Final = 200
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


class Debugging:
    """The endpoints under /debug."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Iterable[Endpoint]:
        """Each page; none answers whoever may not ask."""
        pprof = Pprof("/debug/pprof/", _BACK)
        pages: list[Endpoint] = [
            ("GET", "/debug", self.index),
            ("GET", "/debug/tasks", self.tasks),
            ("GET", "/debug/loop", self.loop),
            ("GET", "/debug/checks", self.checks),
            ("GET", "/debug/heap", self.heap),
            ("GET", "/debug/profile", self.profile),
            *pprof.endpoints(),
            *pprof.rate_endpoints(),
        ]
        return [guarded(page, lambda: self._broker.options.debug_from) for page in pages]

    async def index(self) -> Response:
        """GET /debug: what there is."""
        values = query()
        if chosen(values, "format", "html", "json") == "json":
            return json_document(
                [{"path": path, "tells": tells, "parameters": more} for path, tells, more in _PAGES]
            )
        rows = "".join(
            f"<tr><td><a href='{path}'>{path}</a><td>{tells}<td>{more}\n"
            for path, tells, more in _PAGES
        )
        return html(
            "<!doctype html><title>nsqd: debug</title>"
            f"<h1>What is this nsqd doing?</h1><table>\n{rows}</table>\n"
            "<p>Text by default; all but the last two take format=json.\n"
        )

    async def tasks(self) -> Response:
        """GET /debug/tasks."""
        values = query()
        tree = await tasks.task_tree(
            limit=int(number(values, "limit", 2000, 1, _MAX_TASKS)),
            stacks=flag(values, b"stacks", default=False),
        )
        as_json = wants_json(values)
        pieces = tasks.json_pieces(tree) if as_json else tasks.text_pieces(tree)
        # In a thread, for a large tree takes its time.
        body = await trio.to_thread.run_sync(_joined, pieces)
        return Response(
            body,
            200,
            content_type=f"{'application/json' if as_json else 'text/plain'}; charset=utf-8",
        )

    async def loop(self) -> Response:
        """GET /debug/loop."""
        values = query()
        top = int(number(values, "top", 10, 0, _MAX_TOP))
        as_json = wants_json(values)
        seconds = number(values, "seconds", 1, 0.01, _MAX_SECONDS)
        figures = await watch_loop(seconds)
        own_process = await trio.to_thread.run_sync(process_metrics)
        return _response(
            {
                "loop": loop_document(figures),
                "trio": trio_metrics(),
                "process": own_process,
                "broker": await broker_metrics(self._broker, top, trio.current_time()),
                "limits": limits_document(self._broker.options),
            },
            as_json,
        )

    async def checks(self) -> Response:
        """GET /debug/checks."""
        as_json = wants_json(query())
        await self._broker.checks.check_all()
        return _response(checks_document(self._broker), as_json)

    async def heap(self) -> Response:
        """GET /debug/heap."""
        values = query()
        as_json = wants_json(values)
        top = int(number(values, "top", 30, 1, _MAX_TOP))
        frames = int(number(values, "frames", 1, 1, 25))
        document: dict[str, Any] = {}
        if b"seconds" in values:
            seconds = number(values, "seconds", 0, 0.01, _MAX_SECONDS)
            allocations = await process.trace_allocations(seconds, top, frames)
            document["allocations"] = allocations_document(allocations)
        else:
            document["hint"] = (
                "?seconds=10 tells who allocates; meanwhile every allocation costs two to four"
                " times as much, and at the end all stands still for up to some tenths of a second"
            )
        document["process"] = await trio.to_thread.run_sync(process_metrics)
        counts = await trio.to_thread.run_sync(process.census, top)
        document["objects"] = census_document(counts)
        return _response(document, as_json)

    async def profile(self) -> Response:
        """GET /debug/profile."""
        values = query()
        form = chosen(values, "format", "text", "pprof")
        samples = await profile(
            number(values, "seconds", 5, 0.01, _MAX_SECONDS), number(values, "hz", 100, 1, _MAX_HZ)
        )
        # In a thread, for it may be large.
        if form == "pprof":
            body = await trio.to_thread.run_sync(pprof_bytes, samples)
            return attachment(body, "nsqd.pb.gz", "application/octet-stream")
        return plain(200, await trio.to_thread.run_sync(_text, samples))


def _text(samples: Profile) -> str:
    return "\n".join([*text_lines(samples, 40), ""])


def _joined(pieces: Iterator[str]) -> bytes:
    return "".join(pieces).encode(errors="replace")


def _response(document: Mapping[str, Any], as_json: bool) -> Response:
    if as_json:
        return json_document(document)
    return plain(200, "\n".join([*as_text(document), ""]))


# The broker's documents


class _Sums:
    """What is added up, some topics, channels and clients at a time."""

    def __init__(self) -> None:
        self.channels = self.in_memory = self.held = self.in_flight = self.deferred = 0
        self.queued_bytes = self.behind = 0

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
        # The place breaks ties: clients have no order.
        most: list[tuple[int, int, Client]] = []
        for place, client in enumerate(list(broker.clients)):
            if pending := client.output.pending:
                self.queued_bytes += pending
                self.behind += 1
                if len(most) < top:
                    heappush(most, (pending, place, client))
                elif top:
                    heappushpop(most, (pending, place, client))
            await turns.spend()
        return [client for _, _, client in sorted(most, reverse=True)]


class _Turns:
    """Gives other tasks their turn after some looks."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = 0

    async def spend(self) -> None:
        self._looks += 1
        if self._looks >= _MAX_LOOKS:
            self._looks = 0
            await trio.lowlevel.checkpoint()


async def broker_metrics(broker: Broker, top: int, now_s: float) -> dict[str, Any]:
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
        "output_queued_bytes": sums.queued_bytes,
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
