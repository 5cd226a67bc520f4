"""Runs one daemon of each kind; and a part as a task of this process."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import trio

from admin.options import NsqadminOptions
from admin.options import OptionsError as AdminOptionsError
from lookupd.daemon import running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from trionsq.broker.options import NsqdOptions, OptionsError, validated
from trionsq.daemon.command import read_options
from trionsq.daemon.listener import ListenError
from trionsq.daemon.log import set_task_prefix
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.local.up.cluster import Member
from trionsq.local.up.options import Ports, UpError
from trionsq.logtext import first_error
from trionsq.storage.folder import DataPathError
from trionsq.storage.metadata import MetadataError

__all__ = ["KINDS", "Daemon", "host_inside", "start_error"]

log = logging.getLogger("trionsq")

Daemon = Callable[[Sequence[str]], AbstractAsyncContextManager[Ports]]
"""Serves inside the context, by its flags. Stops in order when left; cancelled, at once."""


@asynccontextmanager
async def _nsqlookupd(flags: Sequence[str]) -> AsyncIterator[Ports]:
    options, _ = read_options(NsqlookupdOptions, "nsqlookupd", flags)
    async with running_nsqlookupd(options) as lookupd:
        yield Ports(lookupd.tcp_port, lookupd.http_port)


@asynccontextmanager
async def _nsqd(flags: Sequence[str]) -> AsyncIterator[Ports]:
    """Raises UpError at the end if something could not be saved."""
    options, warnings = read_options(NsqdOptions, "nsqd", flags)
    options = validated(options)
    for warning in warnings:
        log.warning("%s", warning)
    async with running_nsqd(options) as broker:
        yield Ports(broker.ports.tcp, broker.ports.http)
    for line in broker.unsaved:
        log.error("NSQ: could not save: %s", line)
    if broker.unsaved:
        raise UpError("could not save everything, see the log lines above")


@asynccontextmanager
async def _nsqadmin(flags: Sequence[str]) -> AsyncIterator[Ports]:
    # Imported here: other parts, perhaps processes of their own, do not need its libraries.
    from admin.daemon import running_nsqadmin

    options, _ = read_options(NsqadminOptions, "nsqadmin", flags)
    async with running_nsqadmin(options) as dashboard:
        yield Ports(0, dashboard.http_port)


KINDS: Final[Mapping[str, Daemon]] = {
    "nsqlookupd": _nsqlookupd,
    "nsqd": _nsqd,
    "nsqadmin": _nsqadmin,
}


_IN_USE = (
    "another program has that port, perhaps another cluster (ss -ltnp names it): stop it, or "
    "choose other ports by --port, --lookupd-port and --admin-port (0: any free ones)"
)


def start_error(error: BaseException) -> str | None:
    """One line for what commonly keeps a daemon from starting; None: a defect."""
    leaf = first_error(error)
    if isinstance(leaf, ListenError):
        cause = leaf.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            return f"{leaf}: {_IN_USE}"
        return str(leaf)
    if isinstance(leaf, AdminOptionsError | DataPathError | MetadataError | OptionsError):
        return str(leaf)
    return None


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
        log.error("stopped by an unexpected error", exc_info=error)
        raise UpError(f"unexpected error: {leaf!r}") from error
