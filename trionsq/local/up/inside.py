"""A part as a task of this process."""

from __future__ import annotations

import logging

import trio

from trionsq.daemon.log import set_task_prefix
from trionsq.local.up.cluster import Member
from trionsq.local.up.daemons import KINDS
from trionsq.local.up.errors import UpError, start_error
from trionsq.local.up.parts import Ports
from trionsq.logtext import first_error

__all__ = ["host_inside"]

log = logging.getLogger("trionsq")


async def host_inside(member: Member, *, task_status: trio.TaskStatus[Ports]) -> None:
    """Run a member in this task until its stop is set; started when it listens.

    Raises:
        UpError: it can't start, it failed, or something could not be saved.
    """
    name = member.part.name
    set_task_prefix(f"[{name}] ")
    try:
        async with KINDS[member.part.kind](member.flags) as ports:
            task_status.started(ports)
            await member.stop.wait()
    except Exception as error:
        if reason := start_error(error):
            raise UpError(f"{name}: {reason}") from None
        leaf = first_error(error)
        if isinstance(leaf, UpError):
            raise leaf from None
        log.error("a defect ends it", exc_info=error)
        raise UpError(f"ended by a defect: {leaf!r}") from error
