"""The errors of the client library, named by situation. All of them are a `ClientError`.

`ProtocolError` (from `trionsq.wire`) is not: it is nsqd's own answer, and its ``code`` is NSQ's.
"""

from __future__ import annotations

from trionsq.wire.errors import ProtocolError

__all__ = [
    "AlreadyConnectedError",
    "AuthError",
    "AuthRequiredError",
    "ClientError",
    "ConfigError",
    "ConnectError",
    "DiscoveryError",
    "IdentifyError",
    "LastLookupdError",
    "NotConnectedError",
    "NotIdempotentError",
    "ProtocolError",
    "StoppedError",
    "UnknownOutcomeError",
    "UpgradeError",
]


class ClientError(Exception):
    """An error of the client library. The text says what failed, and with which nsqd."""


class ConfigError(ClientError, ValueError):
    """An unknown option, or a value that it cannot have."""


class ConnectError(ClientError):
    """No connection to nsqd could be made."""


class IdentifyError(ConnectError):
    """nsqd refused IDENTIFY, or its answer cannot be understood."""


class UpgradeError(ConnectError):
    """TLS or compression failed: nsqd does not offer it, is not trusted, or broke the protocol."""


class AuthError(ConnectError):
    """nsqd refused ``auth_secret``, or could not have it checked."""


class AuthRequiredError(AuthError):
    """nsqd requires a secret, and ``auth_secret`` is not set."""


class NotConnectedError(ClientError):
    """There is no connection, or it broke before nsqd answered.

    nsqd may or may not have executed the command.
    """


class NotIdempotentError(ConnectError):
    """nsqd does not offer idempotent publishes: it is another one, or they are turned off."""


class UnknownOutcomeError(NotConnectedError):
    """Nobody can say whether nsqd has stored what an idempotent producer published.

    nsqd did not come back in time, or it was started again and has forgotten.
    """


class StoppedError(ClientError):
    """The producer or consumer was stopped."""


class AlreadyConnectedError(ClientError):
    """This consumer already connects to that address."""


class LastLookupdError(ClientError):
    """The last nsqlookupd of a consumer cannot be removed."""


class DiscoveryError(ClientError):
    """No nsqlookupd gave a usable answer."""
