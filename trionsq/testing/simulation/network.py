"""A network between machines: connections with latency that can be cut, reset and stalled.

A connection has two ends. Bytes leave the sending buffer of one end, travel for the latency of the
link, and arrive in the receiving buffer of the other one, which holds a limited number of bytes.
Order is kept within a connection and not between two of them. As TCP does, a link that is cut loses
nothing at first: bytes arrive when it is healed, unless one end has given up by then.
"""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from trionsq.testing.streams import MemoryStream, MemoryTransport, Pipe

if TYPE_CHECKING:
    from trionsq.testing.simulation.machine import Machine, Process
    from trionsq.testing.simulation.world import World

__all__ = ["End", "Network"]

_CONNECT_S: Final = 130.0
"""The kernel gives up a connect to a machine that does not answer."""
_MAX_SEGMENT_BYTES: Final = 16 * 1024


def _error(number: int) -> OSError:
    kind = {errno.ECONNRESET: ConnectionResetError, errno.ECONNREFUSED: ConnectionRefusedError}
    return kind.get(number, OSError)(number, os.strerror(number))


class Network:
    """Connects the machines of a world.

    Attributes:
        latency_s: least and most of a link's latency; drawn for each segment.
        capacity_bytes: of each buffer of new connections.
        user_timeout_s: an end whose bytes find no way for this long gives up (TCP_USER_TIMEOUT).
    """

    def __init__(
        self,
        world: World,
        *,
        latency_s: tuple[float, float] = (0.0001, 0.002),
        capacity_bytes: int = 64 * 1024,
        user_timeout_s: float = 30.0,
    ) -> None:
        self.world = world
        self.latency_s = latency_s
        self.capacity_bytes = capacity_bytes
        self.user_timeout_s = user_timeout_s
        self._slow: dict[tuple[str, str], float] = {}
        self._cut: set[tuple[str, str]] = set()
        self._ports = 50_000
        self._ends: dict[End, None] = {}

    def __repr__(self) -> str:
        return f"<Network {len(self._ends) // 2} connections, {len(self._cut)} links cut>"

    # Faults

    def cut(self, source: str, target: str) -> None:
        """From now on nothing arrives from one machine at another; the way back is another link."""
        self.world.note("cut", source, target)
        self._cut.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Mend what `cut` did; what waits is sent again."""
        if (source, target) in self._cut:
            self.world.note("heal", source, target)
            self._cut.remove((source, target))
            for end in list(self._ends):
                if end.is_link(source, target):
                    end.send_again()

    def slow_down(self, source: str, target: str, extra_s: float) -> None:
        """Add to the latency of a link; 0 ends that."""
        self.world.note("slow", source, target, extra_s)
        self._slow[source, target] = extra_s

    def connections(self, source: str, target: str) -> list[End]:
        """The ends at ``source`` of open connections to ``target``."""
        return [end for end in self._ends if end.is_link(source, target) and end.is_open]

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing arrives from one machine at another."""
        return (source, target) in self._cut

    def latency(self, source: str, target: str) -> float:
        """Draw the time that a segment takes, in seconds."""
        return self.world.random.uniform(*self.latency_s) + self._slow.get((source, target), 0.0)

    # Connections

    def listen(self, process: Process, port: int, accept: Callable[[End], object]) -> None:
        """Accept connections to a port of the process' machine, until the process ends."""
        process.machine.listeners[port] = accept

    def close_port(self, process: Process, port: int) -> None:
        """Accept no more connections to a port."""
        process.machine.listeners.pop(port, None)

    async def connect(self, process: Process, host: str, port: int) -> End:
        """Connect from a process to a port of a machine.

        Raises:
            OSError: refused, not reachable, or no such host.
        """
        dial = _Dial(self, process, host, port)
        try:
            with trio.move_on_after(_CONNECT_S):
                await dial.answered.wait()
                if dial.end is not None:
                    end, dial.end = dial.end, None
                    return end
                raise dial.error or _error(errno.ECONNREFUSED)
            raise _error(errno.ETIMEDOUT)
        finally:
            dial.give_up()

    def join(self, client: Process, server: Machine, port: int) -> tuple[End, End]:
        """Make the two ends of a new connection."""
        assert server.process is not None
        self._ports += 1
        near = End(self, client, f"{client.machine.name}:{self._ports}")
        far = End(self, server.process, f"{server.name}:{port}")
        near.peer_end, far.peer_end = far, near
        near.transport.peer, far.transport.peer = far.address, near.address
        near.transport.host, far.transport.host = server.name, client.machine.name
        for end in (near, far):
            self._ends[end] = None
            end.machine.ends[end] = None
        return near, far

    def forget(self, end: End) -> None:
        """An end is closed, and all of its bytes have arrived or never will."""
        self._ends.pop(end, None)
        end.machine.ends.pop(end, None)


class _Dial:
    """A connect under way."""

    def __init__(self, network: Network, process: Process, host: str, port: int) -> None:
        self.answered = trio.Event()
        self.end: End | None = None
        self.error: OSError | None = None
        self._network = network
        self._world = network.world
        self._process = process
        self._host = host
        self._port = port
        self._given_up = False
        if host not in self._world.machines:
            self._finish(None, OSError(errno.ENOENT, f"no such host: {host}"))
        else:
            latency_s = network.latency(process.machine.name, host)
            self._world.after(latency_s, self._arrive)

    def give_up(self) -> None:
        self._given_up = True
        if self.end is not None:
            self.end.transport.close()
            self.end = None

    def _arrive(self) -> None:
        """The request for a connection is at the other machine, if the link lets it through."""
        network, here = self._network, self._process.machine
        there = self._world.machines[self._host]
        if self._given_up or not self._process.is_alive:
            return
        if not there.is_up or network.is_cut(here.name, self._host):
            self._world.after(1.0, self._arrive)  # sent again
            return
        server = there.process
        accept = there.listeners.get(self._port)
        back_s = network.latency(self._host, here.name)
        if network.is_cut(self._host, here.name):
            self._world.after(1.0, self._arrive)
        elif server is None or accept is None:
            self._world.after(back_s, self._finish, None, _error(errno.ECONNREFUSED))
        elif server.is_stopped:
            self._world.after(0.05, self._arrive)  # the queue of connections waits for it
        else:
            near, far = network.join(self._process, there, self._port)
            self._world.note("connect", near.address, far.address)
            server.call(accept, far)
            self._world.after(back_s, self._finish, near, None)

    def _finish(self, end: End | None, error: OSError | None) -> None:
        if self._given_up or not self._process.is_alive:
            if end is not None:
                end.close_by_kernel()
            return
        self.end, self.error = end, error
        self._process.call(self.answered.set)


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

    def __init__(self, network: Network, process: Process, address: str) -> None:
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
        self.process.call_kernel(self._incoming.break_with, _error(number))
        self.process.call_kernel(self._outgoing.break_with, _error(number))
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
                self._outgoing.break_with(_error(errno.ECONNRESET))
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
