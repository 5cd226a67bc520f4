"""The examples in docs/client.md run unchanged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from trionsq.client import ConnectError
from trionsq.testing import OpenBroker, open_broker

T = TypeVar("T")

pytest_plugins = ["pytester", "trionsq.testing.plugin"]

TEXT = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
PUBLISH, RETRY, CONSUME, TEST, FIXTURE, ASYNCIO, PRODUCER, CONSUMER = EXAMPLES


def run_in_thread(function: Callable[[], T]) -> T:
    """Run it in a thread: in the main one a browser of other tests may have an event loop."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def module(source: str) -> ModuleType:
    """The example as a module of its own."""
    made = ModuleType("example")
    exec(compile(source, "docs/client.md", "exec"), made.__dict__)
    return made


async def test_publishing_and_consuming(capsys: pytest.CaptureFixture[str]) -> None:
    """All three ways of publishing, then all three ways of consuming."""
    async with open_broker() as nsqd:
        await module(PUBLISH).main(nsqd.tcp_address)
        await module(CONSUME).main(nsqd.tcp_address)
        topic = nsqd.broker.topics["orders"]
        assert topic.core.message_count == 4
        assert topic.channel("billing").core.held == 0
    assert "1 b'one'" in capsys.readouterr().out


async def test_publishing_to_the_next_nsqd() -> None:
    """An nsqd that cannot be reached is skipped; if none accepts the message, it raises."""
    example = module(RETRY)
    async with open_broker() as nsqd:
        await example.main("127.0.0.1:1", nsqd.tcp_address)
        assert nsqd.broker.topics["orders"].core.message_count == 1
    with pytest.raises(ConnectError):
        await example.main("127.0.0.1:1")


async def test_the_test() -> None:
    """The example of a test works."""
    await module(TEST).test_roundtrip()


def test_the_fixture(pytester: pytest.Pytester) -> None:
    """The example with the fixture works, in a process of its own."""
    pytester.makepyfile(FIXTURE)
    result = pytester.runpytest_subprocess("-p", "trionsq.testing.plugin")
    result.assert_outcomes(passed=1)


def test_on_asyncio(nsqd: OpenBroker) -> None:
    """Publishes, consumes and stops."""
    handled = run_in_thread(lambda: asyncio.run(main_of(ASYNCIO)(nsqd.tcp_address)))
    assert sorted(handled) == [b"1", b"2", b"3"]


def main_of(source: str) -> Callable[[str], Coroutine[Any, Any, list[bytes]]]:
    """The example's main function, without its signal handler: that is for the main thread."""
    lines = [line for line in source.splitlines() if "add_signal_handler" not in line]
    main: Callable[[str], Coroutine[Any, Any, list[bytes]]] = module("\n".join(lines)).main
    return main


def test_without_an_event_loop(nsqd: OpenBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The producer publishes, and the consumer handles until the last message."""
    example = module(PRODUCER.replace("127.0.0.1:4150", nsqd.tcp_address))
    with example.producer:
        example.view(b"one")
        example.producer.publish("orders", b"last")
    example = module(CONSUMER.replace("127.0.0.1:4150", nsqd.tcp_address))
    example.consumer.run(example.handle)
    assert capsys.readouterr().out.count("1 b'one'") == 4
