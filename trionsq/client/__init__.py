"""A client of nsqd for trio programs: `Producer` and `Consumer`.

- `producer`, `consumer`: the two, with everything that a program needs
- `message`: messages and batches, and what may be answered
- `config`, `errors`, `stats`: the options, the exceptions, the counts
- `handshake`, `tls`: how a connection begins: IDENTIFY, TLS, compression, AUTH
- `connection` (on `transport`): one connection, its three tasks
- `keeper`, `subscription`, `batches`: a consumer's connections, kept; what comes out of them
- `handling`: the handler style
- `flow` (by the decisions of `rdy` and `backoff`): how much a consumer takes from whom
- `discovery`: nsqlookupd
- `household`, `waiting`: tasks of an object, and cheap ways to wait for them

::

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("topic", b"body")

    async with Consumer("topic", "channel", nsqd_tcp_addresses=["127.0.0.1:4150"]) as consumer:
        async for message in consumer:
            message.finish()
"""

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
    ProtocolError,
    StoppedError,
    UpgradeError,
)
from trionsq.client.message import Batch, ConsumerStats, Message
from trionsq.client.producer import Producer

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
    "Message",
    "NotConnectedError",
    "Phase",
    "Producer",
    "ProtocolError",
    "StoppedError",
    "UpgradeError",
]
