"""gnsq, by a handler, and its producer."""

from __future__ import annotations

from typing import Any

import gevent  # type: ignore[import-untyped]
import gnsq  # type: ignore[import-untyped]

from benchmarks.clients.tally import (
    BODY,
    LINGER_S,
    MAX_IN_FLIGHT,
    UNDER_WAY,
    Order,
    Publishes,
    Tally,
    is_publisher,
    read_order,
)


def consume(order: Order) -> None:
    """Finish each message by the handler's return."""
    tally = Tally(order)
    mark, count, nbytes = tally.mark, 0, 0

    def handle(_consumer: Any, message: Any) -> None:
        nonlocal mark, count, nbytes
        count += 1
        nbytes += len(message.body)
        if count >= mark:
            mark = tally.reached(count, nbytes)

    consumer = gnsq.Consumer(
        order.topic,
        order.channel,
        nsqd_tcp_addresses=[order.address],
        message_handler=handle,
        max_in_flight=MAX_IN_FLIGHT,
    )
    consumer.start(block=False)
    gevent.sleep(LINGER_S)
    consumer.close()


def publish(order: Order) -> None:
    """Each of 100 greenlets waits for nsqd's OK."""
    work = Publishes(order)
    producer = gnsq.Producer([order.address])
    producer.start()

    def publish_some() -> None:
        while work.begin():
            producer.publish(order.topic, BODY)
            work.confirm()

    gevent.joinall([gevent.spawn(publish_some) for _ in range(UNDER_WAY)], raise_error=True)
    gevent.sleep(LINGER_S)


if __name__ == "__main__":
    (publish if is_publisher() else consume)(read_order())
