"""A cluster of real processes, out of which members go and come back while messages flow."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio

from tests.processes import DaemonProcess, free_address, running_nsqd, running_nsqlookupd
from tests.soak import by_level, more_in_soak
from trionsq.client import ClientError, Config, Consumer, Producer

TOPIC, CHANNEL = "orders", "billing"
MESSAGES = by_level(test=20_000, short=200_000, full=1_000_000)
BATCH = 100
LIMIT_S = by_level(test=120.0, short=120.0, full=600.0)
# Fast enough that a test sees several polls, and a requeue that soon comes again.
CONFIG = Config(
    dial_timeout_s=LIMIT_S,
    max_in_flight=2000,
    lookupd_poll_interval_s=0.3,
    lookupd_poll_jitter=0.1,
    default_requeue_delay_s=0.1,
    max_backoff_duration_s=0,
)


class Account:
    """Which messages were confirmed, and which came."""

    def __init__(self) -> None:
        self.published = 0
        self.confirmed: set[bytes] = set()
        self.came: Counter[bytes] = Counter()

    @property
    def missing(self) -> set[bytes]:
        return self.confirmed - self.came.keys()


class Pace:
    """Lets publishers go on step by step, so that what happens to the cluster happens amid."""

    def __init__(self) -> None:
        self.until = 0
        self._moved = trio.Event()

    def allow(self, until: int) -> None:
        self.until = until
        self._moved.set()
        self._moved = trio.Event()

    async def wait(self, place: int) -> None:
        while place >= self.until:
            await self._moved.wait()


async def publish(account: Account, pace: Pace, addresses: list[str], number: int) -> None:
    """Publish a share of the messages; what is not confirmed is published again elsewhere."""
    async with Producer(*addresses, config=CONFIG) as producer:
        for place in range(0, MESSAGES // 2, BATCH):
            await pace.wait(place)
            bodies = [b"%d-%d" % (number, place + index) for index in range(BATCH)]
            while True:
                try:
                    await producer.publish_many(TOPIC, bodies)
                except ClientError:
                    await trio.sleep(0.05)
                else:
                    break
            account.confirmed.update(bodies)


async def consume(account: Account, lookupds: list[str]) -> None:
    """Consume until cancelled."""
    async with Consumer(TOPIC, CHANNEL, lookupd_http_addresses=lookupds, config=CONFIG) as consumer:
        async for batch in consumer.batches():
            account.came.update(batch.bodies)
            batch.finish()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other processes bring about."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.02)


class Cluster:
    """The running processes; each has a task of its own, so that they may end in any order."""

    def __init__(self, nursery: trio.Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = folder
        self._leave: dict[DaemonProcess, trio.Event] = {}
        self._left: dict[DaemonProcess, trio.Event] = {}
        self.lookupds: list[DaemonProcess] = []

    async def lookupd(self) -> DaemonProcess:
        """A new nsqlookupd, which the nsqds that come after it know."""
        daemon: DaemonProcess = await self._nursery.start(self._host, running_nsqlookupd())
        self.lookupds.append(daemon)
        return daemon

    async def nsqd(self, name: str, *flags: str) -> DaemonProcess:
        """An nsqd, with the data that one of that name left behind."""
        path = self._folder / name
        path.mkdir(exist_ok=True)
        addresses = [f"--lookupd-tcp-address={one.tcp_address}" for one in self.lookupds]
        daemon: DaemonProcess = await self._nursery.start(
            self._host, running_nsqd(path, [*addresses, *flags])
        )
        return daemon

    async def stop(self, daemon: DaemonProcess) -> None:
        """SIGTERM, and wait for the end."""
        self._leave[daemon].set()
        await self._left[daemon].wait()

    def stop_all(self) -> None:
        for leave in self._leave.values():
            leave.set()

    async def _host(
        self,
        process: AbstractAsyncContextManager[DaemonProcess],
        task_status: trio.TaskStatus[DaemonProcess],
    ) -> None:
        async with process as daemon:
            leave = self._leave[daemon] = trio.Event()
            left = self._left[daemon] = trio.Event()
            task_status.started(daemon)
            await leave.wait()
        left.set()


@more_in_soak
async def test_members_go_and_come_back(tmp_path: Path) -> None:
    """Two nsqlookupd, three nsqd and a fourth: no confirmed message is missing in the end.

    While producers and consumers that discover their brokers go on, one nsqd is stopped and
    started again, one nsqlookupd is killed, and a new nsqd joins.
    """
    account, pace = Account(), Pace()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as processes:
            cluster = Cluster(processes, tmp_path)
            doomed, _ = await cluster.lookupd(), await cluster.lookupd()
            first, second = await cluster.nsqd("first"), await cluster.nsqd("second")
            place = [f"--tcp-address={free_address()}", f"--http-address={free_address()}"]
            stopped = await cluster.nsqd("back", *place)
            async with trio.open_nursery() as flow:
                everybody = [stopped.tcp_address, first.tcp_address, second.tcp_address]
                flow.start_soon(publish, account, pace, everybody, 1)
                flow.start_soon(publish, account, pace, everybody[::-1], 2)
                for _ in range(2):
                    lookupds = [one.http_address for one in cluster.lookupds]
                    flow.start_soon(consume, account, lookupds)
                pace.allow(MESSAGES // 4)
                await until(lambda: len(account.confirmed) >= MESSAGES // 5)
                await cluster.stop(stopped)
                assert stopped.process.returncode == 0
                doomed.process.kill()
                pace.allow(MESSAGES * 3 // 8)
                await until(lambda: len(account.confirmed) >= MESSAGES * 5 // 8)
                await cluster.nsqd("back", *place)
                newcomer = await cluster.nsqd("third")
                async with Producer(newcomer.tcp_address, config=CONFIG) as producer:
                    extra = [b"new-%d" % index for index in range(BATCH)]
                    await producer.publish_many(TOPIC, extra)
                    account.confirmed.update(extra)
                pace.allow(MESSAGES)
                await until(lambda: len(account.confirmed) == MESSAGES + BATCH)
                await until(lambda: not account.missing)
                flow.cancel_scope.cancel()
            cluster.stop_all()
    assert doomed.process.returncode == -signal.SIGKILL
    assert len(account.came) == len(account.confirmed) == MESSAGES + BATCH
