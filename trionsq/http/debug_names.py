"""Names of tasks that a user of the broker understands.

By the function that a task runs; a test sees to it that none of a running nsqd's is unknown.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from trio.lowlevel import Task

from trionsq.listener import bound_address

__all__ = ["NAMED", "task_name"]

Locals = Mapping[str, Any]


def _client(found: Locals) -> str:
    return f"client {found['self'].peer}"


def _sibling(found: Locals) -> str:
    return f"client {found['self'].peer} {found['task'].__name__.strip('_')}"


def _channel(found: Locals) -> str:
    return f"channel {found['self'].topic.name}:{found['self'].name}"


def _http_client(found: Locals) -> str:
    sock: socket.socket = found["accepted"]
    try:
        peer = sock.getpeername()
    except OSError:
        return "http client (gone)"
    if sock.family == socket.AF_UNIX:
        return "http client @"
    host, port = peer[:2]
    return f"http client [{host}]:{port}" if ":" in host else f"http client {host}:{port}"


def _listener(found: Locals) -> str:
    try:
        return f"listener {bound_address(found['sock'])[0]}"
    except OSError:
        return "listener (closed)"


def _always(name: str) -> Callable[[Locals], str]:
    return lambda found: name


# By what trio calls the function. The locals of a task's outermost function are given.
NAMED: Final[Mapping[str, Callable[[Locals], str]]] = {
    "<init>": _always("trio"),
    "<TrioToken.run_sync_soon task>": _always("calls from threads"),
    "trionsq.cli.daemon.run_nsqd": _always("nsqd"),
    "trionsq.cli.daemon._force": _always("second signal"),
    "trionsq.cli.daemon._run_broker": _always("broker"),
    "trionsq.cli.daemon._serve_http": _always("http server"),
    "trionsq.broker.broker.Broker.run": _always("broker"),
    "trionsq.broker.background.ThreadBackground.run": _always("disk jobs"),
    "trionsq.broker.background.ThreadBackground._run": _always("disk job"),
    "trionsq.listener.accept_forever": _listener,
    "trionsq.broker.metadata.MetadataKeeper.run": _always("metadata"),
    "trionsq.broker.metadata.MetadataKeeper.run_id_reserve": _always("message id reserve"),
    "trionsq.broker.timers.run_queue_scan": _always("queue scan"),
    "trionsq.broker.timers.run_heartbeats": _always("heartbeats"),
    "trionsq.broker.timers.run_disk_syncs": _always("disk syncs"),
    "trionsq.broker.timers.run_disk_retries": _always("disk retries"),
    "trionsq.broker.lookup.Lookups.run": _always("nsqlookupds"),
    "trionsq.broker.lookup_peer.LookupPeer.run": lambda found: f"nsqlookupd {found['self'].shown}",
    "trionsq.broker.lookup_channels.ask_for_channels.<locals>.ask": (
        lambda found: f"question for channels to {found['info'].http_address}"
    ),
    "trionsq.broker.topic.Topic.run": lambda found: f"topic {found['self'].name}",
    "trionsq.broker.channel.Channel.run": _channel,
    "trionsq.broker.client.Client.serve": _client,
    "trionsq.broker.client.Client._sibling": _sibling,
    "trionsq.web.serve.WebServer.hold_connections": _always("http clients"),
    "trionsq.web.serve.WebServer.serve": _http_client,
    "trionsq.http.short_way.ShortWay.watch": _always("http time-outs"),
    "hypercorn.trio.tcp_server.TCPServer._idle_timeout": _always("http idle time"),
    "hypercorn.trio.task_group._handle": _always("http request"),
    "quart_trio.asgi.TrioASGIHTTPConnection.handle_messages": _always("http request's body"),
    "quart_trio.asgi.TrioASGIHTTPConnection.handle_request": _always("http request's answer"),
}


def task_name(task: Task) -> str | None:
    """A name for the task, None if there is no better one than trio's."""
    make = NAMED.get(task.name)
    frame = getattr(task.coro, "cr_frame", None)
    if make is None:
        return None
    # Python makes a dictionary of the locals and keeps it with the frame, so this is done only
    # for functions whose locals live as long as the task anyway.
    try:
        return make(frame.f_locals if frame is not None else {})
    except (KeyError, AttributeError):
        return None  # it has not got as far as to have them
