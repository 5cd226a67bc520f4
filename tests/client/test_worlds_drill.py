"""The same drill in each world: nsqd is killed twice under load, nsqlookupd is gone for a while,
and consumers are cancelled at random moments. What nsqd has confirmed is handled, nothing is
handled after a cancellation, and no task or thread is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest
import trio

from tests.client.worlds import in_thread, run_in, until
from tests.processes import free_address, running_nsqd, running_nsqlookupd
from tests.soak import by_level, in_short_soak
from trionsq.client import (
    Config,
    ConnectError,
    Consumer,
    Message,
    NotConnectedError,
    Producer,
    ProtocolError,
    blocking,
)

COUNT = by_level(test=20_000, short=20_000, full=200_000)
BATCH = 50
PUBLISHERS = 4
FAULTS = 3
TOPIC = "drilled"
LIMIT_S = 600
CONFIG = Config(max_in_flight=200, lookupd_poll_interval_s=0.2, backoff_multiplier_s=0.02)
# An OK means that the message is on the disk.
FLAGS = ("--storage=log", "--durability=always", "--state-interval=200ms", "--msg-timeout=2s")


class Account:
    """What became of the messages, and where the cluster is.

    Attributes:
        lookupd: HTTP address of nsqlookupd; nsqd: TCP address.
        confirmed, handled: bodies.
        cancellations: consumers that were ended.
        late: messages that a consumer's handler got after the consumer's end.
    """

    def __init__(self) -> None:
        self.lookupd = ""
        self.nsqd = ""
        self.confirmed: set[bytes] = set()
        self.handled: set[bytes] = set()
        self.cancellations = 0
        self.late = 0
        self.faults = 0

    @property
    def is_done(self) -> bool:
        return len(self.confirmed) == COUNT and self.confirmed <= self.handled

    def batches(self, publisher: int) -> list[list[bytes]]:
        """What one of the publishers has to publish."""
        own = [b"%d" % number for number in range(publisher, COUNT, PUBLISHERS)]
        return [own[first : first + BATCH] for first in range(0, len(own), BATCH)]

    def must_wait(self, batch: list[bytes]) -> bool:
        """Whether the batch is one of the last, for which all faults have to be over."""
        return self.faults < FAULTS and int(batch[0]) > 0.8 * COUNT

    def handler(self) -> tuple[Callable[[bytes], None], Callable[[], None]]:
        """A handler, and what to call when its consumer has ended."""
        is_over = False

        def handle(body: bytes) -> None:
            if is_over:
                self.late += 1
            self.handled.add(body)

        def end() -> None:
            nonlocal is_over
            is_over = True
            self.cancellations += 1

        return handle, end


async def reach(account: Account, share: float) -> None:
    while len(account.handled) < share * COUNT:  # noqa: ASYNC110 - nothing tells
        await trio.sleep(0.01)


@asynccontextmanager
async def breaking_cluster(account: Account, folder: Path) -> AsyncIterator[None]:
    """nsqd and nsqlookupd, which break at shares of the messages."""
    account.nsqd, account.lookupd, lookupd_tcp = (free_address() for _ in range(3))
    nsqd_flags = (*FLAGS, f"--tcp-address={account.nsqd}", f"--lookupd-tcp-address={lookupd_tcp}")
    lookupd_flags = (f"--tcp-address={lookupd_tcp}", f"--http-address={account.lookupd}")
    ready, is_back = trio.Event(), trio.Event()

    async def run_nsqd() -> None:
        # nsqd would take 15 s to notice a new nsqlookupd, but for its own start.
        waits: list[Callable[[], Awaitable[None]]]
        waits = [partial(reach, account, 0.2), is_back.wait, trio.sleep_forever]
        for wait in waits:
            async with running_nsqd(folder, nsqd_flags) as nsqd:
                ready.set()
                await wait()
                nsqd.process.kill()
                await nsqd.process.wait()
                account.faults += 1

    async def run_lookupd() -> None:
        async with running_nsqlookupd(lookupd_flags):
            await reach(account, 0.4)
        account.faults += 1
        # Consumers that begin now find no nsqd.
        before = account.cancellations
        while account.cancellations < before + 3 and not account.is_done:  # noqa: ASYNC110
            await trio.sleep(0.01)
        async with running_nsqlookupd(lookupd_flags):
            is_back.set()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_lookupd)
        nursery.start_soon(run_nsqd)
        await ready.wait()
        yield
        nursery.cancel_scope.cancel()


async def publish(account: Account, number: int) -> None:
    async with Producer(account.nsqd) as producer:
        for batch in account.batches(number):
            while account.must_wait(batch):  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(0.02)
            while batch[0] not in account.confirmed:
                try:
                    await producer.publish_many(TOPIC, batch)
                except (ConnectError, NotConnectedError, ProtocolError):
                    await anyio.sleep(0.02)
                else:
                    account.confirmed.update(batch)


async def consume(account: Account) -> None:
    handle, end = account.handler()

    async def handle_message(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        handle(message.body)

    try:
        lookupds = [account.lookupd]
        async with Consumer(TOPIC, "c", lookupd_http_addresses=lookupds, config=CONFIG) as consumer:
            await consumer.run(handle_message, concurrency=5)
    finally:
        end()


async def cancel_natively(account: Account, random: Random) -> None:
    """By `Task.cancel`, as asyncio's programs do it; every other time by its timeout."""
    while not account.is_done:
        limit_s = random.uniform(0.05, 0.6)
        if account.cancellations % 2:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consume(account), limit_s)
        else:
            task = asyncio.create_task(consume(account))
            await asyncio.sleep(limit_s)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def cancel_by_scope(account: Account, random: Random) -> None:
    while not account.is_done:
        with anyio.move_on_after(random.uniform(0.05, 0.6)):
            await consume(account)


async def drill(account: Account, consume_all: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(PUBLISHERS):
            tasks.start_soon(publish, account, number)
        await consume_all()


def drill_threads(account: Account, random: Random) -> None:
    def publish(number: int) -> None:
        for batch in account.batches(number):
            while account.must_wait(batch):
                time.sleep(0.02)
            while batch[0] not in account.confirmed:
                try:
                    producer.publish_many(TOPIC, batch)
                except (ConnectError, NotConnectedError, ProtocolError):
                    time.sleep(0.02)
                else:
                    account.confirmed.update(batch)

    with blocking.Producer(account.nsqd) as producer:
        threads = [threading.Thread(target=publish, args=(n,)) for n in range(PUBLISHERS)]
        for thread in threads:
            thread.start()
        while not account.is_done:
            handle, end = account.handler()
            lookupds = [account.lookupd]
            consumer = blocking.Consumer(TOPIC, "c", lookupd_http_addresses=lookupds, config=CONFIG)
            timer = threading.Timer(random.uniform(0.05, 0.6), consumer.stop)
            timer.start()
            consumer.run(lambda message, handle=handle: handle(message.body), 5)  # type: ignore[misc]
            end()
            timer.join()
        for thread in threads:
            thread.join()


@pytest.mark.time_limit(LIMIT_S)
@in_short_soak
@pytest.mark.parametrize("world", ["asyncio", "trio", "uvloop", "threads"])
def test_what_is_confirmed_is_handled(world: str, tmp_path: Path) -> None:
    """Every message with an OK is handled; nothing is after a cancellation; all ends."""
    account, random = Account(), Random(22)
    with in_thread(lambda: breaking_cluster(account, tmp_path)):
        if world == "threads":
            drill_threads(account, random)
        elif world == "trio":
            run_in(world, lambda: drill(account, lambda: cancel_by_scope(account, random)), LIMIT_S)
        else:
            run_in(world, lambda: drill(account, lambda: cancel_natively(account, random)), LIMIT_S)
    print(f"{world}: {COUNT} messages, {account.cancellations} consumers, {account.faults} faults")
    assert account.is_done
    assert account.faults >= FAULTS
    assert account.cancellations >= 3
    assert account.late == 0
    until(lambda: not any(t.name.startswith("trionsq-") for t in threading.enumerate()))
