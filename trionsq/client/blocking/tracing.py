"""Spans of OpenTelemetry for the blocking client: see `trionsq.client.tracing`.

::

    codec = EnvelopeCodec(JsonCodec())
    producer = TracedProducer(Producer(address, codec=codec))
    Consumer("orders", "billing", ..., codec=codec).run(process_spans("orders", "billing")(handle))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from opentelemetry import trace

from trionsq.client.blocking.consumer import Handler
from trionsq.client.blocking.message import Message
from trionsq.client.blocking.producer import Producer
from trionsq.client.envelope import Enveloped
from trionsq.client.tracing import LIBRARY, process_context, publish_span

__all__ = ["TracedProducer", "Unwrapping", "process_spans"]

M = TypeVar("M")


class TracedProducer(Generic[M]):
    """Publishes in envelopes, each publish in a span. To be used by all threads."""

    def __init__(
        self, producer: Producer[Enveloped[M]], provider: trace.TracerProvider | None = None
    ) -> None:
        """Publish by another producer.

        Args:
            producer: with an EnvelopeCodec.
            provider: of spans; None: the global one.
        """
        self._producer = producer
        self._tracer = trace.get_tracer(LIBRARY, tracer_provider=provider)

    def publish(self, topic: str, value: M, timeout_s: float | None = None) -> None:
        """As `Producer.publish`."""
        with publish_span(self._tracer, topic, 1) as headers:
            self._producer.publish(topic, Enveloped(value, headers), timeout_s)

    def publish_many(self, topic: str, values: Sequence[M], timeout_s: float | None = None) -> None:
        """As `Producer.publish_many`; one span for all."""
        with publish_span(self._tracer, topic, len(values)) as headers:
            enveloped = [Enveloped(value, headers) for value in values]
            self._producer.publish_many(topic, enveloped, timeout_s)

    def publish_deferred(
        self, topic: str, value: M, delay_s: float, timeout_s: float | None = None
    ) -> None:
        """As `Producer.publish_deferred`."""
        with publish_span(self._tracer, topic, 1) as headers:
            self._producer.publish_deferred(topic, Enveloped(value, headers), delay_s, timeout_s)


class Unwrapping(Protocol):
    """A function that makes a handler of envelopes of one of their values."""

    def __call__(self, handler: Handler[M], /) -> Handler[Enveloped[M]]: ...


def process_spans(
    topic: str, channel: str, provider: trace.TracerProvider | None = None
) -> Unwrapping:
    """Take messages out of their envelopes, and run the handler in a span; as the async one."""
    context = process_context(topic, channel, provider)

    def wrap(handler: Handler[M]) -> Handler[Enveloped[M]]:
        def traced(message: Message[Enveloped[M]]) -> None:
            with context(message):
                unwrapped: Message[Any] = message
                handler(unwrapped)

        return traced

    return wrap
