"""gnsq, by a handler."""

from __future__ import annotations

from typing import Any

import gevent  # type: ignore[import-untyped]
import gnsq  # type: ignore[import-untyped]

from benchmarks.clients.tally import LINGER_S, MAX_IN_FLIGHT, Order, Tally, read_order


def main(order: Order) -> None:
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


if __name__ == "__main__":
    main(read_order())
