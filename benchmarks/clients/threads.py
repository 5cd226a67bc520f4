"""Our own blocking client: a handler in a thread, and a producer of 100 threads."""

from __future__ import annotations

import threading
import time

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
from trionsq.client import Config
from trionsq.client.blocking import Consumer, Message, Producer


def consume(order: Order) -> None:
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


def publish(order: Order) -> None:
    """Each thread waits for nsqd's OK."""
    work, lock = Publishes(order), threading.Lock()

    def publish_some() -> None:
        while True:
            with lock:
                if not work.begin():
                    return
            producer.publish(order.topic, BODY)
            with lock:
                work.confirm()

    with Producer(order.address) as producer:
        threads = [threading.Thread(target=publish_some) for _ in range(UNDER_WAY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(LINGER_S)


if __name__ == "__main__":
    (publish if is_publisher() else consume)(read_order())
