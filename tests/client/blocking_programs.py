"""Programs that use the blocking client, for tests that start them: ``name address topic ...``."""

from __future__ import annotations

import os
import sys
import threading
import time

from trionsq.client import Config
from trionsq.client.blocking import Consumer, Message, Producer

_, NAME, ADDRESS, TOPIC, *REST = sys.argv if len(sys.argv) > 3 else ["", "", "127.0.0.1:1", "t"]
# As a module of a web application does.
PRODUCER = Producer(ADDRESS)


def leave() -> None:
    """Publish in the background, and end without a word."""
    for number in range(2000):
        PRODUCER.begin_publish(TOPIC, b"%d" % number)


def fork() -> None:
    """Publish in the parent and in children, before, while and after they fork."""

    def publish(name: str, count: int) -> None:
        for number in range(count):
            PRODUCER.publish(TOPIC, f"{name}-{number}".encode())

    threads = [threading.Thread(target=publish, args=(f"thread{n}", 200)) for n in range(4)]
    for thread in threads:
        thread.start()
    children = []
    for child in range(4):
        pid = os.fork()
        if not pid:
            publish(f"child{child}", 100)
            for number in range(100):
                PRODUCER.begin_publish(TOPIC, f"late{child}-{number}".encode())
            sys.exit()
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    for thread in threads:
        thread.join()
    publish("parent", 100)


def consume() -> None:
    """Handle messages until a signal; print how many when it begins and when it ends."""
    handled: list[bytes] = []
    hold_s = float(REST[0])
    first = threading.Lock()

    def handle(message: Message) -> None:
        if first.acquire(blocking=False):
            print("handles", flush=True)
        handled.append(message.body)
        time.sleep(hold_s)

    config = Config(max_in_flight=20)
    consumer = Consumer(TOPIC, "c", nsqd_tcp_addresses=[ADDRESS], config=config)
    try:
        consumer.run(handle, concurrency=5)
    finally:
        print(len(handled), consumer.stats().finished, flush=True)


if __name__ == "__main__":
    {"leave": leave, "fork": fork, "consume": consume}[NAME]()
