"""Envelopes, and spans whose context travels in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.broker.support import publish
from tests.client.network import ADDRESS, Network
from trionsq.client import Config, Consumer, JsonCodec, Message, Producer
from trionsq.client.envelope import EnvelopeCodec, Enveloped, EnvelopeError
from trionsq.client.tracing import TracedProducer, process_spans
from trionsq.testing.memory import nsqd_in_memory


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.text()), st.binary())
def test_each_value_and_header_goes_there_and_back(headers: dict[str, str], body: bytes) -> None:
    """Also line breaks in headers, and bodies that look like envelopes themselves."""
    codec = EnvelopeCodec[bytes]()
    once = codec.encode(Enveloped(body, headers))
    assert codec.decode(once) == Enveloped(body, headers)
    assert codec.decode(codec.encode(Enveloped(once))).value == once


def test_the_documented_bytes() -> None:
    """What other programs have to write."""
    found = EnvelopeCodec(JsonCodec()).encode(Enveloped([1], {"traceparent": "00-1"}))
    assert found == b'NSQ-Envelope/1 {"traceparent":"00-1"}\n[1]'


def test_a_body_without_an_envelope_has_no_headers() -> None:
    """Publishers that don't know envelopes are understood."""
    assert EnvelopeCodec[bytes]().decode(b"NSQ-Env") == Enveloped(b"NSQ-Env", {})


@pytest.mark.parametrize(
    "body",
    [
        b"NSQ-Envelope/1 {}",
        b"NSQ-Envelope/1 {\nbody",
        b"NSQ-Envelope/1 []\nbody",
        b'NSQ-Envelope/1 {"a":1}\nbody',
        b"NSQ-Envelope/1 " + b"[" * 60_000 + b"\n",
        b"NSQ-Envelope/1 " + b" " * 70_000 + b"{}\n",
    ],
)
def test_a_broken_envelope(body: bytes) -> None:
    """It goes to the give-up hook, as all that can't be decoded."""
    with pytest.raises(EnvelopeError):
        EnvelopeCodec[bytes]().decode(body)


def test_headers_without_end_are_not_sent() -> None:
    """No reader would take them."""
    with pytest.raises(EnvelopeError):
        EnvelopeCodec[bytes]().encode(Enveloped(b"", {"a": "b" * 70_000}))


async def test_the_handler_runs_in_the_trace_of_the_publisher() -> None:
    """For each way of publishing; a failure of the handler is recorded in its span."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    codec = EnvelopeCodec(JsonCodec())
    seen: list[int] = []

    async def handle(message: Message[Any]) -> None:
        seen.append(message.body)
        if len(seen) == 5:
            consumer.stop()
        if message.body == 1:
            message.finish()
            raise ValueError("no")

    async with nsqd_in_memory() as broker:
        network = Network.of(broker)
        async with Producer(ADDRESS, codec=codec, dial=network.dial) as producer:
            traced = TracedProducer(producer, provider)
            await traced.publish("t", 1)
            await traced.publish_many("t", [2, 3])
            await traced.publish_deferred("t", 4, 0)
        publish(broker, "t", b"5")
        async with Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=[ADDRESS],
            config=Config(max_in_flight=5),
            codec=codec,
            dial=network.dial,
        ) as consumer:
            await consumer.run(process_spans("t", "c", provider)(handle))
    provider.shutdown()
    assert sorted(seen) == [1, 2, 3, 4, 5]
    spans = exporter.get_finished_spans()
    published = {span.context.span_id: span for span in spans if span.kind is SpanKind.PRODUCER}
    processed = [span for span in spans if span.kind is SpanKind.CONSUMER]
    assert (len(published), len(processed)) == (3, 5)
    assert {span.name for span in published.values()} == {"publish t"}
    parents = [span.parent.span_id if span.parent else None for span in processed]
    assert parents.count(None) == 1
    assert {one for one in parents if one} == set(published)
    for span in processed:
        if span.parent:
            assert span.context.trace_id == published[span.parent.span_id].context.trace_id
        attributes = span.attributes or {}
        assert attributes["messaging.destination.name"] == "t"
        assert attributes["messaging.consumer.group.name"] == "c"
        assert len(str(attributes["messaging.message.id"])) == 16
    failed = [span for span in processed if span.status.status_code is StatusCode.ERROR]
    assert len(failed) == 1
