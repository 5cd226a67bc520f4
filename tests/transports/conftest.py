"""A poller and its connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.transports.readers import LIMIT_S
from trionsq.transports.poller import Poller


@pytest.fixture(params=[0, 2], ids=["all", "but-two"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many connections wait by themselves."""
    count: int = request.param
    monkeypatch.setattr("trionsq.transports.poller._MAX_ALONE", count)
    return count


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection waits by itself, however slow the machine is."""
    monkeypatch.setattr("trionsq.transports.poller._MAX_ALONE", 0)
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
