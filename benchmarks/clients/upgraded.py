"""MPUB, or consume, over a connection with TLS, snappy or deflate, by our client's transports.

What a publisher compresses it compresses before its time begins, so that it is the broker's work
that is measured; TLS it has to do meanwhile.

    python -m benchmarks.clients.upgraded host:port topic channel messages publish|consume layer
"""

from __future__ import annotations

import json
import sys
import time

import trio

from benchmarks.clients.tally import LINGER_S, MAX_IN_FLIGHT, Order, Tally
from trionsq.client import Config, Consumer
from trionsq.client.handshake import Handshake, dial_tcp
from trionsq.transports.transport import LayeredTransport, Transport
from trionsq.wire import commands
from trionsq.wire.client import ColumnDecoder

BATCH = 200
SIZE = 200
# MPUBs under way: the broker always has some to read.
WINDOW = 20
OK_NBYTES = 10
READ_NBYTES = 64 * 1024

LAYERS = {
    "tls": Config(max_in_flight=MAX_IN_FLIGHT, tls_v1=True, tls_insecure_skip_verify=True),
    "snappy": Config(max_in_flight=MAX_IN_FLIGHT, snappy=True),
    "deflate": Config(max_in_flight=MAX_IN_FLIGHT, deflate=True),
}


def bodies(number: int) -> list[bytes]:
    """The messages of an MPUB: documents that compress as documents do."""
    return [
        (
            b'{"id": %d, "user": "user%d", "event": "page_view", "path": "/articles/%d", '
            b'"ms": %d, "session": "%x"}'
            % (number * BATCH + each, each * 7919 % 997, each * 104_729 % 4093, each % 310, each**9)
        ).ljust(SIZE)[:SIZE]
        for each in range(BATCH)
    ]


async def publish(order: Order, layer: str) -> None:
    """All messages in MPUBs, and print what it took."""
    plain = await dial_tcp(order.host, order.port, "")
    handshake = Handshake(order.address, plain, LAYERS[layer], ColumnDecoder())
    await handshake.run()
    over = handshake.transport
    assert isinstance(over, LayeredTransport)
    mpubs = [
        commands.publish_many(order.topic, bodies(number))
        for number in range(order.messages // BATCH)
    ]
    below: Transport = over
    if layer != "tls":
        below, mpubs = over._inner, [over._layer.encode(mpub) for mpub in mpubs]
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await _exchange(below, over, mpubs)
    seconds = time.perf_counter() - began_s
    figures = {
        "messages": len(mpubs) * BATCH,
        "timed_messages": len(mpubs) * BATCH,
        "timed_seconds": seconds,
        "seconds": seconds,
        "generator_cpu_seconds": time.process_time() - cpu_s,
    }
    print(json.dumps(figures), flush=True)


async def _exchange(below: Transport, over: Transport, mpubs: list[bytes]) -> None:
    sent = answered_nbytes = 0
    while answered_nbytes < len(mpubs) * OK_NBYTES:
        while sent < len(mpubs) and sent - answered_nbytes // OK_NBYTES < WINDOW:
            view = memoryview(mpubs[sent])
            while view := view[below.send_nowait(view) :]:
                await below.wait_writable()
            sent += 1
        data = over.receive_nowait(READ_NBYTES)
        if data == b"":
            raise SystemExit("the broker closed the connection")
        if data is None:
            await over.wait_readable()
        else:
            answered_nbytes += len(data)


async def consume(order: Order, layer: str) -> None:
    """Finish each batch as a whole, as `batches` does."""
    tally, count, nbytes = Tally(order), 0, 0
    mark = tally.mark
    async with Consumer(
        order.topic, order.channel, nsqd_tcp_addresses=[order.address], config=LAYERS[layer]
    ) as consumer:
        with trio.move_on_after(LINGER_S):
            async for batch in consumer.batches():
                count += len(batch)
                nbytes += sum(map(len, batch.bodies))
                batch.finish()
                if count >= mark:
                    mark = tally.reached(count, nbytes)


if __name__ == "__main__":
    address, topic, channel, messages, what, layer = sys.argv[1:]
    host, _, port = address.rpartition(":")
    order = Order(host, int(port), topic, channel, int(messages))
    trio.run(publish if what == "publish" else consume, order, layer)
