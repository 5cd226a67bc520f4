"""The client for programs without an event loop: scripts, Django, Flask, worker processes.

- `producer`, `consumer`: `Producer` and `Consumer`, by the names of the async ones
- `message`: the messages that handlers get
- `background`: the thread in which the async client runs

::

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("topic", b"body")

    consumer = Consumer("topic", "channel", nsqd_tcp_addresses=["127.0.0.1:4150"])
    consumer.run(handle, concurrency=10)  # until SIGTERM, SIGINT or consumer.stop()
"""

from trionsq.client.blocking.consumer import Consumer
from trionsq.client.blocking.message import Message
from trionsq.client.blocking.producer import Producer, QueueFullError

__all__ = ["Consumer", "Message", "Producer", "QueueFullError"]
