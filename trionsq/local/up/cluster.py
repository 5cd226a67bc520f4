"""A cluster from start to stop: parts start one after the other and stop in reverse order.

Tasks: one for each part, one for signals. A signal or a failed part cancels `Cluster.up`; the parts
go on running, and `stop` stops them in order. A second signal cancels everything.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import trio

from trionsq.daemon.gcpolicy import start_collecting
from trionsq.daemon.signals import wait_second_signal
from trionsq.local.up.options import Addresses, Part, Ports, UpError

__all__ = ["Cluster", "Hosting", "Member", "run_cluster"]

log = logging.getLogger("trionsq")


class Member:
    """A part of a running cluster.

    Attributes:
        part: the plan of it.
        ports: where it listens; a restart keeps them.
        pid: of the process that runs it.
        flags: its command line.
        stop: set to stop it.
        ended: set when it has stopped.
    """

    def __init__(self, part: Part, cluster: Cluster) -> None:
        self.part = part
        self.ports = part.ports
        self.pid = os.getpid()
        self.stop = trio.Event()
        self.ended = trio.Event()
        self._cluster = cluster

    def __repr__(self) -> str:
        state = "ended" if self.ended.is_set() else "stopping" if self.stop.is_set() else "up"
        return f"<Member {self.part.name}: {state}>"

    @property
    def flags(self) -> list[str]:
        return self.part.flags(self.ports, self._cluster.addresses)


class Hosting(Protocol):
    """Runs a member until its stop is set; started when it listens on the given ports.

    Raises:
        UpError: it can't start; later: it failed, or did not stop cleanly.
    """

    async def __call__(self, member: Member, *, task_status: trio.TaskStatus[Ports]) -> None: ...


class Cluster:
    """The running cluster.

    Attributes:
        members: in the order of their start.
        failures: one line for each failure.
        up: cancelled to stop the cluster.
    """

    def __init__(self, hosting: Hosting, tasks: trio.Nursery) -> None:
        self.members: list[Member] = []
        self.failures: list[str] = []
        self.up = trio.CancelScope()
        self._hosting = hosting
        self._tasks = tasks

    @property
    def addresses(self) -> dict[str, Addresses]:
        """The addresses of the running parts, by name."""
        return {member.part.name: member.part.addresses(member.ports) for member in self.members}

    async def start(self, parts: Sequence[Part]) -> None:
        """Start all parts; stop at the first that can't be started.

        Raises:
            UpError: a part can't be started.
        """
        for part in parts:
            if part.data_path:
                try:
                    os.makedirs(part.data_path, exist_ok=True)
                except OSError as error:
                    raise UpError(f"{part.name}: can't create its folder: {error}") from None
            member = Member(part, self)
            member.ports = await self._tasks.start(self._run_part, member, name=part.name)
            self.members.append(member)

    async def _run_part(self, member: Member, task_status: trio.TaskStatus[Ports]) -> None:
        try:
            await self._hosting(member, task_status=task_status)
        except UpError as error:
            if member not in self.members:
                raise
            self.failures.append(f"{member.part.name}: {error}")
            self.up.cancel()
        finally:
            member.ended.set()

    async def stop(self) -> None:
        """Stop all parts in order, the last kind first; messages are saved."""
        for kind in dict.fromkeys(member.part.kind for member in reversed(self.members)):
            concerned = [member for member in self.members if member.part.kind == kind]
            for member in concerned:
                member.stop.set()
            for member in concerned:
                await member.ended.wait()


async def run_cluster(
    parts: Sequence[Part], hosting: Hosting, body: Callable[[Cluster], Awaitable[object]]
) -> int:
    """Run a cluster until SIGINT or SIGTERM, or until *body*, started when all is up, returns.

    Returns:
        The exit code: 0 after a clean end; 1 if a part could not be started, failed or could not
        save everything, or after a second signal. The log says why.
    """
    trio.lowlevel.current_task().name = "cluster"
    start_collecting()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as tasks:
            cluster = Cluster(hosting, tasks)
            tasks.start_soon(_watch_signals, signals, cluster, tasks.cancel_scope, name="signals")
            try:
                with cluster.up:
                    await cluster.start(parts)
                    await body(cluster)
            except UpError as error:
                cluster.failures.append(str(error))
            finally:
                await cluster.stop()
            tasks.cancel_scope.cancel()
    for line in cluster.failures:
        log.critical("%s", line)
    return 1 if cluster.failures else 0


async def _watch_signals(
    signals: AsyncIterator[int], cluster: Cluster, everything: trio.CancelScope
) -> None:
    await anext(signals)
    log.info("stopping; a second signal stops at once")
    cluster.up.cancel()
    await wait_second_signal(signals)
    cluster.failures.append("stopped at once by a second signal")
    everything.cancel()
