"""A running broker, and its HTTP API in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import data_folder
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import open_state

StartBroker = Callable[..., Awaitable[Broker]]


@pytest.fixture
def start_broker(nursery: trio.Nursery) -> StartBroker:
    """Starts a broker that runs until the test ends."""

    async def start(options: NsqdOptions, disk: SimulatedDisk | None = None) -> Broker:
        folder = data_folder(options, disk or SimulatedDisk(), InlineBackground())
        broker = Broker(options, folder, open_state=open_state)
        await nursery.start(broker.run)
        return broker

    return start


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker(NsqdOptions(mem_queue_size=10, max_msg_size=100, max_body_size=1000))
