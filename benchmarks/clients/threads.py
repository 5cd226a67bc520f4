"""Our own blocking client: a handler in a thread."""

from __future__ import annotations

from benchmarks.clients.tally import MAX_IN_FLIGHT, Order, Tally, read_order
from trionsq.client import Config
from trionsq.client.blocking import Consumer, Message


def main(order: Order) -> None:
    """Finish each message by the end of its handler."""
    tally, count, nbytes = Tally(order), 0, 0
    mark = tally.mark

    def handle(message: Message) -> None:
        nonlocal count, nbytes, mark
        count += 1
        nbytes += len(message.body)
        if count >= mark:
            mark = tally.reached(count, nbytes)

    consumer = Consumer(
        order.topic,
        order.channel,
        nsqd_tcp_addresses=[order.address],
        config=Config(max_in_flight=MAX_IN_FLIGHT),
    )
    consumer.run(handle)  # until it is killed


if __name__ == "__main__":
    main(read_order())
