"""The same drill in each world: nsqd is killed twice under load, nsqlookupd is gone for a while,
and producers and consumers are cancelled at random moments. What nsqd has confirmed is handled,
nothing is handled after a cancellation, and no task or thread is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import pytest
import trio

from tests.client.worlds import in_thread, run_in, until
from tests.processes import DaemonProcess, free_address, running_nsqd, running_nsqlookupd
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
# Each consumer that ends returns messages: none may be given up for that.
CONFIG = Config(
    max_in_flight=200, max_attempts=0, lookupd_poll_interval_s=0.2, backoff_multiplier_s=0.02
)
# An OK means that the message is on the disk.
FLAGS = ("--storage=log", "--durability=always", "--state-interval=200ms", "--msg-timeout=2s")


class Account:
    """What became of the messages, and where the cluster is.

    Attributes:
        lookupd: HTTP address of nsqlookupd; nsqd: TCP address.
        daemon: the nsqd that runs now.
        confirmed, handled: bodies.
        cancellations: consumers that were ended.
        cancelled_producers: producers, or publishes of a shared one, that were.
        late: messages that a consumer's handler got after the consumer's end.
        failure: what ended the cluster, if anything did.
    """

    def __init__(self) -> None:
        self.lookupd = ""
        self.nsqd = ""
        self.daemon: DaemonProcess | None = None
        self.confirmed: set[bytes] = set()
        self.handled: set[bytes] = set()
        self.cancellations = 0
        self.cancelled_producers = 0
        self.late = 0
        self.faults = 0
        self.failure: BaseException | None = None

    def __str__(self) -> str:
        unhandled = sorted(self.confirmed - self.handled, key=int)
        return (
            f"{len(self.confirmed)} of {COUNT} messages confirmed, {len(self.handled)} handled, "
            f"{self.cancellations} consumers and {self.cancelled_producers} producers cancelled, "
            f"{self.faults} faults; confirmed and not handled: {len(unhandled)} {unhandled[:9]}"
        )

    def state_of_nsqd(self) -> str:
        """Its /stats, if it answers, and the end of its log."""
        if self.daemon is None:
            return "no nsqd"
        try:
            url = f"http://{self.daemon.http_address}/stats?topic={TOPIC}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                stats = answer.read().decode()
        except OSError as error:
            stats = f"no /stats: {error}"
        return f"{stats}\n{self.daemon.log_tail()}"

    @property
    def is_done(self) -> bool:
        """Raises AssertionError if the cluster has ended."""
        assert self.failure is None, f"the cluster failed: {self.failure!r}"
        return len(self.confirmed) == COUNT and self.confirmed <= self.handled

    def batches(self, publisher: int) -> list[list[bytes]]:
        """What one of the publishers has to publish, the first at the end."""
        own = [b"%d" % number for number in range(publisher, COUNT, PUBLISHERS)]
        return [own[first : first + BATCH] for first in range(0, len(own), BATCH)][::-1]

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


@contextlib.asynccontextmanager
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
                account.daemon = nsqd
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

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_lookupd)
            nursery.start_soon(run_nsqd)
            await ready.wait()
            yield
            nursery.cancel_scope.cancel()
    except Exception as error:
        account.failure = error
        raise


# Runs what it is given, and cancels it if it has not ended within some seconds.
Limit: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]], float], Awaitable[None]]


async def limit_by_scope(work: Callable[[], Coroutine[Any, Any, None]], limit_s: float) -> None:
    with anyio.move_on_after(limit_s):
        await work()


async def limit_natively(work: Callable[[], Coroutine[Any, Any, None]], limit_s: float) -> None:
    """As asyncio's programs do it: half of them by `Task.cancel`, half by a timeout."""
    if int(limit_s * 1e6) % 2:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await work()
    else:
        task = asyncio.create_task(work())
        await asyncio.wait([task], timeout=limit_s)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def publish(account: Account, batches: list[list[bytes]]) -> None:
    """Publish the batches, the last one first, and remove each that is confirmed."""
    async with Producer(account.nsqd) as producer:
        while batches:
            while account.must_wait(batches[-1]):  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(0.02)
            try:
                await producer.publish_many(TOPIC, batches[-1])
            except (ConnectError, NotConnectedError, ProtocolError):
                await anyio.sleep(0.02)
            else:
                account.confirmed.update(batches.pop())


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


async def drill(account: Account, limit: Limit, random: Random) -> None:
    async def publish_all(batches: list[list[bytes]]) -> None:
        while batches:
            await limit(partial(publish, account, batches), random.uniform(0.01, 0.4))
            account.cancelled_producers += bool(batches)

    async with anyio.create_task_group() as tasks:
        for number in range(PUBLISHERS):
            tasks.start_soon(publish_all, account.batches(number))
        while not account.is_done:
            await limit(partial(consume, account), random.uniform(0.05, 0.6))


def drill_threads(account: Account, random: Random) -> None:
    def publish(batches: list[list[bytes]], random: Random) -> None:
        while batches:
            while account.must_wait(batches[-1]):
                time.sleep(0.02)
            try:
                producer.publish_many(TOPIC, batches[-1], timeout_s=random.uniform(0.001, 0.1))
            except TimeoutError:
                account.cancelled_producers += 1
            except (ConnectError, NotConnectedError, ProtocolError):
                time.sleep(0.02)
            else:
                account.confirmed.update(batches.pop())

    with blocking.Producer(account.nsqd) as producer:
        threads = [
            threading.Thread(target=publish, args=(account.batches(number), Random(number)))
            for number in range(PUBLISHERS)
        ]
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
        try:
            if world == "threads":
                drill_threads(account, random)
            elif world == "trio":
                run_in(world, lambda: drill(account, limit_by_scope, random), LIMIT_S)
            else:
                run_in(world, lambda: drill(account, limit_natively, random), LIMIT_S)
        finally:
            print(f"{world}: {account}")
            print(account.state_of_nsqd())
    assert account.is_done
    assert account.faults >= FAULTS
    assert account.cancellations >= 3
    assert account.cancelled_producers > 0
    assert account.late == 0
    until(lambda: not any(t.name.startswith("trionsq-") for t in threading.enumerate()))
