"""A part as a process of its own, restarted when it exits by itself.

No process outlives this one: each has a pipe from it, and stops when the pipe closes.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from typing import Final

import trio

from trionsq.local.up.cluster import Member
from trionsq.local.up.options import Ports, UpError

__all__ = ["host_process"]

log = logging.getLogger("trionsq")

_START_LIMIT_S: Final = 60.0
# An nsqd with a hanging disk gives up after a minute.
_STOP_LIMIT_S: Final = 90.0
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
# After this time a process counts as stable, and the pause starts again at the minimum.
_STEADY_S: Final = 60.0


async def host_process(member: Member, *, task_status: trio.TaskStatus[Ports]) -> None:
    """Run a member as a process until its stop is set; started when it listens.

    One that ends by itself is started again on the same ports, after 0.5 s, then after twice as
    long each time, at most 30 s. Cancelled, it kills the process.

    Raises:
        UpError: it can't be started the first time, or something could not be saved.
    """
    name = member.part.name
    life = _Life(member, task_status)
    pause_s = _FIRST_PAUSE_S
    while True:
        began = trio.current_time()
        try:
            ended = await life.run()
        except UpError as error:
            if not life.was_up:
                raise UpError(f"{name}: {error}") from None
            ended = str(error)
        if member.stop.is_set():
            if ended:
                raise UpError(f"did not stop cleanly: {ended}")
            return
        if trio.current_time() - began > _STEADY_S:
            pause_s = _FIRST_PAUSE_S
        log.error("%s exited (%s), restarting in %g s", name, ended or "exit 0", pause_s)
        with trio.move_on_after(pause_s):
            await member.stop.wait()
            return
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


class _Life:
    """The processes of a member, one after another."""

    def __init__(self, member: Member, task_status: trio.TaskStatus[Ports]) -> None:
        self._member = member
        self._task_status = task_status
        self.was_up = False

    async def run(self) -> str:
        """Start a process and wait for its end; how it ended, nothing if with exit code 0.

        Raises:
            UpError: it could not start.
        """
        part = self._member.part
        process = await trio.lowlevel.open_process(
            [
                # -P: the current folder may contain modules with the names of ours.
                *(sys.executable, "-P", "-m", "trionsq.local.up.child"),
                *(part.name, part.kind, *self._member.flags),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C reaches this process only, which stops the parts in order.
            process_group=0,
        )
        try:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._stop_when_asked, process, name=f"stop of {part.name}")
                error = await self._wait_until_up(process)
                await process.wait()
                tasks.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                if process.poll() is None:
                    process.kill()
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    assert pipe is not None
                    await pipe.aclose()
        ended = _how_it_ended(process.returncode)
        if error is not None:
            raise UpError(error or f"exited while starting ({ended or 'exit 0'})")
        return ended

    async def _wait_until_up(self, process: trio.Process) -> str | None:
        """None when it listens, else why not."""
        assert process.stdout is not None
        report = b""
        with trio.move_on_after(_START_LIMIT_S) as limit:
            async for more in process.stdout:
                report += more
        if limit.cancelled_caught:
            process.kill()
            return f"did not start within {_START_LIMIT_S:g} s"
        document = json.loads(report) if report else {"error": ""}
        if "error" in document:
            return str(document["error"])
        self._up(process.pid, Ports(**document))
        return None

    def _up(self, pid: int, ports: Ports) -> None:
        self._member.pid, self._member.ports = pid, ports
        log.info("%s is up, pid %d", self._member.part.name, pid)
        if not self.was_up:
            self.was_up = True
            self._task_status.started(ports)

    async def _stop_when_asked(self, process: trio.Process) -> None:
        await self._member.stop.wait()
        assert process.stdin is not None
        await process.stdin.aclose()
        await trio.sleep(_STOP_LIMIT_S)
        log.error("%s did not stop within %g s, killing it", self._member.part.name, _STOP_LIMIT_S)
        process.kill()


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.strsignal(-code) or f"signal {-code}"
    return f"exit {code}" if code else ""
