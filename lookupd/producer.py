"""One nsqd, as it told of itself with IDENTIFY. Spec: nsqlookupd, section 1."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from trionsq.wire import gojson

__all__ = ["Announced", "MissingFieldsError", "Producer", "read_announced"]


class MissingFieldsError(ValueError):
    """An address, a port or the version is not said."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What an nsqd says of itself; the names are those of the JSON object.

    Attributes:
        broadcast_address, hostname: host names, the first to be used by clients.
        tcp_port, http_port: where it listens.
        version: of its program.
    """

    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""


_KINDS: Final[dict[str, type]] = {field.name: type(field.default) for field in fields(Announced)}


def read_announced(body: bytes) -> Announced:
    """What the body of an IDENTIFY says.

    Raises:
        MissingFieldsError: something that clients need is missing, empty or 0.
        ValueError: it is not a JSON object, or a member has the wrong type.
    """
    found = Announced(**gojson.read_members(body, _KINDS))
    if not (found.broadcast_address and found.tcp_port and found.http_port and found.version):
        raise MissingFieldsError("IDENTIFY missing fields")
    return found


@dataclass(slots=True, eq=False)
class Producer:
    """An identified connection of an nsqd. Two that announce the same are two producers.

    Attributes:
        remote_address: the other end of the connection, ``ip:port``.
        announced: what it said of itself.
        last_update_ns: when it last identified itself or pinged.
    """

    remote_address: str
    announced: Announced
    last_update_ns: int

    @property
    def node(self) -> str:
        """Its name in the HTTP API, ``broadcast_address:http_port``."""
        return f"{self.announced.broadcast_address}:{self.announced.http_port}"
