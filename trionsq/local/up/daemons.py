"""How to run one daemon of each kind."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from admin.options import NsqadminOptions
from lookupd.daemon import running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from trionsq.broker.options import NsqdOptions, validated
from trionsq.daemon.command import read_options
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.local.up.errors import UpError
from trionsq.local.up.parts import Ports

__all__ = ["KINDS", "Daemon"]

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
        log.error("NSQ: could not be saved: %s", line)
    if broker.unsaved:
        raise UpError("could not save everything, see above")


@asynccontextmanager
async def _nsqadmin(flags: Sequence[str]) -> AsyncIterator[Ports]:
    # The other parts, each a process perhaps, do without its libraries.
    from admin.daemon import running_nsqadmin

    options, _ = read_options(NsqadminOptions, "nsqadmin", flags)
    async with running_nsqadmin(options) as dashboard:
        yield Ports(0, dashboard.http_port)


KINDS: Final[Mapping[str, Daemon]] = {
    "nsqlookupd": _nsqlookupd,
    "nsqd": _nsqd,
    "nsqadmin": _nsqadmin,
}
