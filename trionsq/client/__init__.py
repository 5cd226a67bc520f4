"""A client of nsqd for programs on trio, asyncio and uvloop: `Producer` and `Consumer`.

`trionsq.client.blocking` has both for programs without an event loop.

- `producer`, `consumer`: the two classes that a program uses
- `repeating`: publishes that are repeated, and stored once
- `arrivals`: batches that wait for the program
- `message`: messages and batches: iterating over them, answers; `handling`: handlers
- `codecs`: between values and the bytes of messages; `giving_up`: what no handler can have
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

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trionsq.client.backoff import Backoff, Phase
    from trionsq.client.codecs import Codec, JsonCodec, MsgspecCodec, PydanticCodec, StrCodec
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
    from trionsq.client.topiclog import LogRefusedError, TopicLogReader

__all__ = [
    "AlreadyConnectedError",
    "AuthError",
    "AuthRequiredError",
    "Backoff",
    "Batch",
    "ClientError",
    "Codec",
    "Config",
    "ConfigError",
    "ConnectError",
    "Connection",
    "Consumer",
    "ConsumerStats",
    "DiscoveryError",
    "IdentifyError",
    "JsonCodec",
    "LastLookupdError",
    "LogRefusedError",
    "Message",
    "MsgspecCodec",
    "NotConnectedError",
    "NotIdempotentError",
    "Phase",
    "Producer",
    "ProtocolError",
    "PydanticCodec",
    "StoppedError",
    "StrCodec",
    "TopicLogReader",
    "UnknownOutcomeError",
    "UpgradeError",
]

# Each name is imported at its first use: a program that publishes needs no discovery.
_PLACES: Final = {
    "AlreadyConnectedError": "errors",
    "AuthError": "errors",
    "AuthRequiredError": "errors",
    "Backoff": "backoff",
    "Batch": "message",
    "ClientError": "errors",
    "Codec": "codecs",
    "Config": "config",
    "ConfigError": "errors",
    "ConnectError": "errors",
    "Connection": "connection",
    "Consumer": "consumer",
    "ConsumerStats": "message",
    "DiscoveryError": "errors",
    "IdentifyError": "errors",
    "JsonCodec": "codecs",
    "LastLookupdError": "errors",
    "LogRefusedError": "topiclog",
    "Message": "message",
    "MsgspecCodec": "codecs",
    "NotConnectedError": "errors",
    "NotIdempotentError": "errors",
    "Phase": "backoff",
    "Producer": "producer",
    "ProtocolError": "errors",
    "PydanticCodec": "codecs",
    "StoppedError": "errors",
    "StrCodec": "codecs",
    "TopicLogReader": "topiclog",
    "UnknownOutcomeError": "errors",
    "UpgradeError": "errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
