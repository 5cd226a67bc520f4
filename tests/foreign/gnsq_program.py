"""Publishes and consumes with gnsq, unmodified: ``host:port topic count``."""

from __future__ import annotations

import ssl
import sys
from collections import Counter
from typing import Any

import gevent  # type: ignore[import-untyped]
import gnsq  # type: ignore[import-untyped]
from gevent.event import Event  # type: ignore[import-untyped]
from gevent.pool import Pool  # type: ignore[import-untyped]

from tests.foreign.accounting import Order, await_start, give_account, read_order

UNDER_WAY_MAX = 200
MAX_IN_FLIGHT = 500


def main(order: Order) -> None:
    """Publish everything while a consumer takes it, then give the account."""
    received: Counter[bytes] = Counter()
    finished = 0
    all_finished = Event()

    def handle(_consumer: Any, message: Any) -> None:
        received[bytes(message.body)] += 1

    def on_finish(_consumer: Any, **_rest: Any) -> None:
        nonlocal finished
        finished += 1
        if finished >= order.count and len(received) == order.count:
            all_finished.set()

    address = f"{order.host}:{order.port}"
    consumer = gnsq.Consumer(
        order.topic,
        "gnsq",
        nsqd_tcp_addresses=[address],
        message_handler=handle,
        max_in_flight=MAX_IN_FLIGHT,
        **options_of(order),
    )
    consumer.on_finish.connect(on_finish, weak=False)
    consumer.start(block=False)
    gevent.get_hub().threadpool.apply(await_start)
    if order.ca or order.compression:
        publish_over_a_client(order)
    else:
        publish_all(order, gnsq.Producer([address], **options_of(order)))
    all_finished.wait()
    close_after_the_last_finish(consumer)
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
        options["auth_secret"] = order.secret.encode()
    return options


def close_after_the_last_finish(consumer: Any) -> None:
    """Say CLS and await its answer: nsqd has read every FIN before it."""
    answered = Event()

    def on_response(_connection: Any, response: bytes) -> None:
        if response == b"CLOSE_WAIT":
            answered.set()

    (connection,) = consumer._connections
    connection.on_response.connect(on_response, weak=False)
    connection.close()
    answered.wait()


def publish_all(order: Order, producer: Any) -> None:
    """Publish with a bounded number of commands under way; raises what nsqd refused."""
    producer.start()
    pool = Pool(UNDER_WAY_MAX)
    answers = [pool.spawn(producer.publish, order.topic, body) for body in order.singles]
    for answer in answers:
        answer.get()
    for batch in order.batches:
        producer.multipublish(order.topic, batch)
    producer.close()


def publish_over_a_client(order: Order) -> None:
    """The same without its Producer, which takes the OK of an upgrade for one of a publish."""
    client = gnsq.NsqdTCPClient(order.host, order.port, **options_of(order))
    client.connect()
    client.identify()
    singles = order.singles
    for first in range(0, len(singles), UNDER_WAY_MAX):
        under_way = singles[first:][:UNDER_WAY_MAX]
        for body in under_way:
            client.publish(order.topic, body)
        for _ in under_way:
            await_ok(client)
    for batch in order.batches:
        client.multipublish(order.topic, batch)
        await_ok(client)
    client.close_stream()


def await_ok(client: Any) -> None:
    """Read the next answer; raises RuntimeError unless it is OK."""
    answer: object = b"_heartbeat_"
    while answer == b"_heartbeat_":  # read_response has answered it
        _, answer = client.read_response()
    if answer != b"OK":
        raise RuntimeError(f"refused: {answer!r}")


if __name__ == "__main__":
    main(read_order(sys.argv[1:]))
