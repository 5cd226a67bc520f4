"""What can go wrong, named by situation. Everything is a `ClientError`.

`ProtocolError` (from `trionsq.wire`) is what nsqd itself answered, and is no ClientError: its
``code`` is NSQ's.
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
    "ProtocolError",
    "StoppedError",
    "UpgradeError",
]


class ClientError(Exception):
    """Something of the client library failed; the text says what, and with whom."""


class ConfigError(ClientError, ValueError):
    """An option that there is not, or a value that it can't have."""


class ConnectError(ClientError):
    """No connection to nsqd could be made."""


class IdentifyError(ConnectError):
    """nsqd refused IDENTIFY, or its answer can't be understood."""


class UpgradeError(ConnectError):
    """TLS or compression could not be begun: nsqd lacks it, is not trusted, or speaks otherwise."""


class AuthError(ConnectError):
    """nsqd refused ``auth_secret``, or could not have it checked."""


class AuthRequiredError(AuthError):
    """nsqd wants a secret, and ``auth_secret`` is not set."""


class NotConnectedError(ClientError):
    """The connection broke while something waited for it, or there is none.

    Whether nsqd acted on the command is not known.
    """


class StoppedError(ClientError):
    """The producer or consumer was stopped."""


class AlreadyConnectedError(ClientError):
    """That address is in use by this consumer."""


class LastLookupdError(ClientError):
    """A consumer that discovers keeps at least one nsqlookupd."""


class DiscoveryError(ClientError):
    """No nsqlookupd gave a usable answer."""
