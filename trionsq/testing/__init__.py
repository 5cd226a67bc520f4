"""Tools for testing programs that use trionsq, and trionsq itself.

`broker` is a real nsqd in this process; `plugin` has the pytest fixture ``nsqd``::

    async with open_broker() as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("topic", b"body")

The others need no sockets, threads or real time:

- `memory`: an nsqd without sockets
- `conversation`: a client that sends what the test says, and returns the frames it receives
- `streams`: a connection in memory, bounded and breakable
- `disk`, `pagecache`: a disk in memory that fails, fills up, crashes and loses power
- `background`: blocking work without threads
- `simulation`: machines, clocks, disks and a network in one process, from one seed

Under a `trio.testing.MockClock(autojump_threshold=0)` hours pass in milliseconds::

    async with nsqd_in_memory(msg_timeout_ns=2 * SECOND_NS) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("topic", "channel", ready=1)
        broker.topic("topic").publish(ListBodies([b"hello"]))
        assert (await consumer.message()).body == b"hello"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The plugin is loaded in every run of pytest, also where no test needs a broker, and importing the
# broker takes about a second (trio, quart, cryptography). So it is imported on first use.
if TYPE_CHECKING:
    from trionsq.testing.broker import OpenBroker, broker_in_thread, open_broker

__all__ = ["OpenBroker", "broker_in_thread", "open_broker"]


def __getattr__(name: str) -> Any:
    """Import the broker on first use."""
    if name in __all__:
        from trionsq.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
