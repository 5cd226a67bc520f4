"""The options of nsqadmin. Spec: options.

Field names are the flags with underscores; durations are nanoseconds and end in ``_ns``.
"""

from __future__ import annotations

import dataclasses
import posixpath
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final
from urllib.parse import urlsplit

from trionsq.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from trionsq.hostport import split_address
from trionsq.options import (
    BOOL,
    DEBUG_FROM,
    DURATION,
    INT,
    LOG_FORMAT,
    STRING,
    STRINGS,
    DaemonOptions,
    allow_host_option,
    allow_origin_option,
    choice,
    max_http_connections_option,
    option,
    prefix_option,
)

__all__ = ["NsqadminOptions", "OptionsError", "config_network", "validated"]


_MAX_HISTORY_NS: Final = 168 * 60 * MINUTE_NS


ACCESS = choice("way", "auto", "none", "password", "proxy")


class OptionsError(Exception):
    """The options don't go together; ``str()`` is the text of the FATAL log line."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqadminOptions(DaemonOptions):
    """Every option of nsqadmin 1.3, and ours."""

    log_prefix: str = prefix_option("nsqadmin")
    http_address: str = option(
        "http-address", "0.0.0.0:4171", STRING, "host:port (or unix socket path) to listen on"
    )
    base_path: str = option("base-path", "/", STRING, "prefix of the path of every page")
    dev_static_dir: str = option(
        "dev-static-dir", "", STRING, "folder to serve static files from, for development"
    )
    lookupd_http_address: tuple[str, ...] = option(
        "lookupd-http-address",
        (),
        STRINGS,
        "host:port of an nsqlookupd",
        key="nsqlookupd_http_addresses",
    )
    nsqd_http_address: tuple[str, ...] = option(
        "nsqd-http-address",
        (),
        STRINGS,
        "host:port of an nsqd, in a cluster without nsqlookupd",
        key="nsqd_http_addresses",
    )

    # Graphite
    graphite_url: str = option(
        "graphite-url", "", STRING, "URL of Graphite; its graphs are shown if it is set"
    )
    proxy_graphite: bool = option(
        "proxy-graphite",
        False,
        BOOL,
        "fetch Graphite's images for browsers instead of linking to them",
    )
    statsd_counter_format: str = option(
        "statsd-counter-format",
        "stats.counters.%s.count",
        STRING,
        "format of a counter's name in Graphite, %s is the key",
    )
    statsd_gauge_format: str = option(
        "statsd-gauge-format",
        "stats.gauges.%s",
        STRING,
        "format of a gauge's name in Graphite, %s is the key",
    )
    statsd_prefix: str = option(
        "statsd-prefix", "nsq.%s", STRING, "prefix of keys, as nsqd's option; %s is the host"
    )
    statsd_interval_ns: int = option(
        "statsd-interval", MINUTE_NS, DURATION, "interval between values, as nsqd's option"
    )

    # who may do what, and who is told
    notification_http_endpoint: str = option(
        "notification-http-endpoint", "", STRING, "URL that gets a POST for each user action"
    )
    allow_config_from_cidr: str = option(
        "allow-config-from-cidr",
        "127.0.0.1/8",
        STRING,
        'network that may use /config ("": all addresses)',
    )
    acl_http_header: str = option(
        "acl-http-header",
        "X-Forwarded-User",
        STRING,
        "header in which a proxy sends the user's name",
    )
    admin_user: tuple[str, ...] = option(
        "admin-user",
        (),
        STRINGS,
        "user who may make changes (if not set: all users)",
        key="admin_users",
    )
    access: str = option(
        "access",
        "auto",
        ACCESS,
        "how users are identified: auto, none, password or proxy",
        note="auto: --admin-user if it is set; no sign-in on loopback; else password",
    )
    users_file: str = option(
        "users-file", "", STRING, "file of users, a line name:role:hash for each; see --add-user"
    )
    add_user: str = option(
        "add-user",
        "",
        STRING,
        "name:role (viewer, operator, admin): ask for a password, add the user to --users-file "
        "or print the line, and exit",
        key=None,
    )
    proxy_role_header: str = option(
        "proxy-role-header", "", STRING, "header in which a proxy sends the user's role"
    )
    trusted_proxy_cidr: tuple[str, ...] = option(
        "trusted-proxy-cidr",
        (),
        STRINGS,
        "network of proxies whose headers are trusted (--access=proxy: loopback if not set)",
    )
    session_lifetime_ns: int = option(
        "session-lifetime",
        12 * HOUR_NS,
        DURATION,
        "time without a request after which a session ends",
    )
    audit_file: str = option(
        "audit-file", "", STRING, "file to append the audit to, one JSON object per line"
    )

    # to nsqd and nsqlookupd
    http_client_connect_timeout_ns: int = option(
        "http-client-connect-timeout", 2 * SECOND_NS, DURATION, "timeout for connecting to a node"
    )
    http_client_request_timeout_ns: int = option(
        "http-client-request-timeout", 5 * SECOND_NS, DURATION, "timeout for a request to a node"
    )
    http_client_tls_insecure_skip_verify: bool = option(
        "http-client-tls-insecure-skip-verify", False, BOOL, "accept any TLS certificate of a node"
    )
    http_client_tls_root_ca_file: str = option(
        "http-client-tls-root-ca-file",
        "",
        STRING,
        "CA certificates for the nodes' certificates (PEM)",
    )
    http_client_tls_cert: str = option(
        "http-client-tls-cert", "", STRING, "client certificate for requests to nodes (PEM)"
    )
    http_client_tls_key: str = option(
        "http-client-tls-key", "", STRING, "key of the client certificate (PEM)"
    )

    # ours
    http_client_max_requests: int = option(
        "http-client-max-requests", 16, INT, "maximum concurrent requests to nodes"
    )
    http_client_token_file: str = option(
        "http-client-token-file",
        "",
        STRING,
        "path of a file with the token for nsqds and nsqlookupds (empty: none)",
    )
    poll_interval_ns: int = option(
        "poll-interval",
        5 * SECOND_NS,
        DURATION,
        "interval between polls while a page is open (else at least 30s)",
    )
    history_ns: int = option(
        "history", 24 * HOUR_NS, DURATION, "how far back charts go", note="at least --poll-interval"
    )
    state_file: str = option(
        "state-file",
        "",
        STRING,
        "file to remember nodes over a restart; .history beside it has the charts (empty: none)",
    )
    expect_nsqd: tuple[str, ...] = option(
        "expect-nsqd",
        (),
        STRINGS,
        "host:port of the HTTP of an nsqd that must be there, as the page Nodes names it",
    )
    alert_http_endpoint: str = option(
        "alert-http-endpoint",
        "",
        STRING,
        "URL that gets a POST when a warning or critical problem begins or ends",
    )
    alert_secret_file: str = option(
        "alert-secret-file",
        "",
        STRING,
        "path of a file with the key that signs these POSTs (empty: not signed)",
    )
    link: tuple[str, ...] = option(
        "link",
        (),
        STRINGS,
        "name=URL of a link on all pages; on those of nodes if it has {node}, {host} or {port}",
    )
    http_allow_origin: tuple[str, ...] = allow_origin_option()
    http_allow_host: tuple[str, ...] = allow_host_option()
    max_http_connections: int = max_http_connections_option()
    log_format: str = option(
        "log-format", "classic", LOG_FORMAT, "classic lines, or json: one object per line"
    )
    debug_from: str = option(
        "debug-from",
        "loopback",
        DEBUG_FROM,
        "addresses that may read /debug/pprof: loopback, any or none",
    )


def validated(options: NsqadminOptions) -> NsqadminOptions:
    """The options with ``base_path`` in its right form: ``/`` or ``/some/path``.

    Raises:
        OptionsError: they don't go together, or one of them makes no sense.
    """
    lookupds, nsqds = options.lookupd_http_address, options.nsqd_http_address
    if not lookupds and not nsqds:
        raise OptionsError("--nsqd-http-address or --lookupd-http-address required")
    if lookupds and nsqds:
        raise OptionsError("use --nsqd-http-address or --lookupd-http-address not both")
    cert, key = options.http_client_tls_cert, options.http_client_tls_key
    if cert and not key:
        raise OptionsError("--http-client-tls-key must be specified with --http-client-tls-cert")
    if key and not cert:
        raise OptionsError("--http-client-tls-cert must be specified with --http-client-tls-key")
    if options.http_client_max_requests < 1:
        raise OptionsError("--http-client-max-requests must be at least 1")
    if options.poll_interval_ns < SECOND_NS:
        raise OptionsError("--poll-interval must be at least 1s")
    if not options.poll_interval_ns <= options.history_ns <= _MAX_HISTORY_NS:
        raise OptionsError("--history must be between --poll-interval and 168h")
    for address in options.expect_nsqd:
        if split_address(address) is None:
            raise OptionsError(f"--expect-nsqd ({address}) is not host:port")
    config_network(options)
    _check_links(options.link)
    _check_url("alert-http-endpoint", options.alert_http_endpoint)
    _check_url("graphite-url", options.graphite_url)
    path = posixpath.normpath("/" + options.base_path.strip("/"))
    return dataclasses.replace(options, base_path=path)


def config_network(options: NsqadminOptions) -> IPv4Network | IPv6Network | None:
    """Who may ask for /config; None: everybody.

    Raises:
        OptionsError: it is no network.
    """
    text = options.allow_config_from_cidr
    if not text:
        return None
    try:
        if "/" not in text:
            raise ValueError("a network needs a /")
        return ip_network(text, strict=False)
    except ValueError as error:
        reason = f"failed to parse --allow-config-from-cidr ({text}) - {error}"
        raise OptionsError(reason) from None


def _check_url(name: str, url: str) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        # Not the URL itself, there may be a password in it.
        raise OptionsError(f"failed to parse --{name} - not an http:// or https:// URL")


def _check_links(links: tuple[str, ...]) -> None:
    for text in links:
        name, _, url = text.partition("=")
        if not name.strip() or not url.startswith(("http://", "https://")):
            raise OptionsError(f"--link ({text}) is not name=URL with http:// or https://")
