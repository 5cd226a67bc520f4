"""The broker for taskiq, with taskiq's own receiver and a real nsqd."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from taskiq.api import run_receiver_task

from tests.client.messages import Answers, message
from tests.soak import in_short_soak
from trionsq.client import StoppedError
from trionsq.client.taskiq import NsqBroker, keep_touching
from trionsq.testing import OpenBroker

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


@asynccontextmanager
async def worker(broker: NsqBroker) -> AsyncIterator[None]:
    """A receiver of taskiq, in this event loop."""
    receiving = asyncio.create_task(run_receiver_task(broker, run_startup=True))
    try:
        yield
    finally:
        receiving.cancel()
        with suppress(asyncio.CancelledError):
            await receiving
        await broker.shutdown()


def depth(nsqd: OpenBroker) -> int:
    """Messages of the channel, in whatever state."""
    return nsqd.broker.topics["taskiq"].channel("workers").core.held


def test_tasks_are_executed_and_finished(nsqd: OpenBroker) -> None:
    """Arguments arrive, also after a delay; nothing is left in nsqd."""
    done: list[int] = []

    async def main() -> None:
        broker = NsqBroker(nsqd_tcp_addresses=[nsqd.tcp_address])
        all_done = asyncio.Event()

        @broker.task(task_name="add")
        async def add(a: int, b: int) -> None:
            done.append(a + b)
            if len(done) == 11:
                all_done.set()

        async with asyncio.timeout(LIMIT_S):
            await broker.startup()
            async with worker(broker):
                for number in range(10):
                    await add.kiq(number, b=100)
                await add.kicker().with_labels(delay=0.01).kiq(10, 100)
                await all_done.wait()
                while depth(nsqd):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert sorted(done) == list(range(100, 111))


def test_a_worker_that_stops_returns_its_tasks(nsqd: OpenBroker) -> None:
    """A task that was not done is executed by the next worker."""

    async def main() -> None:
        broker = NsqBroker(nsqd_tcp_addresses=[nsqd.tcp_address])
        begun, done = asyncio.Event(), asyncio.Event()
        runs = 0

        @broker.task(task_name="slow")
        async def slow() -> None:
            nonlocal runs
            runs += 1
            begun.set()
            if runs == 1:
                await asyncio.sleep(3600)
            done.set()

        async with asyncio.timeout(LIMIT_S):
            async with worker(broker):
                await broker.startup()
                await slow.kiq()
                await begun.wait()
            assert depth(nsqd) == 1
            async with worker(broker):
                await done.wait()

    asyncio.run(main())


def test_a_running_task_is_touched() -> None:
    """Before each message timeout; not any more when nsqd can't be reached or it is answered."""
    origin, gone = Answers(), Answers()
    done = message(origin=gone)
    done.finish()
    messages = {message(origin=origin), done}

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            touching = asyncio.create_task(keep_touching(messages, lambda: 0.003))
            while len(origin.commands) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
            touching.cancel()

    asyncio.run(main())
    assert set(origin.commands) == {b"TOUCH 0000000000000001"}
    assert gone.commands == [b"FIN 0000000000000001"]
    assert len(messages) == 1


def test_what_is_wrong_is_said_at_once(nsqd: OpenBroker) -> None:
    """Names and addresses in the constructor; a broker that was not started when it is used."""
    with pytest.raises(ValueError, match="not a valid name"):
        NsqBroker("no topic", nsqd_tcp_addresses=[nsqd.tcp_address])
    with pytest.raises(ValueError, match="needs the address"):
        NsqBroker(nsqd_tcp_addresses=[])

    async def main() -> None:
        broker = NsqBroker(nsqd_tcp_addresses=[nsqd.tcp_address])

        @broker.task(task_name="never")
        async def never() -> None: ...

        with pytest.raises(Exception) as caught:  # noqa: PT011
            await never.kiq()
        assert isinstance(caught.value.__cause__, StoppedError)

    asyncio.run(main())


@in_short_soak
def test_the_worker_command(nsqd: OpenBroker, tmp_path: Path) -> None:
    """`taskiq worker` runs the tasks of a module, and SIGTERM ends it."""
    (tmp_path / "tasks.py").write_text(
        "import pathlib\n"
        "from trionsq.client.taskiq import NsqBroker\n"
        f"broker = NsqBroker(nsqd_tcp_addresses=[{nsqd.tcp_address!r}])\n"
        "@broker.task(task_name='write')\n"
        "async def write(text: str) -> None:\n"
        "    pathlib.Path('written').write_text(text)\n"
    )
    command = [sys.executable, "-m", "taskiq", "worker", "--workers=1", "tasks:broker"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}) as process:
        try:

            async def main() -> None:
                broker = NsqBroker(nsqd_tcp_addresses=[nsqd.tcp_address])

                @broker.task(task_name="write")
                async def write(text: str) -> None: ...

                await broker.startup()
                await write.kiq("hello")
                await broker.shutdown()

            asyncio.run(main())
            until = time.monotonic() + LIMIT_S
            while not (tmp_path / "written").exists():
                assert time.monotonic() < until
                time.sleep(0.05)
        finally:
            process.terminate()
            process.wait(LIMIT_S)
    assert (tmp_path / "written").read_text() == "hello"
