"""Spans of OpenTelemetry for publishing and processing, by the package opentelemetry-api.

The trace goes from the publisher to the handler in an envelope (`trionsq.client.envelope`), so both
sides have to use it::

    codec = EnvelopeCodec(JsonCodec())

    async with Producer(address, codec=codec) as producer:
        await TracedProducer(producer).publish("orders", {"number": 1})

    async with Consumer("orders", "billing", ..., codec=codec) as consumer:
        await consumer.run(process_spans("orders", "billing")(handle))

``handle`` gets the value without its envelope. The names of spans and attributes follow
OpenTelemetry's conventions for messaging. `trionsq.client.blocking.tracing` has both for threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

from trionsq.client.decisions import AnyMessage, HandlerContext
from trionsq.client.envelope import Enveloped
from trionsq.client.handling import Handler
from trionsq.client.message import Message
from trionsq.client.producer import Producer

__all__ = [
    "LIBRARY",
    "TracedProducer",
    "Unwrapping",
    "process_context",
    "process_spans",
    "publish_span",
]

M = TypeVar("M")
LIBRARY: Final = "trionsq.client"
"""The name of the tracer."""


class TracedProducer(Generic[M]):
    """Publishes in envelopes, each publish in a span."""

    def __init__(
        self, producer: Producer[Enveloped[M]], provider: trace.TracerProvider | None = None
    ) -> None:
        """Publish by another producer.

        Args:
            producer: open, with an EnvelopeCodec.
            provider: of spans; None: the global one.
        """
        self._producer = producer
        self._tracer = trace.get_tracer(LIBRARY, tracer_provider=provider)

    async def publish(self, topic: str, value: M) -> None:
        """As `Producer.publish`."""
        with publish_span(self._tracer, topic, 1) as headers:
            await self._producer.publish(topic, Enveloped(value, headers))

    async def publish_many(self, topic: str, values: Sequence[M]) -> None:
        """As `Producer.publish_many`; one span for all."""
        with publish_span(self._tracer, topic, len(values)) as headers:
            await self._producer.publish_many(
                topic, [Enveloped(value, headers) for value in values]
            )

    async def publish_deferred(self, topic: str, value: M, delay_s: float) -> None:
        """As `Producer.publish_deferred`."""
        with publish_span(self._tracer, topic, 1) as headers:
            await self._producer.publish_deferred(topic, Enveloped(value, headers), delay_s)


@contextmanager
def publish_span(tracer: trace.Tracer, topic: str, count: int) -> Iterator[dict[str, str]]:
    """A span of a publish of so many messages; gives the headers of their envelopes."""
    attributes: dict[str, str | int] = {
        "messaging.system": "nsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    if count != 1:
        attributes["messaging.batch.message_count"] = count
    name, kind = f"publish {topic}", SpanKind.PRODUCER
    with tracer.start_as_current_span(name, kind=kind, attributes=attributes):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        yield headers


class Unwrapping(Protocol):
    """A function that makes a handler of envelopes of one of their values."""

    def __call__(self, handler: Handler[M], /) -> Handler[Enveloped[M]]: ...


def process_spans(
    topic: str, channel: str, provider: trace.TracerProvider | None = None
) -> Unwrapping:
    """Take messages out of their envelopes, and run the handler in a span.

    The span is a child of the publisher's, if the message has one. An exception of the handler is
    recorded in it, and raised.
    """
    context = process_context(topic, channel, provider)

    def wrap(handler: Handler[M]) -> Handler[Enveloped[M]]:
        async def traced(message: Message[Enveloped[M]]) -> None:
            with context(message):
                unwrapped: Message[Any] = message
                await handler(unwrapped)

        return traced

    return wrap


def process_context(
    topic: str, channel: str, provider: trace.TracerProvider | None
) -> HandlerContext:
    """Take a message out of its envelope, for a handler that runs in the span."""
    tracer = trace.get_tracer(LIBRARY, tracer_provider=provider)
    fixed: dict[str, str | int] = {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": channel,
    }

    @contextmanager
    def traced(message: AnyMessage) -> Iterator[None]:
        enveloped = message.body
        attributes = fixed | {
            "messaging.message.id": message.id.decode(),
            "messaging.nsq.message.attempts": message.attempts,
            "server.address": message.nsqd_address,
        }
        with tracer.start_as_current_span(
            f"process {topic}",
            context=propagate.extract(enveloped.headers),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        ):
            message.body = enveloped.value
            yield

    return traced
