"""/debug: what this nsqd does right now, for its operator. Ours; docs/debugging.md explains them.

Each page costs something only while it is asked for. Whoever may not ask (--debug-from) is
answered 403.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import trio
from quart import Response

from trionsq.broker.broker import Broker
from trionsq.debug import heap, profile_forms, tasks_shown
from trionsq.debug.loop import watch_loop
from trionsq.debug.pprof import pprof_bytes
from trionsq.debug.process import process_figures
from trionsq.debug.profile import Profile, profile
from trionsq.debug.tasks import task_tree
from trionsq.http.debug_figures import (
    allocations_document,
    broker_figures,
    checks_document,
    limits_document,
    loop_document,
    trio_figures,
)
from trionsq.web.answers import json_document, plain
from trionsq.web.app import Endpoint
from trionsq.web.debug_answers import as_text, attachment, chosen, html, number, wants_json
from trionsq.web.guard import guarded
from trionsq.web.pprof import Pprof, census_document
from trionsq.web.query import flag, query

__all__ = ["Debugging"]

_BACK: Final = "<p><a href='/debug'>what this nsqd does</a>\n"
_SECONDS_MAX: Final = 120.0
# The processor's timer ticks no faster on most systems.
_HZ_MAX: Final = 250.0
_TASKS_MAX: Final = 100_000
_TOP_MAX: Final = 1_000

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
        "seconds=5 format=speedscope|pstats|pprof|text hz=100 clock=cpu|wall",
    ),
    ("/debug/pprof/", "pages that Go programs have, for tools that ask for them", ""),
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
        tree = await task_tree(
            limit=int(number(values, "limit", 2000, 1, _TASKS_MAX)),
            stacks=flag(values, b"stacks", default=False),
        )
        as_json = wants_json(values)
        pieces = tasks_shown.json_pieces(tree) if as_json else tasks_shown.text_pieces(tree)
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
        top = int(number(values, "top", 10, 0, _TOP_MAX))
        as_json = wants_json(values)
        seconds = number(values, "seconds", 1, 0.01, _SECONDS_MAX)
        figures = await watch_loop(seconds)
        process = await trio.to_thread.run_sync(process_figures)
        return _shown(
            {
                "loop": loop_document(figures),
                "trio": trio_figures(),
                "process": process,
                "broker": await broker_figures(self._broker, top, trio.current_time()),
                "limits": limits_document(self._broker.options),
            },
            as_json,
        )

    async def checks(self) -> Response:
        """GET /debug/checks."""
        as_json = wants_json(query())
        await self._broker.checks.check_all()
        return _shown(checks_document(self._broker), as_json)

    async def heap(self) -> Response:
        """GET /debug/heap."""
        values = query()
        as_json = wants_json(values)
        top = int(number(values, "top", 30, 1, _TOP_MAX))
        frames = int(number(values, "frames", 1, 1, 25))
        document: dict[str, Any] = {}
        if b"seconds" in values:
            seconds = number(values, "seconds", 0, 0.01, _SECONDS_MAX)
            allocations = await heap.trace_allocations(seconds, top, frames)
            document["allocations"] = allocations_document(allocations)
        else:
            document["hint"] = (
                "?seconds=10 tells who allocates; meanwhile every allocation costs two to four"
                " times as much, and at the end all stands still for up to some tenths of a second"
            )
        document["process"] = await trio.to_thread.run_sync(process_figures)
        counts = await trio.to_thread.run_sync(heap.census, top)
        document["objects"] = census_document(counts)
        return _shown(document, as_json)

    async def profile(self) -> Response:
        """GET /debug/profile."""
        values = query()
        form = chosen(values, "format", "speedscope", "pstats", "pprof", "text")
        seen = await profile(
            number(values, "seconds", 5, 0.01, _SECONDS_MAX),
            number(values, "hz", 100, 1, _HZ_MAX),
            clock="wall" if chosen(values, "clock", "cpu", "wall") == "wall" else "cpu",
        )
        # In a thread, for it may be large.
        body = await trio.to_thread.run_sync(_FORMS[form], seen)
        if form == "text":
            return plain(200, body.decode())
        filename, content_type = _FILES[form]
        return attachment(body, filename, content_type)


def _text(seen: Profile) -> bytes:
    return "\n".join([*profile_forms.text_lines(seen, 40), ""]).encode(errors="replace")


def _speedscope(seen: Profile) -> bytes:
    return profile_forms.speedscope_json(seen, "nsqd").encode(errors="replace")


_FORMS: Final[Mapping[str, Callable[[Profile], bytes]]] = {
    "text": _text,
    "speedscope": _speedscope,
    "pstats": profile_forms.pstats_bytes,
    "pprof": pprof_bytes,
}
_FILES: Final = {
    "speedscope": ("nsqd.speedscope.json", "application/json; charset=utf-8"),
    "pstats": ("nsqd.pstats", "application/octet-stream"),
    "pprof": ("nsqd.pb.gz", "application/octet-stream"),
}


def _joined(pieces: Iterator[str]) -> bytes:
    return "".join(pieces).encode(errors="replace")


def _shown(document: Mapping[str, Any], as_json: bool) -> Response:
    if as_json:
        return json_document(document)
    return plain(200, "\n".join([*as_text(document), ""]))
