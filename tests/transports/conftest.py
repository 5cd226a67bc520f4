"""A poller and its connections."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transports.readers import LIMIT_S
from trionsq.transports.poller import Poller


@pytest.fixture(params=[0, 2], ids=["all", "but-two"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many connections wait by themselves, for the system does not take them."""
    left = count = int(request.param)
    add = Poller.add

    def add_later(self: Poller, fd: int, watch: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise OSError(errno.ENOSPC, "no more watches")
        add(self, fd, watch)

    monkeypatch.setattr(Poller, "add", add_later)
    return count


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is left to its own task, however slow the machine is."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_TURN_S", LIMIT_S)


@pytest.fixture
async def poller(nursery: trio.Nursery) -> Poller:
    made = Poller()
    nursery.start_soon(made.run)
    await wait_all_tasks_blocked()
    return made


@pytest.fixture
async def closing() -> AsyncIterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
