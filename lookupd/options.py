"""The options of nsqlookupd. Spec: options.

Field names are the flags with underscores; durations are nanoseconds and end in ``_ns``.
"""

from __future__ import annotations

import dataclasses
import socket

from trionsq.durations import MINUTE_NS, SECOND_NS
from trionsq.options import (
    DEBUG_FROM,
    DURATION,
    LOG_FORMAT,
    STRING,
    DaemonOptions,
    allow_host_option,
    allow_origin_option,
    max_http_connections_option,
    option,
    prefix_option,
)

__all__ = ["NsqlookupdOptions"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqlookupdOptions(DaemonOptions):
    """Every option of nsqlookupd 1.3, and ours."""

    log_prefix: str = prefix_option("nsqlookupd")
    tcp_address: str = option(
        "tcp-address",
        "0.0.0.0:4160",
        STRING,
        "host:port (or unix socket path) to listen on for nsqd",
    )
    http_address: str = option(
        "http-address",
        "0.0.0.0:4161",
        STRING,
        "host:port (or unix socket path) to listen on for HTTP",
    )
    broadcast_address: str = option(
        "broadcast-address",
        "",
        STRING,
        "name or address of this host that nsqd is sent",
        factory=socket.gethostname,
    )
    inactive_producer_timeout_ns: int = option(
        "inactive-producer-timeout",
        5 * MINUTE_NS,
        DURATION,
        "time without a ping after which a producer is hidden",
    )
    tombstone_lifetime_ns: int = option(
        "tombstone-lifetime",
        45 * SECOND_NS,
        DURATION,
        "time that a tombstoned producer is hidden from lookups of the topic",
    )

    # ours
    http_allow_origin: tuple[str, ...] = allow_origin_option()
    http_allow_host: tuple[str, ...] = allow_host_option()
    max_http_connections: int = max_http_connections_option()
    log_format: str = option(
        "log-format", "classic", LOG_FORMAT, "classic lines, or json: one object per line"
    )
    acl_file: str = option(
        "acl-file",
        "",
        STRING,
        "path of a TOML file that says who may use the HTTP API (empty: all may)",
    )
    debug_from: str = option(
        "debug-from",
        "loopback",
        DEBUG_FROM,
        "addresses that may read /debug/pprof: loopback, any or none",
    )
