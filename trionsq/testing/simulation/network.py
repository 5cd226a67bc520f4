"""A network between machines: links with a latency, which can be slow and cut, one way or both.

Order is kept within a connection and not between two of them. As with TCP, a link that is cut loses
nothing at first: bytes arrive when it is mended, unless one end has given up by then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

import trio

from trionsq.testing.simulation.connection import End, error_of
from trionsq.testing.simulation.machine import Machine, Process
from trionsq.testing.simulation.world import World

__all__ = ["Network"]

_CONNECT_S: Final = 130.0
"""The kernel gives up a connect to a machine that does not answer."""


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

    def ends_at(self, name: str) -> list[End]:
        """All ends at a machine, those that are still closing included."""
        return [end for end in self._ends if end.machine.name == name]

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
                raise dial.error or error_of(errno.ECONNREFUSED)
            raise error_of(errno.ETIMEDOUT)
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
        assert isinstance(there, Machine)
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
            self._world.after(back_s, self._finish, None, error_of(errno.ECONNREFUSED))
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
