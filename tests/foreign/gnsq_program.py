"""Publishes and consumes with gnsq, unmodified: ``host:port topic count``."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import gnsq  # type: ignore[import-untyped]
from gevent.event import Event  # type: ignore[import-untyped]
from gevent.pool import Pool  # type: ignore[import-untyped]

from tests.foreign.accounting import Order, give_account, read_order

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
    )
    consumer.on_finish.connect(on_finish, weak=False)
    consumer.start(block=False)
    producer = gnsq.Producer([address])
    producer.start()
    publish_all(order, producer)
    all_finished.wait()
    close_after_the_last_finish(consumer)
    producer.close()
    give_account(order, received)


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
    pool = Pool(UNDER_WAY_MAX)
    answers = [pool.spawn(producer.publish, order.topic, body) for body in order.singles]
    for answer in answers:
        answer.get()
    for batch in order.batches:
        producer.multipublish(order.topic, batch)


if __name__ == "__main__":
    main(read_order(sys.argv[1:]))
