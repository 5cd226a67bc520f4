"""The options of nsqd: flag, default, help and config key of each; the errors at start.

Field names are the flags with underscores; durations are nanoseconds and end in ``_ns``.
Levels, tls_required and tls_min_version are lower-case strings.
"""

import dataclasses
import hashlib
import re
import socket
import zlib

from trionsq.broker import admin_options, limit_options, log_options, node_options
from trionsq.broker.idempotency_options import max_keys_option, window_option
from trionsq.durations import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from trionsq.hostport import split_address
from trionsq.options import (
    BOOL,
    DEBUG_FROM,
    DURATION,
    INT,
    LOG_FORMAT,
    PERCENTILES,
    STRING,
    STRINGS,
    DaemonOptions,
    allow_host_option,
    allow_origin_option,
    choice,
    max_http_connections_option,
    option,
    prefix_option,
    table,
)

TLS_REQUIRED = choice("true|false|tcp-https", "true", "false", "tcp-https", boolean=True)
TLS_MIN_VERSION = choice("version", "tls1.0", "tls1.1", "tls1.2", "tls1.3", default="tls1.0")
AUTH_METHOD = choice("method", "get", "post")


class OptionsError(Exception):
    """Options with which nsqd cannot start; ``str()`` is the text of its FATAL log line."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"failed to instantiate nsqd - {reason}")


def default_node_id(hostname: str | None = None) -> int:
    """Return the node id of a host (default: this one): 0..1023, the same at each start."""
    name = (socket.gethostname() if hostname is None else hostname).encode()
    return zlib.crc32(hashlib.md5(name, usedforsecurity=False).digest()) % 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqdOptions(DaemonOptions):
    """The options of nsqd 1.3, and ours. `validated` has the rules between them."""

    # process
    log_prefix: str = prefix_option("nsqd")
    node_id: int = option(
        "node-id",
        0,
        INT,
        "part of message ids, 0..1023 (default: from the host name)",
        key="id",
        factory=default_node_id,
    )
    worker_id: bool = option(
        "worker-id", False, BOOL, "no effect", key=None, deprecated="use --node-id"
    )

    # addresses
    https_address: str = option(
        "https-address",
        "0.0.0.0:4152",
        STRING,
        "<addr>:<port> for HTTPS, with --tls-cert only (empty: none)",
    )
    http_address: str = option(
        "http-address",
        "0.0.0.0:4151",
        STRING,
        "<addr>:<port> or path of a unix socket for HTTP (empty: none)",
    )
    tcp_address: str = option(
        "tcp-address", "0.0.0.0:4150", STRING, "<addr>:<port> or path of a unix socket for clients"
    )
    auth_http_address: tuple[str, ...] = option(
        "auth-http-address",
        (),
        STRINGS,
        "<addr>:<port> or URL of an auth server",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = option(
        "auth-http-request-method", "get", AUTH_METHOD, "HTTP method for auth servers: get or post"
    )
    broadcast_address: str = option(
        "broadcast-address",
        "",
        STRING,
        "address that nsqlookupd gives to clients (default: the host name)",
        factory=socket.gethostname,
    )
    broadcast_tcp_port: int = option(
        "broadcast-tcp-port",
        0,
        INT,
        "TCP port that nsqlookupd gives to clients (0: the listening port)",
    )
    broadcast_http_port: int = option(
        "broadcast-http-port",
        0,
        INT,
        "HTTP port that nsqlookupd gives to clients (0: the listening port)",
    )
    # None after /config was given null; it means no nsqlookupd.
    lookupd_tcp_address: tuple[str, ...] | None = option(
        "lookupd-tcp-address",
        (),
        STRINGS,
        "<addr>:<port> of an nsqlookupd",
        key="nsqlookupd_tcp_addresses",
    )
    http_client_connect_timeout_ns: int = option(
        "http-client-connect-timeout",
        2 * SECOND_NS,
        DURATION,
        "to connect to auth servers and nsqlookupds",
    )
    http_client_request_timeout_ns: int = option(
        "http-client-request-timeout",
        5 * SECOND_NS,
        DURATION,
        "for a request to auth servers and nsqlookupds",
    )

    # queues and disk
    data_path: str = option(
        "data-path", "", STRING, "directory of queues and metadata (empty: the current one)"
    )
    mem_queue_size: int = option(
        "mem-queue-size", 10_000, INT, "messages in memory per topic and channel"
    )
    max_bytes_per_file: int = option(
        "max-bytes-per-file", 104_857_600, INT, "maximum size of a disk queue file, in bytes"
    )
    sync_every: int = option("sync-every", 2_500, INT, "disk queue operations between fsyncs")
    sync_timeout_ns: int = option(
        "sync-timeout", 2 * SECOND_NS, DURATION, "time between fsyncs, above 0"
    )
    queue_scan_worker_pool_max: int = option(
        "queue-scan-worker-pool-max", 4, INT, "no effect: a scan needs no workers"
    )
    queue_scan_selection_count: int = option(
        "queue-scan-selection-count", 20, INT, "channels scanned in a turn, every 100ms"
    )

    # messages and commands
    msg_timeout_ns: int = option(
        "msg-timeout", MINUTE_NS, DURATION, "time until a message in flight is requeued"
    )
    max_msg_timeout_ns: int = option(
        "max-msg-timeout", 15 * MINUTE_NS, DURATION, "longest time in flight, TOUCH included"
    )
    max_msg_size: int = option(
        "max-msg-size",
        1_048_576,
        INT,
        "maximum size of a message, in bytes",
        aliases=("max-message-size",),
    )
    max_req_timeout_ns: int = option(
        "max-req-timeout", HOUR_NS, DURATION, "longest delay of REQ, DPUB and defer"
    )
    max_body_size: int = option(
        "max-body-size", 5_242_880, INT, "maximum size of a command's body, in bytes"
    )

    # clients
    max_heartbeat_interval_ns: int = option(
        "max-heartbeat-interval",
        MINUTE_NS,
        DURATION,
        "longest heartbeat interval that a client may set",
    )
    max_rdy_count: int = option("max-rdy-count", 2_500, INT, "maximum RDY of a client")
    max_output_buffer_size: int = option(
        "max-output-buffer-size", 65_536, INT, "largest buffer that a client may set, in bytes"
    )
    max_output_buffer_timeout_ns: int = option(
        "max-output-buffer-timeout",
        30 * SECOND_NS,
        DURATION,
        "longest buffer timeout that a client may set",
    )
    min_output_buffer_timeout_ns: int = option(
        "min-output-buffer-timeout",
        25 * MILLISECOND_NS,
        DURATION,
        "shortest buffer timeout that a client may set",
    )
    output_buffer_timeout_ns: int = option(
        "output-buffer-timeout",
        250 * MILLISECOND_NS,
        DURATION,
        "buffer timeout of clients that set none, above 0",
    )
    max_channel_consumers: int = option(
        "max-channel-consumers", 0, INT, "maximum consumers of a channel (0: no limit)"
    )

    # statsd and latencies
    statsd_address: str = option(
        "statsd-address", "", STRING, "<addr>:<port> of statsd, by UDP (empty: none)"
    )
    statsd_interval_ns: int = option(
        "statsd-interval", MINUTE_NS, DURATION, "time between pushes, above 1s"
    )
    statsd_mem_stats: bool = option("statsd-mem-stats", True, BOOL, "push memory statistics")
    statsd_prefix: str = option(
        "statsd-prefix", "nsq.%s", STRING, "prefix of metric names (%s: host and port)"
    )
    statsd_udp_packet_size: int = option(
        "statsd-udp-packet-size", 508, INT, "maximum size of a datagram, in bytes"
    )
    statsd_exclude_ephemeral: bool = option(
        "statsd-exclude-ephemeral", False, BOOL, "leave out #ephemeral topics and channels"
    )
    e2e_processing_latency_percentile: tuple[float, ...] = option(
        "e2e-processing-latency-percentile",
        (),
        PERCENTILES,
        "latency quantiles to compute, above 0 and up to 1, with commas between them",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = option(
        "e2e-processing-latency-window-time",
        10 * MINUTE_NS,
        DURATION,
        "time that the latency quantiles cover",
    )

    # TLS and compression
    tls_cert: str = option("tls-cert", "", STRING, "path of the server's certificate")
    tls_key: str = option("tls-key", "", STRING, "path of the certificate's key")
    tls_client_auth_policy: str = option(
        "tls-client-auth-policy", "", STRING, "client certificates: require or require-verify"
    )
    tls_root_ca_file: str = option(
        "tls-root-ca-file", "", STRING, "path of the CA of client certificates and auth servers"
    )
    tls_required: str = option(
        "tls-required", "false", TLS_REQUIRED, "require TLS (tcp-https: not for HTTP)"
    )
    tls_min_version: str = option(
        "tls-min-version",
        "tls1.0",
        TLS_MIN_VERSION,
        "minimum TLS version: tls1.0, tls1.1, tls1.2 or tls1.3",
    )
    deflate: bool = option("deflate", True, BOOL, "offer deflate to clients")
    max_deflate_level: int = option(
        "max-deflate-level", 6, INT, "maximum deflate level of clients, 1..9"
    )
    snappy: bool = option("snappy", True, BOOL, "offer snappy to clients")

    # ours
    requeue_on_disconnect: bool = option(
        "requeue-on-disconnect",
        False,
        BOOL,
        "requeue messages in flight as soon as their client disconnects, not at their timeout",
    )
    max_connections: int = limit_options.max_connections_option()
    max_connection_rate: int = limit_options.max_connection_rate_option()
    max_connection_burst: int = limit_options.max_connection_burst_option()
    http_allow_origin: tuple[str, ...] = allow_origin_option()
    http_allow_host: tuple[str, ...] = allow_host_option()
    max_http_connections: int = max_http_connections_option()
    log_format: str = option(
        "log-format", "classic", LOG_FORMAT, "classic (lines of text) or json (an object per line)"
    )
    admin: bool = admin_options.admin_option()
    admin_access: str = admin_options.admin_access_option()
    admin_users_file: str = admin_options.admin_users_file_option()
    storage: str = log_options.storage_option()
    move_topics: bool = log_options.move_topics_option()
    durability: str = log_options.durability_option()
    state_interval_ns: int = log_options.state_interval_option()
    retain_ns: int = log_options.retain_option()
    retain_bytes: int = log_options.retain_bytes_option()
    idempotency_window_ns: int = window_option()
    idempotency_max_keys: int = max_keys_option()
    policy_file: str = limit_options.policy_file_option()
    min_free_disk: int = limit_options.min_free_disk_option()
    max_memory: int = limit_options.max_memory_option()
    sigterm: str = node_options.sigterm_option()
    drain_timeout_ns: int = node_options.drain_timeout_option()
    acl_file: str = node_options.acl_file_option()
    lookupd_token_file: str = node_options.lookupd_token_file_option()
    max_defer_timeout_ns: int = node_options.max_defer_timeout_option()
    debug_from: str = option(
        "debug-from",
        "loopback",
        DEBUG_FROM,
        "addresses that may read /debug: loopback, any or none",
    )

    @property
    def max_defer_ns(self) -> int:
        """The longest delay of a publish."""
        return self.max_defer_timeout_ns or self.max_req_timeout_ns

    @property
    def max_delay_ns(self) -> int:
        """The longest delay of any message."""
        return max(self.max_defer_ns, self.max_req_timeout_ns)


_NOT_NEGATIVE = frozenset(
    {
        "mem_queue_size",
        "max_msg_size",
        "max_body_size",
        "max_rdy_count",
        "max_channel_consumers",
        "max_connections",
        "max_connection_rate",
        "max_connection_burst",
        "max_http_connections",
        "retain_ns",
        "retain_bytes",
        "idempotency_window_ns",
        "idempotency_max_keys",
        "min_free_disk",
        "max_memory",
        "drain_timeout_ns",
        "max_defer_timeout_ns",
    }
)


def validated(options: NsqdOptions) -> NsqdOptions:
    """Check the options, and set tls_required if tls_client_auth_policy asks for it.

    Raises:
        OptionsError: a value out of range, or TLS required without a certificate.
    """
    if options.tls_client_auth_policy and options.tls_required == "false":
        options = dataclasses.replace(options, tls_required="true")
    _check_ranges(options)
    if options.tls_required != "false" and not (options.tls_cert or options.tls_key):
        raise OptionsError("cannot require TLS client connections without TLS key and cert")
    if options.move_topics and options.storage != "log":
        raise OptionsError("--move-topics needs --storage=log")
    if options.admin:
        _check_admin(options)
    for percentile in options.e2e_processing_latency_percentile:
        if not 0 < percentile <= 1:
            text = re.sub(r"\.0$", "", str(percentile))
            raise OptionsError(f"invalid E2E processing latency percentile: {text}")
    return options


def _check_admin(options: NsqdOptions) -> None:
    if not options.http_address or split_address(options.http_address) is None:
        raise OptionsError("--admin needs an --http-address that is host:port")
    if options.tls_required == "true" and not options.https_address:
        raise OptionsError("--admin with --tls-required needs an --https-address")
    if options.admin_users_file and options.admin_access == "none":
        raise OptionsError("--admin-users-file has no meaning with --admin-access=none")


def _check_ranges(options: NsqdOptions) -> None:
    if not 1 <= options.max_deflate_level <= 9:
        raise OptionsError("--max-deflate-level must be [1,9]")
    if not 0 <= options.node_id < 1024:
        raise OptionsError("--node-id must be [0,1024)")
    if options.output_buffer_timeout_ns <= 0:
        raise OptionsError("--output-buffer-timeout must be > 0")
    if options.sync_timeout_ns <= 0:
        raise OptionsError("--sync-timeout must be > 0")
    if options.state_interval_ns <= 0:
        raise OptionsError("--state-interval must be > 0")
    if options.statsd_address and options.statsd_interval_ns <= SECOND_NS:
        raise OptionsError("--statsd-interval must be > 1s")
    if options.e2e_processing_latency_window_time_ns <= 0:
        raise OptionsError("--e2e-processing-latency-window-time must be > 0")
    for name, spec in table(options):
        if name in _NOT_NEGATIVE and getattr(options, name) < 0:
            raise OptionsError(f"--{spec.flag} must be >= 0")
