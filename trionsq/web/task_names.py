"""Names of tasks that users of a server understand, by the function that a task runs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from trio.lowlevel import Task

from trionsq.daemon.listener import bound_address

__all__ = ["COMMON", "Locals", "Names", "TaskName", "always", "namer", "peer_of"]

Locals = Mapping[str, Any]
Names = Mapping[str, Callable[[Locals], str]]
"""By what trio calls the function. The locals of a task's outermost function are given."""
TaskName = Callable[[Task], str | None]


def always(name: str) -> Callable[[Locals], str]:
    """The same name whatever the locals are."""
    return lambda found: name


def peer_of(sock: socket.socket) -> str:
    """The other end of a connection, for a name."""
    try:
        peer = sock.getpeername()
    except OSError:
        return "(gone)"
    if sock.family == socket.AF_UNIX:
        return "@"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listener(found: Locals) -> str:
    try:
        return f"listener {bound_address(found['sock'])[0]}"
    except OSError:
        return "listener (closed)"


COMMON: Final[Names] = {
    "<init>": always("trio"),
    "<TrioToken.run_sync_soon task>": always("calls from threads"),
    "trionsq.daemon.listener.accept_forever": _listener,
    "trionsq.daemon.looplag.watch_loop_lag": always("event loop lag"),
    "trionsq.web.serve.serve_web": always("http server"),
    "trionsq.web.serve.WebServer.hold_connections": always("http clients"),
    "trionsq.web.serve.WebServer.serve": lambda found: f"http client {peer_of(found['accepted'])}",
    "hypercorn.trio.tcp_server.TCPServer._idle_timeout": always("http idle time"),
    "hypercorn.trio.task_group._handle": always("http request"),
    "quart_trio.asgi.TrioASGIHTTPConnection.handle_messages": always("http request's body"),
    "quart_trio.asgi.TrioASGIHTTPConnection.handle_request": always("http request's answer"),
}


def namer(named: Names) -> TaskName:
    """What gives a task its name by that table, None if there is no better one than trio's."""

    def task_name(task: Task) -> str | None:
        make = named.get(task.name)
        frame = getattr(task.coro, "cr_frame", None)
        if make is None:
            return None
        # Python makes a dictionary of the locals and keeps it with the frame, so this is done
        # only for functions whose locals live as long as the task anyway.
        try:
            return make(frame.f_locals if frame is not None else {})
        except (KeyError, AttributeError):
            return None  # it has not got as far as to have them

    return task_name
