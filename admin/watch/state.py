"""The file of --state-file: nodes with their last figures, marks, and since when problems exist.

It is written every `SAVE_EVERY_S` and at stop: a new file replaces the old one, so a crash leaves
one of them. A file that makes no sense is moved aside, and nsqadmin starts without it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio
from msgspec import Raw, Struct

from admin.cluster.shapes import Producer
from admin.watch.incidents import Incidents
from admin.watch.known import KnownNodes
from admin.watch.marks import Mark, Marks
from admin.watch.node import Counted, Counters, WatchedNode
from admin.watch.snapshot import NodeRow, Restart

__all__ = ["SAVE_EVERY_S", "StateFile"]

log = logging.getLogger("trionsq")

SAVE_EVERY_S: Final = 60.0
"""Interval of writing the file, in seconds."""
_VERSION: Final = 1
# Time for the last writing, when nsqadmin stops.
_LAST_S: Final = 2.0
_MAX_BYTES: Final = 256 * 1024 * 1024


class _Node(Struct):
    producer: Producer
    answered_s: float | None = None
    start_time: int = 0
    row: NodeRow | None = None
    restart: Restart | None = None
    topics: dict[str, dict[str, Counted]] = {}


class _State(Struct):
    version: int
    nodes: Sequence[Raw]
    marks: Sequence[Mark] = ()
    incidents: Sequence[tuple[str, str, float, float]] = ()


class StateFile:
    """Reads and writes the file; "" as its path: does nothing."""

    def __init__(self, path: str, nodes: KnownNodes, marks: Marks, incidents: Incidents) -> None:
        self._path = path
        self._nodes = nodes
        self._marks = marks
        self._incidents = incidents
        self._failed = False

    async def load(self) -> None:
        """Restore what the file has. Without a file, or with a bad one, nothing."""
        if not self._path:
            return
        try:
            body = await trio.to_thread.run_sync(_read, self._path)
            if body is None:
                return
            state = msgspec.json.decode(body, type=_State)
            if state.version != _VERSION:
                raise ValueError(f"version {state.version}")
            nodes = []
            for raw in state.nodes:
                nodes.append(_restored(msgspec.json.decode(raw, type=_Node)))
                await trio.lowlevel.checkpoint()
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.error("STATE: failed to read %s: %s; starting without it", self._path, error)
            await trio.to_thread.run_sync(_move_aside, self._path)
            return
        self._nodes.restore(nodes)
        self._marks.restore(state.marks)
        self._incidents.restore(state.incidents)
        log.info("STATE: loaded %d nodes from %s", len(nodes), self._path)

    async def run(self) -> None:
        """Write the file now and then until cancelled, and once more then."""
        if not self._path:
            return
        try:
            while True:
                await trio.sleep(SAVE_EVERY_S)
                await self.save()
        finally:
            with trio.move_on_after(_LAST_S, shield=True):
                await self.save()

    async def save(self) -> None:
        """Write the file. An error is logged once, until it is over."""
        nodes = []
        for node in list(self._nodes.by_name.values()):
            if node.answered_wall_s is not None or not node.expected:
                nodes.append(Raw(msgspec.json.encode(_saved(node))))
            await trio.lowlevel.checkpoint()
        state = _State(_VERSION, nodes, self._marks.all(), self._incidents.state())
        body = msgspec.json.encode(state)
        try:
            await trio.to_thread.run_sync(_replace, self._path, body)
        except OSError as error:
            if not self._failed:
                log.error("STATE: failed to write %s: %s", self._path, error)
            self._failed = True
        else:
            self._failed = False


def _saved(node: WatchedNode) -> _Node:
    topics = {name: dict(channels) for name, channels in node.counters.topics.items()}
    return _Node(
        node.producer, node.answered_wall_s, node.start_time, node.answered, node.restart, topics
    )


def _restored(saved: _Node) -> WatchedNode:
    return WatchedNode(
        saved.producer,
        registered=False,
        counters=Counters(saved.topics, saved.start_time),
        answered_wall_s=saved.answered_s,
        start_time=saved.start_time,
        answered=saved.row,
        restart=saved.restart,
    )


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(body) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return body


def _replace(path: str, body: bytes) -> None:
    new = f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _move_aside(path: str) -> None:
    try:
        os.replace(path, Path(f"{path}.bad"))
    except OSError as error:
        log.error("STATE: failed to move %s aside: %s", path, error)
