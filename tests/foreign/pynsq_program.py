"""Publishes and consumes with pynsq, unmodified: ``host:port topic count``."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import nsq  # type: ignore[import-untyped]

from tests.foreign.accounting import Order, await_start, give_account, read_order

UNDER_WAY_MAX = 200
MAX_IN_FLIGHT = 500


async def main(order: Order) -> None:
    """Publish everything while a reader consumes it, then give the account."""
    received: Counter[bytes] = Counter()
    all_there = asyncio.Event()

    def handle(message: Any) -> bool:
        received[bytes(message.body)] += 1
        if len(received) == order.count:
            all_there.set()
        return True

    address = f"{order.host}:{order.port}"
    reader = nsq.Reader(
        topic=order.topic,
        channel="pynsq",
        message_handler=handle,
        nsqd_tcp_addresses=[address],
        max_in_flight=MAX_IN_FLIGHT,
        **options_of(order),
    )
    await asyncio.to_thread(await_start)
    writer = nsq.Writer([address], **options_of(order))
    await publish_all(order, writer)
    await all_there.wait()
    await close_after_the_last_finish(reader)
    give_account(order, received)


def options_of(order: Order) -> dict[str, Any]:
    """What the order says about TLS, compression and AUTH, in this client's words."""
    options: dict[str, Any] = {}
    if order.ca:
        options["tls_v1"] = True
        options["tls_options"] = {"ca_certs": order.ca, "cert_reqs": ssl.CERT_REQUIRED}
    if order.compression:
        options[order.compression] = True
    if order.secret:
        options["auth_secret"] = order.secret
    return options


async def close_after_the_last_finish(reader: Any) -> None:
    """Say CLS and await its answer: nsqd has read every FIN before it."""
    answered = asyncio.Event()

    def on_response(data: bytes, **_rest: Any) -> None:
        if bytes(data) == b"CLOSE_WAIT":
            answered.set()

    (conn,) = reader.conns.values()
    conn.on("response", on_response)
    conn.send(b"CLS\n")
    await answered.wait()


async def publish_all(order: Order, writer: Any) -> None:
    """Publish with a bounded number of commands under way; raises what nsqd refused."""
    while not any(conn.connected() for conn in writer.conns.values()):  # noqa: ASYNC110 no event
        await asyncio.sleep(0.01)
    places = asyncio.Semaphore(UNDER_WAY_MAX)
    refused: list[Any] = []

    def answered(_conn: Any, answer: Any) -> None:
        if isinstance(answer, Exception) or bytes(answer) != b"OK":
            refused.append(answer)
        places.release()

    async def publish(command: Callable[..., Any], body: bytes | list[bytes]) -> None:
        await places.acquire()
        command(order.topic, body, callback=answered)

    for body in order.singles:
        await publish(writer.pub, body)
    for batch in order.batches:
        await publish(writer.mpub, batch)
    for _ in range(UNDER_WAY_MAX):
        await places.acquire()
    if refused:
        raise RuntimeError(f"{len(refused)} commands refused: {refused[0]!r}")


if __name__ == "__main__":
    asyncio.run(main(read_order(sys.argv[1:])))
