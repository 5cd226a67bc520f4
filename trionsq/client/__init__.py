"""A client of nsqd for programs on trio, asyncio and uvloop: `Producer` and `Consumer`.

`trionsq.client.blocking` has both for programs without an event loop.

- `producer`, `consumer`: the two classes that a program uses
- `repeating`: publishes that are repeated, and stored once
- `arrivals`: batches that wait for the program
- `message`: messages and batches: iterating over them, handlers, answers
- `config`, `errors`: the options and the exceptions
- `handshake`, `connection`: one connection: first TCP, IDENTIFY, TLS, compression and AUTH, then
  its tasks; `reply`: the answer to a command
- `subscribed_connection`: a consumer's connection after SUB, and the loop that makes it again
- `flow`, `backoff`: how many messages each connection may send: RDY and backoff
- `discovery`, `lookupget`: polling nsqlookupd
- `topiclog`: reading the log of a topic without a channel
- `nursery`: tasks that outlive a cancellation for a moment

::

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("topic", b"body")

    async with Consumer("topic", "channel", nsqd_tcp_addresses=["127.0.0.1:4150"]) as consumer:
        async for message in consumer:
            message.finish()
"""

from typing import TYPE_CHECKING, Any

from trionsq.client.backoff import Backoff, Phase
from trionsq.client.config import Config
from trionsq.client.connection import Connection
from trionsq.client.consumer import Consumer
from trionsq.client.errors import (
    AlreadyConnectedError,
    AuthError,
    AuthRequiredError,
    ClientError,
    ConfigError,
    ConnectError,
    DiscoveryError,
    IdentifyError,
    LastLookupdError,
    NotConnectedError,
    NotIdempotentError,
    ProtocolError,
    StoppedError,
    UnknownOutcomeError,
    UpgradeError,
)
from trionsq.client.message import Batch, ConsumerStats, Message
from trionsq.client.producer import Producer

if TYPE_CHECKING:
    from trionsq.client.topiclog import LogRefusedError, TopicLogReader

__all__ = [
    "AlreadyConnectedError",
    "AuthError",
    "AuthRequiredError",
    "Backoff",
    "Batch",
    "ClientError",
    "Config",
    "ConfigError",
    "ConnectError",
    "Connection",
    "Consumer",
    "ConsumerStats",
    "DiscoveryError",
    "IdentifyError",
    "LastLookupdError",
    "LogRefusedError",
    "Message",
    "NotConnectedError",
    "NotIdempotentError",
    "Phase",
    "Producer",
    "ProtocolError",
    "StoppedError",
    "TopicLogReader",
    "UnknownOutcomeError",
    "UpgradeError",
]


def __getattr__(name: str) -> Any:
    # They import trio, which an asyncio program can do without.
    if name in ("LogRefusedError", "TopicLogReader"):
        from trionsq.client import topiclog

        return getattr(topiclog, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
