"""The event loops that programs of users run the client on, and an nsqd in another thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, TypeVar

import anyio
import pytest
import trio
import uvloop

from tests.soak import in_short_soak
from trionsq.testing import OpenBroker

__all__ = ["ASYNCIO", "WORLDS", "World", "channel_stats", "in_thread", "run_in", "until"]

T = TypeVar("T")
World = str

ASYNCIO: Final = [pytest.param("asyncio"), pytest.param("uvloop", marks=in_short_soak)]
"""asyncio's own loop, and in the soak uvloop."""
WORLDS: Final = [pytest.param("trio"), *ASYNCIO]
LIMIT_S: Final = 60.0


def run_in(world: World, main: Callable[[], Awaitable[T]], limit_s: float = LIMIT_S) -> T:
    """Run a program; at its end no task of it may be left."""
    if world == "trio":
        return trio.run(_limited, main, limit_s)
    factory = uvloop.new_event_loop if world == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_checked(main, limit_s))


async def _limited(main: Callable[[], Awaitable[T]], limit_s: float) -> T:
    with anyio.fail_after(limit_s):
        return await main()


async def _checked(main: Callable[[], Awaitable[T]], limit_s: float) -> T:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        return await _limited(main, limit_s)
    finally:
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not unhandled


@contextmanager
def in_thread(manager: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run an async context manager of trio in a thread of its own."""
    started = Future[tuple[T, trio.lowlevel.TrioToken, trio.Event]]()

    async def serve() -> None:
        async with manager() as value:
            stop = trio.Event()
            started.set_result((value, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        value, token, stop = started.result()
        try:
            yield value
        finally:
            token.run_sync_soon(stop.set)
    finally:
        thread.join()


def channel_stats(nsqd: OpenBroker, topic: str, channel: str) -> dict[str, Any]:
    """What nsqd says of a channel, with its clients."""
    url = f"http://{nsqd.http_address}/stats?format=json&topic={topic}&channel={channel}"
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        [found] = json.load(answer)["topics"]
    [stats] = found["channels"]
    return dict(stats)


def until(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait until the condition holds, outside of any event loop."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)
