"""What can go wrong, named by situation. Everything is a `ClientError`.

`ProtocolError` (from `trionsq.wire`) is what nsqd itself answered, and is no ClientError: its
``code`` is NSQ's.
"""

from __future__ import annotations

from trionsq.wire.errors import ProtocolError

__all__ = [
    "AlreadyConnectedError",
    "AuthRequiredError",
    "ClientError",
    "ConfigError",
    "ConnectError",
    "DiscoveryError",
    "IdentifyError",
    "LastLookupdError",
    "NotBuiltError",
    "NotConnectedError",
    "ProtocolError",
    "StoppedError",
]


class ClientError(Exception):
    """Something of the client library failed; the text says what, and with whom."""


class ConfigError(ClientError, ValueError):
    """An option that there is not, or a value that it can't have."""


class NotBuiltError(ConfigError):
    """An option whose feature this version lacks."""


class ConnectError(ClientError):
    """No connection to nsqd could be made."""


class IdentifyError(ConnectError):
    """nsqd refused IDENTIFY, or its answer can't be understood."""


class AuthRequiredError(ConnectError):
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
