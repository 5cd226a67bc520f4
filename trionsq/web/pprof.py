"""/debug/pprof and the other pages under /debug that the original has.

Tools and scripts ask for them: `go tool pprof http://127.0.0.1:4151/debug/pprof/profile` works.
Spec: nsqd-http, section 7.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import trio
from quart import Response

from trionsq.debug import heap, tasks_shown, threads
from trionsq.debug.heap import TypeCount
from trionsq.debug.pprof import pprof_bytes
from trionsq.debug.process import free_memory, process_figures
from trionsq.debug.profile import profile
from trionsq.debug.tasks import task_tree
from trionsq.options import parse_int
from trionsq.web.answers import empty, plain
from trionsq.web.app import Endpoint
from trionsq.web.debug_answers import as_text, attachment, html
from trionsq.web.query import query

__all__ = ["Pprof", "census_document"]


_FILE_TYPE: Final = "application/octet-stream"
# As the original has it when no number of seconds is given, or a bad one.
_SECONDS: Final = 30
_SECONDS_MAX: Final = 120
_TASKS_MAX: Final = 2_000
_TYPES_MAX: Final = 50
_NAMES: Final = ("block", "goroutine", "heap", "threadcreate")


class Pprof:
    """The endpoints."""

    def __init__(self, index_path: str, more: str = "") -> None:
        """``more`` is HTML below the index."""
        self._index_path = index_path
        self._more = more

    def endpoints(self) -> Iterable[Endpoint]:
        """What nsqd and nsqlookupd both have."""
        return [
            ("GET", self._index_path, self.index),
            ("GET", "/debug/pprof/cmdline", self.cmdline),
            ("GET", "/debug/pprof/symbol", self.symbol),
            ("POST", "/debug/pprof/symbol", self.symbol),
            ("GET", "/debug/pprof/profile", self.profile),
            ("GET", "/debug/pprof/heap", self.heap),
            ("GET", "/debug/pprof/goroutine", self.goroutine),
            ("GET", "/debug/pprof/block", self.block),
            ("GET", "/debug/pprof/threadcreate", self.threadcreate),
        ]

    def rate_endpoints(self) -> Iterable[Endpoint]:
        """What only nsqd has."""
        return [
            ("PUT", "/debug/setblockrate", self.set_block_rate),
            ("POST", "/debug/freememory", self.free_memory),
        ]

    async def index(self) -> Response:
        """GET /debug/pprof, with or without a slash at its end."""
        rows = "".join(
            f"<tr><td><a href='/debug/pprof/{name}?debug=1'>{name}</a>\n" for name in _NAMES
        )
        return html(
            f"<!doctype html><title>/debug/pprof/</title><table>\n{rows}</table>\n"
            f"<p><a href='/debug/pprof/profile'>profile of 30 seconds</a>\n{self._more}"
        )

    async def cmdline(self) -> Response:
        """GET /debug/pprof/cmdline."""
        words = "\0".join(sys.orig_argv)
        return plain(200, words.encode(errors="replace").decode())

    async def symbol(self) -> Response:
        """GET and POST /debug/pprof/symbol: our profiles have their names in them."""
        return plain(200, "num_symbols: 1\n")

    async def profile(self) -> Response:
        """GET /debug/pprof/profile."""
        seconds = _integer(b"seconds") or _SECONDS
        seen = await profile(min(seconds, _SECONDS_MAX) if seconds > 0 else _SECONDS)
        body = await trio.to_thread.run_sync(pprof_bytes, seen)
        return attachment(body, "profile", _FILE_TYPE)

    async def heap(self) -> Response:
        """GET /debug/pprof/heap."""
        process = await trio.to_thread.run_sync(process_figures)
        counts = await trio.to_thread.run_sync(heap.census, _TYPES_MAX)
        document = {"process": process, "objects": census_document(counts)}
        return _report("heap", as_text(document), end="\n")

    async def goroutine(self) -> Response:
        """GET /debug/pprof/goroutine: what comes nearest, all tasks and threads."""
        tree = await task_tree(limit=_TASKS_MAX, stacks=True)
        body = await trio.to_thread.run_sync("".join, tasks_shown.text_pieces(tree))
        return _report("goroutine", [body, "\n", *threads.text_pieces(stacks=True)])

    async def block(self) -> Response:
        """GET /debug/pprof/block: nobody measures it, so there is nothing."""
        return _report("block", ["not measured; /debug/tasks shows who waits for what\n"])

    async def threadcreate(self) -> Response:
        """GET /debug/pprof/threadcreate."""
        return _report("threadcreate", threads.text_pieces(stacks=_integer(b"debug") > 1))

    async def set_block_rate(self) -> Response:
        """PUT /debug/setblockrate: the rate is looked at, and has no effect."""
        rate = query().get(b"rate", b"").decode(errors="replace")
        try:
            parse_int(rate)
        except ValueError as error:
            return plain(400, f"invalid block rate : {rate!r}: {error}")
        return empty()

    async def free_memory(self) -> Response:
        """POST /debug/freememory."""
        await trio.to_thread.run_sync(free_memory)
        return empty()


def census_document(counts: list[TypeCount]) -> list[dict[str, Any]]:
    """How many objects there are of the most frequent types."""
    return [{"count": each.count, "type": each.type} for each in counts]


def _integer(name: bytes) -> int:
    """A parameter, 0 if it is none."""
    try:
        return parse_int(query().get(name, b"").decode(errors="replace"))
    except ValueError:
        return 0


def _report(name: str, pieces: Iterable[str], end: str = "") -> Response:
    """As a page if ``debug`` asks for one, else as a file."""
    body = "".join(piece + end for piece in pieces)
    if _integer(b"debug") > 0:
        return plain(200, body)
    return attachment(body.encode(), name, _FILE_TYPE)
