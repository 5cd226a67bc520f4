"""/live, /ready, and what the original has under /debug: pages of every daemon about itself.

/live and /ready tell orchestrators nothing that /ping does not, so they answer on any listener:
where TLS is required of HTTP (--tls-required), `OPEN_PATHS` are exempt, because probes rarely have
certificates. /metrics is not exempt: it names topics, channels and addresses.

Tools and scripts ask for the debug pages: `go tool pprof http://127.0.0.1:4151/debug/pprof/profile`
works. Who may read them (--debug-from) is decided by the address of the connection, not by what a
proxy says of other addresses.

Spec: nsqd-http, section 7.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Final

import trio
from quart import Response, request

from trionsq.debug import process, tasks
from trionsq.debug.process import UnderWayError, free_memory, process_metrics
from trionsq.debug.profile import NotInMainThreadError, pprof_bytes, profile
from trionsq.options import parse_int
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError, json_bytes
from trionsq.web.request import query
from trionsq.web.responses import attachment, empty, html, plain
from trionsq.web.sites import is_loopback

__all__ = ["OPEN_PATHS", "Health", "Pprof", "as_text", "guarded"]

_FILE_TYPE: Final = "application/octet-stream"
# The original's duration when the parameter is missing or malformed.
_SECONDS: Final = 30
_MAX_SECONDS: Final = 120
_MAX_TASKS: Final = 2_000
_MAX_TYPES: Final = 50
_NAMES: Final = ("block", "goroutine", "heap", "threadcreate")
OPEN_PATHS: Final = frozenset({"/live", "/ready"})
_REFUSED: Final = "/debug is not open to this address, see --debug-from"


# Health


class Health:
    """The endpoints of one daemon."""

    def __init__(self, unready: Callable[[], str | None]) -> None:
        """``unready`` returns why the daemon cannot do its work now, None if it can."""
        self._unready = unready

    def endpoints(self) -> list[Endpoint]:
        return [("GET", "/live", self.live), ("GET", "/ready", self.ready)]

    async def live(self) -> Response:
        """GET /live: the event loop runs. Without a response, restart the daemon."""
        return _answer(200, {"status": "live"})

    async def ready(self) -> Response:
        """GET /ready: 200, or 503 and the reason; send no traffic while it is not 200."""
        reason = self._unready()
        if reason is None:
            return _answer(200, {"status": "ready"})
        return _answer(503, {"status": "not ready", "reason": reason})


def _answer(status: int, document: dict[str, str]) -> Response:
    return Response(
        json_bytes(document),
        status,
        headers={"Cache-Control": "no-store"},
        content_type="application/json; charset=utf-8",
    )


# Debug pages


def guarded(endpoint: Endpoint, allowed_clients: Callable[[], str]) -> Endpoint:
    """Return ``endpoint`` with a check of the client's address.

    ``allowed_clients`` is called for each request: ``loopback``, ``any`` or ``none``. Other clients
    get 403. A measurement that is already under way gives 409.
    """
    method, path, function = endpoint

    @wraps(function)
    async def answer() -> Response:
        if not _is_allowed(allowed_clients()):
            raise HttpError(403, _REFUSED)
        try:
            return await function()
        except UnderWayError as error:
            raise HttpError(409, f"{str(error).upper()}_UNDER_WAY") from None
        except NotInMainThreadError:
            raise HttpError(501, "PROFILE_NEEDS_THE_MAIN_THREAD") from None

    return method, path, answer


def _is_allowed(allowed_clients: str) -> bool:
    # Unix sockets have no address.
    peer = request.scope.get("client")
    is_local = peer is None or is_loopback(peer[0])
    return allowed_clients == "any" or (allowed_clients == "loopback" and is_local)


class Pprof:
    """The endpoints of /debug/pprof."""

    def __init__(self, index_path: str, more: str = "") -> None:
        """``more`` is HTML below the index."""
        self._index_path = index_path
        self._more = more

    def endpoints(self) -> Iterable[Endpoint]:
        """Return the endpoints that every daemon has."""
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
        """Return the endpoints that only nsqd has."""
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
        """GET and POST /debug/pprof/symbol: our profiles contain the names of functions."""
        return plain(200, "num_symbols: 1\n")

    async def profile(self) -> Response:
        """GET /debug/pprof/profile."""
        seconds = _integer(b"seconds") or _SECONDS
        samples = await profile(min(seconds, _MAX_SECONDS) if seconds > 0 else _SECONDS)
        body = await trio.to_thread.run_sync(pprof_bytes, samples)
        return attachment(body, "profile", _FILE_TYPE)

    async def heap(self) -> Response:
        """GET /debug/pprof/heap."""
        metrics = await trio.to_thread.run_sync(process_metrics)
        counts = await trio.to_thread.run_sync(process.census, _MAX_TYPES)
        document = {"process": metrics, "objects": process.census_document(counts)}
        return _report("heap", as_text(document), end="\n")

    async def goroutine(self) -> Response:
        """GET /debug/pprof/goroutine: all tasks and threads, which are nearest to goroutines."""
        tree = await tasks.task_tree(limit=_MAX_TASKS, stacks=True)
        body = await trio.to_thread.run_sync("".join, tasks.text_pieces(tree))
        return _report("goroutine", [body, "\n", *process.thread_lines(stacks=True)])

    async def block(self) -> Response:
        """GET /debug/pprof/block: not measured, so it is empty."""
        return _report("block", ["not measured; /debug/tasks shows what each task waits for\n"])

    async def threadcreate(self) -> Response:
        """GET /debug/pprof/threadcreate."""
        return _report("threadcreate", process.thread_lines(stacks=_integer(b"debug") > 1))

    async def set_block_rate(self) -> Response:
        """PUT /debug/setblockrate: the rate is checked, and has no effect."""
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


def _integer(name: bytes) -> int:
    """Return an integer parameter; 0 if it is missing or malformed."""
    try:
        return parse_int(query().get(name, b"").decode(errors="replace"))
    except ValueError:
        return 0


def _report(name: str, pieces: Iterable[str], end: str = "") -> Response:
    """Return a page if the parameter ``debug`` asks for one, else a file."""
    body = "".join(piece + end for piece in pieces)
    if _integer(b"debug") > 0:
        return plain(200, body)
    return attachment(body.encode(), name, _FILE_TYPE)


def as_text(document: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield the lines of a JSON document for people."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from as_text(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{indent}{key}:"
            for item in value:
                fields = "  ".join(f"{name}={_short(each)}" for name, each in item.items())
                yield f"{indent}  {fields}"
        else:
            yield f"{indent}{key}: {_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(map(_short, value)) or "none"
    return "-" if value is None else str(value)
