"""/debug: what this nsqd does right now, for its operator. Ours; docs/debugging.md explains them.

A page costs something only while it is requested. A client that --debug-from does not allow is
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

_BACK: Final = "<p><a href='/debug'>debug pages of this nsqd</a>\n"
_MAX_SECONDS: Final = 120.0
# On most systems the timer of processor time ticks no faster.
_MAX_HZ: Final = 250.0
_MAX_TASKS: Final = 100_000
_MAX_TOP: Final = 1_000

# Path, contents, parameters.
_PAGES: Final = (
    ("/debug/tasks", "the tree of tasks: what each does or waits for", "limit=2000 stacks=0|1"),
    (
        "/debug/loop",
        "event loop, process and queued output, watched for a while",
        "seconds=1 top=10",
    ),
    ("/debug/checks", "whether the counters of topics and channels add up", ""),
    (
        "/debug/heap",
        "objects in memory; with seconds, the lines that allocate memory",
        "seconds= top=30 frames=1",
    ),
    (
        "/debug/profile",
        "CPU profile: where the time goes",
        "seconds=5 format=text|pprof hz=100",
    ),
    ("/debug/pprof/", "pages of Go programs, for `go tool pprof` and others", ""),
)
# Topics, channels and clients that are read before other tasks run.
_MAX_READS: Final = 200
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
        """Return all pages, each with the check of --debug-from."""
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
        """GET /debug: the list of pages."""
        values = query()
        if chosen(values, "format", "html", "json") == "json":
            return json_document(
                [
                    {"path": path, "tells": contents, "parameters": more}
                    for path, contents, more in _PAGES
                ]
            )
        rows = "".join(
            f"<tr><td><a href='{path}'>{path}</a><td>{contents}<td>{more}\n"
            for path, contents, more in _PAGES
        )
        return html(
            "<!doctype html><title>nsqd: debug</title>"
            f"<h1>What is this nsqd doing?</h1><table>\n{rows}</table>\n"
            "<p>All pages are text; all but the last two take format=json.\n"
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
        # In a thread, because a large tree takes time.
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
        metrics = await watch_loop(seconds)
        own_process = await trio.to_thread.run_sync(process_metrics)
        return _response(
            {
                "loop": loop_document(metrics),
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
                "?seconds=10 shows the lines that allocate memory; meanwhile every allocation costs"
                " two to four times as much, and at the end nsqd stops for up to some tenths of a"
                " second"
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
        # In a thread, because a profile may be large.
        if form == "pprof":
            body = await trio.to_thread.run_sync(pprof_bytes, samples)
            return attachment(body, "nsqd.pb.gz", "application/octet-stream")
        return plain(200, await trio.to_thread.run_sync(_text, samples))


def _text(samples: Profile) -> str:
    # Names of files may have bytes that are no UTF-8.
    text = "\n".join([*text_lines(samples, 40), ""])
    return text.encode(errors="replace").decode()


def _joined(pieces: Iterator[str]) -> bytes:
    return "".join(pieces).encode(errors="replace")


def _response(document: Mapping[str, Any], as_json: bool) -> Response:
    if as_json:
        return json_document(document)
    return plain(200, "\n".join([*as_text(document), ""]))


# The broker's documents


class _Sums:
    """Sums over all topics, channels and clients."""

    def __init__(self) -> None:
        self.channels = self.in_memory = self.held = self.in_flight = self.deferred = 0
        self.queued_bytes = self.queued_clients = 0

    async def add_all(self, broker: Broker, top: int) -> list[Client]:
        """Add all, in turns; return the ``top`` clients with the most queued output."""
        turns = _Turns()
        for topic in list(broker.topics.values()):
            self.in_memory += topic.core.store.memory.depth
            await turns.count_read()
            for channel in list(topic.channels.values()):
                core = channel.core
                self.channels += 1
                self.held += core.held
                self.in_flight += core.in_flight_count
                self.deferred += core.deferred_count
                await turns.count_read()
        # The place breaks ties: clients have no order.
        most: list[tuple[int, int, Client]] = []
        for place, client in enumerate(list(broker.clients)):
            if pending := client.output.pending:
                self.queued_bytes += pending
                self.queued_clients += 1
                if len(most) < top:
                    heappush(most, (pending, place, client))
                elif top:
                    heappushpop(most, (pending, place, client))
            await turns.count_read()
        return [client for _, _, client in sorted(most, reverse=True)]


class _Turns:
    """Lets other tasks run now and then."""

    __slots__ = ("_reads",)

    def __init__(self) -> None:
        self._reads = 0

    async def count_read(self) -> None:
        self._reads += 1
        if self._reads >= _MAX_READS:
            self._reads = 0
            await trio.lowlevel.checkpoint()


async def broker_metrics(broker: Broker, top: int, now_s: float) -> dict[str, Any]:
    """Return sums over the broker, and the ``top`` connections with the most queued output.

    ``now_s`` is trio's clock. The sums are made in turns, so they are not of one moment.
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
        **_auth_metrics(broker),
        "output_queued_bytes": sums.queued_bytes,
        "connections_with_queued_output": sums.queued_clients,
        "most_queued_output": [_queued_output(client, now_s) for client in most],
    }


def checks_document(broker: Broker) -> dict[str, Any]:
    """Return whether counters add up: the first finding of each topic or channel."""
    checks = broker.checks
    return {
        "queues_checked_since_start": checks.checks_count,
        "queues_that_do_not_add_up": checks.broken_count,
        "finds": [{"queue": queue, "find": find} for queue, find in checks.broken.items()],
    }


def _auth_metrics(broker: Broker) -> dict[str, Any]:
    """Return the numbers of clients at auth servers; nothing without such servers."""
    servers = broker.auth_servers
    if servers is None:
        return {}
    return {
        "clients_asked_for_at_auth_servers": servers.active_requests,
        "clients_waiting_to_be_asked_for": servers.waiting_requests,
    }


def limits_document(options: NsqdOptions) -> dict[str, Any]:
    """Return the limits that operators set, by their flags; for some, 0 means no limit."""
    return {
        spec.flag: spec.kind.show(getattr(options, name))
        for name, spec in table(options)
        if name in _LIMITS
    }


def _queued_output(client: Client, now_s: float) -> dict[str, Any]:
    since_s = client.output.blocked_since_s
    return {
        "client": client.peer,
        "client_id": client.identity.client_id,
        "queued_bytes": client.output.pending,
        "blocked_seconds": None if since_s is None else now_s - since_s,
        "in_flight": len(client.consumer.in_flight),
    }
