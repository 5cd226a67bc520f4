"""The answers of nsqd and nsqlookupd, as far as they are used.

Unknown keys are ignored, missing keys have their defaults; a value of another type is an error of
the node. The garbage collector skips objects of which there may be many: JSON has no cycles.
Versions are ordered by the rules of semantic versioning (semver.org, 11). Spec: nsqd-http, section
5; nsqlookupd.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from trionsq.hostport import format_address

__all__ = [
    "ChannelStats",
    "ClientStats",
    "Count",
    "Info",
    "Latency",
    "Lookup",
    "Named",
    "NodeList",
    "NodeStats",
    "Producer",
    "TopicStats",
    "version_key",
]

Count: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An int64, as in Go."""


class Latency(Struct):
    """Quantiles of the time from publish to FIN; ``value`` of each in nanoseconds."""

    count: Count = 0
    percentiles: list[dict[str, Count | float]] | None = None


class ClientStats(Struct, gc=False):
    """A consumer; ``connect_ts`` in seconds since 1970."""

    client_id: str = ""
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    state: Count = 0
    ready_count: Count = 0
    in_flight_count: Count = 0
    message_count: Count = 0
    finish_count: Count = 0
    requeue_count: Count = 0
    connect_ts: Count = 0
    sample_rate: Count = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelStats(Struct, gc=False):
    """A channel on one node. ``clients`` is None if they were not requested."""

    channel_name: str
    depth: Count = 0
    backend_depth: Count = 0
    in_flight_count: Count = 0
    deferred_count: Count = 0
    message_count: Count = 0
    requeue_count: Count = 0
    timeout_count: Count = 0
    client_count: Count = 0
    clients: list[ClientStats] | None = None
    paused: bool = False
    e2e_processing_latency: Latency | None = None


class TopicStats(Struct, gc=False):
    """A topic on one node."""

    topic_name: str
    channels: list[ChannelStats] | None = None
    depth: Count = 0
    backend_depth: Count = 0
    message_count: Count = 0
    message_bytes: Count = 0
    paused: bool = False
    e2e_processing_latency: Latency | None = None


class NodeStats(Struct):
    """nsqd's /stats; ``start_time`` in seconds since 1970.

    ``nbytes`` is ours: the size of the JSON, as a measure of the work to process it.
    """

    version: str = ""
    health: str = ""
    start_time: Count = 0
    topics: list[TopicStats] | None = None
    nbytes: int = 0


class Info(Struct):
    """nsqd's /info."""

    version: str = ""
    broadcast_address: str = ""
    hostname: str = ""
    http_port: Count = 0
    tcp_port: Count = 0
    start_time: Count = 0


class Producer(Struct):
    """An nsqd, as nsqlookupd's /nodes and /lookup show it, or as its own /info does.

    ``tombstones`` has an item for each of ``topics``. The fields below it are ours:
    ``remote_addresses`` has an item ``nsqlookupd/remote address`` for each nsqlookupd that knows
    the node (None if none was asked); ``out_of_date``: another node has a newer version.
    """

    remote_address: str = ""
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: Count = 0
    http_port: Count = 0
    version: str = ""
    topics: list[str] | None = None
    tombstones: list[bool] | None = None
    remote_addresses: list[str] | None = None
    out_of_date: bool = False

    @property
    def node(self) -> str:
        """``broadcast_address:http_port``: its HTTP address, and its name on all pages."""
        return format_address(self.broadcast_address, self.http_port)

    @property
    def tcp_node(self) -> str:
        """``broadcast_address:tcp_port``: its identity for nsqlookupds."""
        return format_address(self.broadcast_address, self.tcp_port)


class NodeList(Struct):
    """nsqlookupd's /nodes."""

    producers: list[Producer] | None = None


class Lookup(Struct):
    """nsqlookupd's /lookup."""

    channels: list[str] | None = None
    producers: list[Producer] | None = None


class Named(Struct):
    """nsqlookupd's /topics and /channels."""

    topics: list[str] | None = None
    channels: list[str] | None = None


_VERSION: Final = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:-([^+]*))?(?:\+.*)?")

VersionKey = tuple[tuple[int, int, str], ...]


def version_key(version: str) -> VersionKey:
    """A sort key for a version; text that is not a version is older than any."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return ()
    numbers: VersionKey = tuple((1, int(part or 0), "") for part in match.groups()[:3])
    if match[4] is None:
        return (*numbers, (2, 0, ""))  # a release is later than its pre-releases
    return (*numbers, *map(_version_part, match[4].split(".")))


def _version_part(text: str) -> tuple[int, int, str]:
    if text.isdecimal() and len(text) < 10:
        return (0, int(text), "")
    return (1, 0, text)
