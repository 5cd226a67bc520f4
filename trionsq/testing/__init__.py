"""What we test with, and what users of trionsq may test with: no kernel, no real time.

- `streams`: a connection in memory, bounded and breakable
- `memory`: an nsqd without sockets
- `conversation`: a client that says what it is told
- `disk`: a disk in memory that fails, fills up, crashes and loses power
- `background`: blocking work without threads

Under a `trio.testing.MockClock(autojump_threshold=0)` hours pass in milliseconds::

    async with nsqd_in_memory(msg_timeout_ns=2 * SECOND_NS) as broker:
        consumer = Conversation.begin(broker)
        await consumer.subscribe("topic", "channel", ready=1)
        broker.topic("topic").publish(ListBodies([b"hello"]))
        assert (await consumer.message()).body == b"hello"
"""
