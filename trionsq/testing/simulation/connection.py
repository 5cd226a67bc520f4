"""A connection between two processes, by its two ends.

Bytes leave the sending buffer of one end, travel for the latency of the link, and arrive in the
receiving buffer of the other one, which holds a limited number of bytes. They keep their order. On
a link that is cut they wait, until it is mended or an end gives up.
"""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from trionsq.testing.simulation.machine import Process
from trionsq.testing.simulation.world import World
from trionsq.testing.streams import MemoryStream, MemoryTransport, Pipe

__all__ = ["End", "error_of"]

_MAX_SEGMENT_BYTES: Final = 16 * 1024


class Links(Protocol):
    """What an end knows of the network."""

    world: World
    capacity_bytes: int
    user_timeout_s: float

    def latency(self, source: str, target: str) -> float:
        """Draw the time that a segment takes, in seconds."""

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing arrives from one machine at another."""

    def forget(self, end: End) -> None:
        """An end is closed, and all of its bytes have arrived or never will."""


def error_of(number: int) -> OSError:
    """The error of an errno, as the kernel raises it."""
    kind = {errno.ECONNRESET: ConnectionResetError, errno.ECONNREFUSED: ConnectionRefusedError}
    return kind.get(number, OSError)(number, os.strerror(number))


class _Buffer(Pipe):
    """A kernel's buffer of one end; tells the network about each change."""

    def __init__(self, capacity_bytes: int, changed: Callable[[], None]) -> None:
        super().__init__(capacity_bytes)
        self._tell = changed

    @property
    def is_ended(self) -> bool:
        """Whether the writer has ended."""
        return self._ended

    @property
    def is_abandoned(self) -> bool:
        """Whether the reader has closed."""
        return self._abandoned

    @property
    def error(self) -> OSError | None:
        """Why it is broken."""
        return self._error

    def write(self, data: bytes | memoryview) -> int:
        written = super().write(data)
        self._tell()
        return written

    def read(self, max_bytes: int) -> bytes | None:
        data = super().read(max_bytes)
        self._tell()
        return data

    def end(self) -> None:
        super().end()
        self._tell()

    def abandon(self) -> bool:
        was_unread = super().abandon()
        self._tell()
        return was_unread

    def reset(self) -> None:
        super().reset()
        self._tell()


class End:
    """One end of a connection.

    Attributes:
        process: whose end it is.
        machine: where it is.
        address: its ``host:port``.
        peer_end: the other end.
        transport: for code that uses a `Transport`; or:
        stream: for code that uses a trio stream.
        sent_bytes, arrived_bytes: that left this end, and that arrived here.
    """

    peer_end: End

    def __init__(self, network: Links, process: Process, address: str) -> None:
        self.process = process
        self.machine = process.machine
        self.address = address
        self.sent_bytes = self.arrived_bytes = 0
        self._network = network
        self._world = network.world
        self._incoming = _Buffer(network.capacity_bytes, self._made_room)
        self._outgoing = _Buffer(network.capacity_bytes, self._transmit)
        self.transport = MemoryTransport(self._incoming, self._outgoing)
        self.stream = MemoryStream(self._incoming, self._outgoing)
        # What has left this end, in order, and has not arrived: bytes, or the end of them.
        self._under_way: deque[bytes | None] = deque()
        self._under_way_bytes = 0
        self._last_arrival_s = 0.0
        self._fin_sent = False
        self._is_gone = False
        self._moving = False
        self._no_way_since_s = math.inf

    def __repr__(self) -> str:
        return f"<End {self.address} {self.transport!r}>"

    @property
    def is_open(self) -> bool:
        """Whether this end is neither broken nor closed."""
        return not (self._is_gone or self._incoming.error or self._incoming.is_abandoned)

    @property
    def has_vanished(self) -> bool:
        """Whether this end is gone: broken, or lost with its machine."""
        return self._is_gone

    def is_link(self, source: str, target: str) -> bool:
        """Whether this end sends over that link."""
        return self.machine.name == source and self.peer_end.machine.name == target

    # What happens to an end

    def break_with(self, number: int) -> None:
        """The connection is lost, as this end sees it; the other end hears nothing."""
        self._world.note("broken", self.address, number)
        self.process.call_kernel(self._incoming.break_with, error_of(number))
        self.process.call_kernel(self._outgoing.break_with, error_of(number))
        self._is_gone = True
        self._network.forget(self)

    def reset(self) -> None:
        """The connection is lost, as this end sees it, and the other end will hear of it."""
        self.break_with(errno.ECONNRESET)
        self._send_reset()

    def close_by_kernel(self) -> None:
        """The process is dead: the kernel closes the connection."""
        if self._is_gone:
            return
        unread = len(self._incoming) > 0
        with self.process.entered():
            if unread:
                self._outgoing.break_with(error_of(errno.ECONNRESET))
            else:
                self._outgoing.end()
            self._incoming.abandon()
        if unread:
            self._is_gone = True
            self._network.forget(self)
            self._send_reset()
        else:
            self._transmit()

    def vanish(self) -> None:
        """The machine lost its power: nothing arrives or leaves any more."""
        self._is_gone = True
        self._under_way.clear()
        self._network.forget(self)

    # Bytes

    def send_again(self) -> None:
        """The link was mended."""
        self._no_way_since_s = math.inf
        if self._under_way:
            self._world.after(self._latency(), self._arrive)
        self._transmit()

    def _latency(self) -> float:
        return self._network.latency(self.machine.name, self.peer_end.machine.name)

    def _is_cut(self) -> bool:
        return self._network.is_cut(self.machine.name, self.peer_end.machine.name)

    def _made_room(self) -> None:
        self.peer_end._transmit()

    def _transmit(self) -> None:
        """Move bytes from the sending buffer to the link, as far as the receiver has room."""
        if self._moving or self._is_gone:
            return
        self._moving = True
        try:
            self._move()
        finally:
            self._moving = False

    def _move(self) -> None:
        outgoing, peer = self._outgoing, self.peer_end
        if outgoing.error is not None:
            if not self._is_gone:
                self._is_gone = True
                self._network.forget(self)
                self._send_reset()
            return
        while len(outgoing) and not outgoing._stalled:
            # A closed end accepts everything: the answer is a reset.
            closed = peer._is_gone or peer._incoming.is_abandoned
            taken = len(peer._incoming) + self._under_way_bytes
            room = _MAX_SEGMENT_BYTES if closed else peer._incoming.capacity_bytes - taken
            if room <= 0:
                return
            data = outgoing._data[: min(room, _MAX_SEGMENT_BYTES)]
            del outgoing._data[: len(data)]
            self.sent_bytes += len(data)
            self._send(bytes(data))
            self.process.call_kernel(outgoing._changed.unpark_all)
        if outgoing.is_ended and not self._fin_sent:
            self._fin_sent = True
            self._send(None)

    def _send(self, data: bytes | None) -> None:
        self._under_way.append(data)
        self._under_way_bytes += len(data or b"")
        # Bytes do not overtake each other.
        arrival_s = max(self._world.now_s + self._latency(), self._last_arrival_s)
        self._last_arrival_s = arrival_s
        self._world.at(arrival_s, self._arrive)

    def _arrive(self) -> None:
        """All that is under way arrives, unless the link is cut."""
        if not self._under_way:
            return
        peer = self.peer_end
        if self._is_cut() or (peer._is_gone and not peer.machine.is_up):
            self._find_no_way()
            return
        data = self._under_way.popleft()
        self._under_way_bytes -= len(data or b"")
        size = -1 if data is None else len(data)
        self._world.note("bytes", self.address, peer.address, size)
        if peer._is_gone or (data is not None and peer._incoming.is_abandoned):
            peer._send_reset()
        elif data is None:
            peer.process.call_kernel(peer._incoming.end)
            self._forget_if_done()
            peer._forget_if_done()
        elif peer._incoming.error is None:
            peer.arrived_bytes += len(data)
            peer.process.call_kernel(Pipe.write, peer._incoming, data)
        if self._under_way and self._last_arrival_s <= self._world.now_s:
            self._world.after(0.0, self._arrive)

    def _find_no_way(self) -> None:
        if self._no_way_since_s == math.inf:
            self._no_way_since_s = since_s = self._world.now_s
            self._world.after(self._network.user_timeout_s, self._give_up, since_s)

    def _give_up(self, since_s: float) -> None:
        if self._no_way_since_s == since_s and not self._is_gone:
            self._world.counts["connection given up"] += 1
            self._under_way.clear()
            self.break_with(errno.ETIMEDOUT)

    def _send_reset(self) -> None:
        if self._incoming.is_abandoned:
            self._is_gone = True
            self._network.forget(self)
        if self.machine.is_up:
            self._world.after(self._latency(), self._arrive_reset)

    def _arrive_reset(self) -> None:
        if self._is_cut():
            return  # nobody sends it again
        if not self.peer_end._is_gone:
            self.peer_end._under_way.clear()
            self.peer_end.break_with(errno.ECONNRESET)

    def _forget_if_done(self) -> None:
        if self._fin_sent and not self._under_way and self._incoming.is_ended:
            if self._incoming.is_abandoned:
                self._is_gone = True
            self._network.forget(self)
