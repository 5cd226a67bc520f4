"""Handlers in threads: typed messages, traces, and middleware, each alone and in a consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from tests.client.messages import Answers
from tests.client.messages import message as async_message
from tests.client.worlds import channel_stats, until
from trionsq.client import Config, JsonCodec, MsgspecCodec
from trionsq.client.backoff import Outcome
from trionsq.client.blocking import Consumer, Message, Producer
from trionsq.client.blocking.middleware import (
    around,
    compose,
    deduplicate,
    log_messages,
    rate_limit,
    retry,
)
from trionsq.client.blocking.tracing import TracedProducer, process_spans
from trionsq.client.envelope import EnvelopeCodec
from trionsq.client.metrics import HandlerMetrics
from trionsq.testing import OpenBroker

AnyHandler = Callable[[Message[Any]], object]


def message(*arguments: Any, **options: Any) -> Message[Any]:
    """A message whose answers are not on their way to another thread, but there at once."""
    return Message(async_message(*arguments, **options), lambda function, *rest: function(*rest))


def passes(_message: Message[Any]) -> None:
    """A handler that has nothing to do."""


def fails(_message: Message[Any]) -> None:
    """A handler that can't do it."""
    raise ValueError("no")


def counted(handler: AnyHandler) -> tuple[AnyHandler, list[Any]]:
    """The handler, and the bodies that it gets."""
    seen: list[Any] = []

    def count(one: Message[Any]) -> None:
        seen.append(one.body)
        handler(one)

    return count, seen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of the middleware, which passes while a thread sleeps; ``slept`` has how long."""
    times = SimpleNamespace(now_s=0.0, slept=[])

    def sleep(wait_s: float) -> None:
        times.slept.append(round(wait_s, 6))
        times.now_s += wait_s

    fake = SimpleNamespace(monotonic=lambda: times.now_s, sleep=sleep)
    monkeypatch.setattr("trionsq.client.blocking.middleware.time", fake)
    return times


def test_the_first_is_the_outermost() -> None:
    """Context managers begin in the order in which they are given, and end in the other one."""
    seen = []

    def note(name: str) -> Any:
        @contextmanager
        def noted(_message: object) -> Iterator[None]:
            seen.append(name)
            yield
            seen.append(name.upper())

        return around(noted)

    compose(passes, note("a"), note("b"))(message())
    assert seen == ["a", "b", "B", "A"]


def test_retries_have_the_delay_of_their_attempt() -> None:
    """After the last one the hook decides, or the error is raised; as others are at once."""
    for attempts, command in ((1, b"1000"), (2, b"60000")):
        origin = Answers()
        retry([1, 60])(fails)(message(origin=origin, attempts=attempts))
        assert origin.commands == [b"REQ 0000000000000001 " + command]
        assert origin.outcomes == [Outcome.NEUTRAL]
    origin = Answers()
    exhausted: list[Message[Any]] = []
    retry([1], on_exhausted=exhausted.append)(fails)(message(origin=origin, attempts=2))
    assert (len(exhausted), origin.commands) == (1, [])
    for retried in (retry([1]), retry([1, 2], on=OSError)):
        with pytest.raises(ValueError, match="no"):
            retried(fails)(message(attempts=2))
    with pytest.raises(ValueError, match="delay"):
        retry([-1])


def test_handlers_begin_at_the_rate(clock: SimpleNamespace) -> None:
    """The burst at once, then one after the other; after a pause the burst again."""
    handler, seen = counted(passes)
    limited = rate_limit(2, burst=2)(handler)
    for _ in range(2):
        clock.slept.clear()
        for number in range(4):
            limited(message(number=number))
        assert clock.slept == [0.5, 0.5]
        clock.now_s += 10
    assert len(seen) == 8


def test_a_key_is_handled_once(clock: SimpleNamespace) -> None:
    """What is remembered is bounded by number and time."""
    handler, seen = counted(passes)
    once = deduplicate(lambda one: one.body, size=2, ttl_s=60)(handler)
    for body in (b"a", b"b", b"a", b"c", b"a"):
        once(message(body))
    assert seen == [b"a", b"b", b"c", b"a"]
    clock.now_s += 61
    once(message(b"a"))
    assert seen.count(b"a") == 3


def test_a_failure_is_not_remembered() -> None:
    """Neither an exception nor what was requeued or left for later, although its answer may still
    be on its way to the event loop; what was finished is."""

    def requeues(one: Message[Any]) -> None:
        one.requeue()

    def later(one: Message[Any]) -> None:
        one.auto_response = False

    def finishes(one: Message[Any]) -> None:
        one.finish()

    for bad, expected in ((fails, 2), (requeues, 2), (later, 2), (finishes, 1)):
        handler, seen = counted(bad)
        once = deduplicate()(handler)
        for _ in range(2):
            with suppress(ValueError):
                once(Message(async_message(), lambda *_: None))
        assert len(seen) == expected


@pytest.mark.parametrize("is_failure", [False, True])
def test_one_that_is_being_handled_is_waited_for(is_failure: bool) -> None:
    """Its twin is dropped after a success, and handled after a failure."""
    begun, go, waiting = threading.Event(), threading.Event(), []

    def wait(_one: Message[Any]) -> None:
        begun.set()
        go.wait()
        if is_failure and len(seen) == 1:
            raise ValueError("no")

    def key(one: Message[Any]) -> bytes:
        waiting.append(one)
        return one.id

    handler, seen = counted(wait)
    once = deduplicate(key)(handler)

    def tolerant() -> None:
        with suppress(ValueError):
            once(message())

    threads = [threading.Thread(target=tolerant) for _ in range(2)]
    threads[0].start()
    begun.wait()
    threads[1].start()
    until(lambda: len(waiting) == 2)
    assert len(seen) == 1
    go.set()
    for thread in threads:
        thread.join()
    assert len(seen) == (2 if is_failure else 1)


def test_lines_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """Both have each outcome."""

    def requeues(one: Message[Any]) -> None:
        one.requeue()

    caplog.set_level(logging.INFO, "trionsq.client.messages")
    registry = CollectorRegistry()
    measured = around(HandlerMetrics(registry).context("t", "c"))
    for handler in (passes, fails, requeues):
        with suppress(ValueError):
            compose(handler, log_messages("t:c"), measured)(message())
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "INFO"]
    assert "name=t:c id=0000000000000001 attempts=1" in caplog.messages[0]
    for outcome in ("handled", "failed", "requeued"):
        labels = {"topic": "t", "channel": "c", "outcome": outcome}
        assert registry.get_sample_value("nsq_handled_messages_total", labels) == 1


def test_the_first_answer_counts() -> None:
    """Later ones are not sent; a reason that nsqd would refuse raises in the handler."""
    origin = Answers()
    one = message(origin=origin)
    with pytest.raises(ValueError, match="reason"):
        one.dead_letter("")
    assert one.is_open
    one.dead_letter("no such customer", 1)
    one.finish()
    one.requeue()
    assert (one.is_open, one.was_finished) == (False, False)
    assert len(origin.commands) == 1
    assert b"no such customer" in origin.commands[0]


# With nsqd


@dataclass
class Order:
    """What is published."""

    number: int


def test_values_and_middleware(nsqd: OpenBroker) -> None:
    """Each way of publishing encodes, and the handler gets values; what is none goes to the hook,
    as bytes. A message that fails twice comes a third time."""
    codec = MsgspecCodec(Order)
    with Producer(nsqd.tcp_address, codec=codec) as producer:
        producer.publish("t", Order(1))
        producer.publish_many("t", [Order(2), Order(2)])
        producer.publish_deferred("t", Order(3), 0)
        producer.begin_publish("t", Order(4)).result()
        with pytest.raises(TypeError):
            producer.publish("t", object())  # type: ignore[arg-type]
    with Producer(nsqd.tcp_address, codec=JsonCodec()) as broken:
        broken.publish("t", "no order")
    given_up: list[bytes] = []
    attempts: list[int] = []

    def handle(one: Message[Order]) -> None:
        if one.body.number == 4:
            attempts.append(one.attempts)
            if one.attempts < 3:
                raise ValueError("no")

    def stop_after_all() -> None:
        until(lambda: consumer.stats().finished == 6)
        consumer.stop()

    handler, seen = counted(handle)
    consumer = Consumer(
        "t",
        "c",
        nsqd_tcp_addresses=[nsqd.tcp_address],
        config=Config(max_in_flight=10),
        codec=codec,
        on_give_up=lambda one: given_up.append(one.body),
    )
    thread = threading.Thread(target=stop_after_all)
    thread.start()
    wrapped = compose(
        handler,
        log_messages("t:c"),
        deduplicate(lambda one: one.body.number),
        rate_limit(1000, burst=10),
        retry([0, 0]),
    )
    consumer.run(wrapped, 3, handle_signals=False)
    thread.join()
    assert sorted(order.number for order in seen) == [1, 2, 3, 4, 4, 4]
    assert (given_up, attempts) == ([b'"no order"'], [1, 2, 3])
    assert channel_stats(nsqd, "t", "c")["depth"] == 0


def test_the_handler_runs_in_the_trace_of_the_publisher(nsqd: OpenBroker) -> None:
    """For each way of publishing; who publishes without an envelope begins no trace."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    codec = EnvelopeCodec(JsonCodec())
    with Producer(nsqd.tcp_address, codec=codec) as producer:
        traced = TracedProducer(producer, provider)
        traced.publish("t", 1)
        traced.publish_many("t", [2, 3])
        traced.publish_deferred("t", 4, 0)
    with Producer(nsqd.tcp_address) as plain:
        plain.publish("t", b"5")
    seen: list[int] = []

    def handle(one: Message[int]) -> None:
        seen.append(one.body)
        if len(seen) == 5:
            consumer.stop()

    consumer = Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], codec=codec)
    consumer.run(process_spans("t", "c", provider)(handle), handle_signals=False)
    provider.shutdown()
    assert sorted(seen) == [1, 2, 3, 4, 5]
    spans = exporter.get_finished_spans()
    published = {span.context.span_id for span in spans if span.name == "publish t"}
    parents = [span.parent and span.parent.span_id for span in spans if span.name == "process t"]
    assert (len(published), len(parents), parents.count(None)) == (3, 5, 1)
    assert {parent for parent in parents if parent} == published
