"""Middleware for handlers, each alone, and several together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.broker.support import publish
from tests.client.messages import Answers, message
from tests.client.network import Network
from tests.client.test_consumer import consumer_of, left
from trionsq.client.backoff import Outcome
from trionsq.client.message import Message
from trionsq.client.metrics import HandlerMetrics
from trionsq.client.middleware import (
    compose,
    deduplicate,
    log_messages,
    rate_limit,
    retry,
    time_limit,
)
from trionsq.testing.memory import nsqd_in_memory

AnyHandler = Callable[[Message[Any]], Awaitable[object]]


async def passes(_message: Message[Any]) -> None:
    """A handler that has nothing to do."""


async def fails(_message: Message[Any]) -> None:
    """A handler that can't do it."""
    raise ValueError("no")


async def hangs(_message: Message[Any]) -> None:
    """A handler that never ends."""
    await trio.sleep_forever()


# compose


async def test_the_first_is_the_outermost() -> None:
    """They begin in the order in which they are given, and end in the other one."""
    seen = []

    def note(name: str) -> Any:
        def wrap(handler: AnyHandler) -> AnyHandler:
            async def noted(one: Message[Any]) -> None:
                seen.append(name)
                await handler(one)
                seen.append(name.upper())

            return noted

        return wrap

    await compose(passes, note("a"), note("b"))(message())
    assert seen == ["a", "b", "B", "A"]


# time_limit


async def test_a_handler_that_takes_too_long(autojump_clock: MockClock) -> None:
    """It is cancelled when its time is up; a quick one is left alone."""
    with pytest.raises(TimeoutError):
        await time_limit(5)(hangs)(message())
    assert trio.current_time() == pytest.approx(5)
    await time_limit(5)(passes)(message())


async def test_a_timeout_of_the_handler_itself_is_its_error() -> None:
    """Errors go through as they are."""
    with pytest.raises(ValueError, match="no"):
        await time_limit(5)(fails)(message())


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_no_time_is_refused(seconds: float) -> None:
    """Not at the first message, but at once."""
    with pytest.raises(ValueError, match="time limit"):
        time_limit(seconds)


# retry


async def test_the_delay_is_that_of_the_attempt() -> None:
    """Each delivery has the next delay; backoff does not count it as a failure."""
    for attempts, command in ((1, b"1000"), (2, b"60000")):
        origin = Answers()
        await retry([1, 60])(fails)(message(origin=origin, attempts=attempts))
        assert origin.commands == [b"REQ 0000000000000001 " + command]
        assert origin.outcomes == [Outcome.NEUTRAL]


async def test_backoff_on_demand() -> None:
    """The consumer may be told to slow down."""
    origin = Answers()
    await retry([1], backoff=True)(fails)(message(origin=origin))
    assert origin.outcomes == [Outcome.FAILURE]


async def test_after_the_last_attempt() -> None:
    """The hook decides; without one, the error is raised."""
    exhausted = []

    async def note(one: Message[Any]) -> None:
        exhausted.append(one.attempts)

    origin = Answers()
    await retry([1], on_exhausted=note)(fails)(message(origin=origin, attempts=2))
    assert (exhausted, origin.commands) == ([2], [])
    with pytest.raises(ValueError, match="no"):
        await retry([1])(fails)(message(attempts=2))


async def test_only_these_errors_are_worth_it() -> None:
    """Another exception is raised at once, and a success is left alone."""
    origin = Answers()
    with pytest.raises(ValueError, match="no"):
        await retry([1], on=OSError)(fails)(message(origin=origin))
    await retry([1])(passes)(message(origin=origin))
    assert origin.commands == []


def test_a_negative_delay_is_refused() -> None:
    """nsqd would close the connection."""
    with pytest.raises(ValueError, match="delay"):
        retry([1, -1])


# rate_limit


async def test_handlers_begin_at_the_rate(autojump_clock: MockClock) -> None:
    """The burst at once, then one after the other, in order; after a pause the burst again."""
    begun: list[tuple[int, float]] = []

    async def note(one: Message[Any]) -> None:
        begun.append((int(one.id), round(trio.current_time() - start_s, 6)))

    limited = rate_limit(2, burst=2)(note)
    for expected in ([0, 0, 0.5, 1.0], [0, 0, 0.5, 1.0]):
        start_s = trio.current_time()
        begun.clear()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(limited, message(number=number))
                await trio.testing.wait_all_tasks_blocked()
        assert begun == list(enumerate(expected))
        await trio.sleep(10)


@pytest.mark.parametrize(("per_s", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_no_rate_is_refused(per_s: float, burst: int) -> None:
    """A consumer that never begins is a mistake."""
    with pytest.raises(ValueError, match="per_s"):
        rate_limit(per_s, burst=burst)


# deduplicate


def counted(handler: AnyHandler) -> tuple[AnyHandler, list[bytes]]:
    """The handler, and the bodies that it gets."""
    seen: list[bytes] = []

    async def count(one: Message[Any]) -> None:
        seen.append(one.body)
        await handler(one)

    return count, seen


async def test_a_key_is_handled_once() -> None:
    """By default that is the message itself, delivered again."""
    handler, seen = counted(passes)
    once = deduplicate()(handler)
    for number in (1, 1, 2):
        await once(message(number=number))
    assert len(seen) == 2
    handler, seen = counted(passes)
    once = deduplicate(lambda one: one.body)(handler)
    for number, body in enumerate([b"a", b"b", b"a"]):
        await once(message(body, number=number))
    assert seen == [b"a", b"b"]


async def test_a_failure_is_not_remembered() -> None:
    """Neither an exception nor what was requeued or left for later; what was finished is."""

    async def requeues(one: Message[Any]) -> None:
        one.requeue()

    async def later(one: Message[Any]) -> None:
        one.auto_response = False

    async def finishes(one: Message[Any]) -> None:
        one.finish()

    for bad in (fails, requeues, later):
        handler, seen = counted(bad)
        once = deduplicate()(handler)
        for _ in range(2):
            with suppress(ValueError):
                await once(message())
        assert len(seen) == 2, bad
    handler, seen = counted(finishes)
    once = deduplicate()(handler)
    for _ in range(2):
        await once(message())
    assert len(seen) == 1


async def test_one_that_is_being_handled_is_waited_for() -> None:
    """Its twin is dropped after a success, and handled after a failure."""
    for is_failure in (False, True):
        go, running = trio.Event(), 0

        async def wait(_one: Message[Any]) -> None:
            nonlocal running
            running += 1
            assert running == 1
            try:
                await go.wait()  # noqa: B023
                if is_failure and len(seen) == 1:  # noqa: B023
                    raise ValueError("no")
            finally:
                running -= 1

        handler, seen = counted(wait)
        once = deduplicate()(handler)

        async def tolerant() -> None:
            with suppress(ValueError):
                await once(message())  # noqa: B023

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tolerant)
            nursery.start_soon(tolerant)
            await trio.testing.wait_all_tasks_blocked()
            assert len(seen) == 1
            go.set()
        assert len(seen) == (2 if is_failure else 1)


async def test_what_is_remembered_is_bounded(autojump_clock: MockClock) -> None:
    """By number and by time."""
    handler, seen = counted(passes)
    once = deduplicate(size=2, ttl_s=60)(handler)
    for number in (1, 2, 3, 1):
        await once(message(number=number))
    assert len(seen) == 4
    await trio.sleep(61)
    await once(message(number=1))
    assert len(seen) == 5
    with pytest.raises(ValueError, match="size"):
        deduplicate(size=0)


# log_messages


async def test_a_line_for_each_message(caplog: pytest.LogCaptureFixture) -> None:
    """The fields are attributes of the record, and words of the text."""
    caplog.set_level(logging.INFO, "trionsq.client.messages")
    wrap = log_messages("orders:billing")
    await wrap(passes)(message(attempts=3))
    with pytest.raises(ValueError, match="no"):
        await wrap(fails)(message())
    with trio.CancelScope() as scope:
        scope.cancel()
        await wrap(hangs)(message())
    found = [
        (vars(record)["nsq_outcome"], record.levelname, vars(record)["nsq_attempts"])
        for record in caplog.records
    ]
    assert found == [("handled", "INFO", 3), ("failed", "WARNING", 1), ("cancelled", "INFO", 1)]
    assert vars(caplog.records[0])["nsq_id"] == "0000000000000001"
    assert "name=orders:billing id=0000000000000001 attempts=3" in caplog.messages[0]
    assert "body" not in caplog.text


# metrics


async def test_metrics() -> None:
    """Each outcome is counted and each duration noted; nothing runs at the end."""

    async def requeues(one: Message[Any]) -> None:
        one.requeue()

    registry = CollectorRegistry()
    measure = HandlerMetrics(registry).measure("t", "c")
    await measure(passes)(message())
    await measure(requeues)(message())
    with pytest.raises(ValueError, match="no"):
        await measure(fails)(message())
    with trio.CancelScope() as scope:
        scope.cancel()
        await measure(hangs)(message())
    labels = {"topic": "t", "channel": "c"}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, labels | more)

    for outcome in ("handled", "requeued", "failed", "cancelled"):
        assert value("nsq_handled_messages_total", outcome=outcome) == 1
    assert value("nsq_handler_seconds_count") == 4
    assert value("nsq_handlers_running") == 0


# Together, in a consumer


async def test_a_consumer_with_all_of_them(autojump_clock: MockClock) -> None:
    """A message that fails twice comes a third time, then it is done."""
    async with nsqd_in_memory() as broker:
        publish(broker, "t", b"good", b"bad")
        seen = []

        async def handle(one: Message) -> None:
            seen.append((one.body, one.attempts))
            if one.body == b"bad" and one.attempts < 3:
                await trio.sleep_forever()
            if len(seen) == 4:
                consumer.stop()

        handler = compose(
            handle,
            log_messages("t:c"),
            HandlerMetrics(CollectorRegistry()).measure("t", "c"),
            deduplicate(),
            rate_limit(10),
            retry([1, 2]),
            time_limit(5),
        )
        async with consumer_of(Network.of(broker)) as consumer:
            await consumer.run(handler, concurrency=2)
            assert consumer.stats().requeued == 2
        assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]
        assert left(broker) == 0


def test_all_of_them_under_asyncio() -> None:
    """They use no event loop's own tools: retries, limits and twins work there too."""
    origin = Answers()
    handled: list[bytes] = []

    async def handle(one: Message[Any]) -> None:
        if one.attempts == 1 and one.body == b"slow":
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        handled.append(one.body)

    handler = compose(
        handle,
        log_messages("t:c"),
        HandlerMetrics(CollectorRegistry()).measure("t", "c"),
        deduplicate(lambda one: one.body),
        rate_limit(1000),
        retry([1, 2]),
        time_limit(0.05),
    )

    async def deliver(body: bytes, number: int, attempts: int = 1) -> None:
        await handler(message(body, origin=origin, number=number, attempts=attempts))

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number, body in enumerate([b"a", b"a", b"b", b"slow"]):
                tasks.create_task(deliver(body, number))
        await deliver(b"slow", 3, attempts=2)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: asyncio.run(main())).result()
    assert handled == [b"a", b"b", b"slow"]
    assert origin.commands == [b"REQ 0000000000000003 1000"]
