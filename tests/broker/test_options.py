"""nsqd's options: the whole table against the documented facts, and the rules among them."""

import dataclasses
import hashlib
import socket
from typing import Any

import pytest

from trionsq.broker.options import (
    NsqdOptions,
    OptionsError,
    default_node_id,
    validated,
)
from trionsq.options import default_of, table

HOSTNAME = socket.gethostname()
# flag, config key ("=": the flag with underscores, "-": none), default as documented
FACTS = f"""
version - false
config -
log-level = info
log-prefix = [nsqd]
verbose - false
node-id id {default_node_id(HOSTNAME)}
worker-id - false
https-address = 0.0.0.0:4152
http-address = 0.0.0.0:4151
tcp-address = 0.0.0.0:4150
auth-http-address auth_http_addresses
auth-http-request-method = get
broadcast-address = {HOSTNAME}
broadcast-tcp-port = 0
broadcast-http-port = 0
lookupd-tcp-address nsqlookupd_tcp_addresses
http-client-connect-timeout = 2s
http-client-request-timeout = 5s
data-path =
mem-queue-size = 10000
max-bytes-per-file = 104857600
sync-every = 2500
sync-timeout = 2s
queue-scan-worker-pool-max = 4
queue-scan-selection-count = 20
msg-timeout = 1m
max-msg-timeout = 15m
max-msg-size = 1048576
max-req-timeout = 1h
max-body-size = 5242880
max-heartbeat-interval = 1m
max-rdy-count = 2500
max-output-buffer-size = 65536
max-output-buffer-timeout = 30s
min-output-buffer-timeout = 25ms
output-buffer-timeout = 250ms
max-channel-consumers = 0
statsd-address =
statsd-interval = 1m
statsd-mem-stats = true
statsd-prefix = nsq.%s
statsd-udp-packet-size = 508
statsd-exclude-ephemeral = false
e2e-processing-latency-percentile e2e_processing_latency_percentiles
e2e-processing-latency-window-time = 10m
tls-cert =
tls-key =
tls-client-auth-policy =
tls-root-ca-file =
tls-required = false
tls-min-version = tls1.0
deflate = true
max-deflate-level = 6
snappy = true
"""


def facts() -> list[tuple[str, str | None, str]]:
    """Return (flag, config key, default text) of each documented option, in order."""
    rows = []
    for line in FACTS.strip().splitlines():
        flag, key, default = [*line.split(" "), ""][:3]
        rows.append((flag, {"=": flag.replace("-", "_"), "-": None}.get(key, key), default))
    return rows


OUR_OWN = [
    ("requeue-on-disconnect", "requeue_on_disconnect"),
    ("max-connections", "max_connections"),
    ("max-connection-rate", "max_connection_rate"),
    ("max-connection-burst", "max_connection_burst"),
    ("http-allow-origin", "http_allow_origins"),
    ("http-allow-host", "http_allow_hosts"),
    ("max-http-connections", "max_http_connections"),
    ("log-format", "log_format"),
    ("admin", "admin"),
    ("admin-access", "admin_access"),
    ("admin-users-file", "admin_users_file"),
    ("storage", "storage"),
    ("move-topics", "move_topics"),
    ("durability", "durability"),
    ("state-interval", "state_interval"),
    ("retain", "retain"),
    ("retain-bytes", "retain_bytes"),
    ("idempotency-window", "idempotency_window"),
    ("idempotency-max-keys", "idempotency_max_keys"),
    ("policy-file", "policy_file"),
    ("min-free-disk", "min_free_disk"),
    ("max-memory", "max_memory"),
    ("sigterm", "sigterm"),
    ("drain-timeout", "drain_timeout"),
    ("acl-file", "acl_file"),
    ("lookupd-token-file", "lookupd_token_file"),
    ("max-defer-timeout", "max_defer_timeout"),
    ("debug-from", "debug_from"),
]


def test_the_table_is_the_documented_one() -> None:
    """Every flag, config key and default is as documented: none missing, none odd."""
    ours = [(spec.flag, spec.key) for _, spec in table(NsqdOptions)]
    documented = [(flag, key) for flag, key, _ in facts()]
    assert ours == [*documented, *OUR_OWN]


@pytest.mark.parametrize(("flag", "default"), [(flag, text) for flag, _, text in facts()])
def test_a_default_is_the_documented_one(flag: str, default: str) -> None:
    """An option that is not set has its documented default."""
    name, spec = next((name, spec) for name, spec in table(NsqdOptions) if spec.flag == flag)
    value = default_of(NsqdOptions, name)
    if flag == "log-prefix":
        default += " "  # the documented default ends in a space
    assert value == (() if spec.kind.join and not default else spec.kind.parse(default))
    assert getattr(NsqdOptions(), name) == value


def test_fields_are_named_after_flags() -> None:
    """A field is its flag with underscores, with the unit after a duration's name."""
    for name, spec in table(NsqdOptions):
        suffix = "_ns" if spec.kind.name == "duration" else ""
        assert name == spec.flag.replace("-", "_") + suffix


def test_the_node_id_of_a_host_stays_the_same() -> None:
    """The default node id depends on the host name alone, and fits its ten bits."""
    assert default_node_id("abc") == 849
    assert 0 <= default_node_id() < 1024


def test_the_node_id_needs_no_digest_for_security(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that forbids MD5 for that lets nsqd start all the same."""
    md5 = hashlib.md5

    def strict(data: bytes, *, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return md5(data, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", strict)
    assert default_node_id("abc") == 849


def test_the_defaults_start() -> None:
    """nsqd without any flag has options that are valid, and unchanged."""
    assert validated(NsqdOptions()) == NsqdOptions()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_deflate_level": 0}, "--max-deflate-level must be [1,9]"),
        ({"max_deflate_level": 10}, "--max-deflate-level must be [1,9]"),
        ({"node_id": -1}, "--node-id must be [0,1024)"),
        ({"node_id": 1024}, "--node-id must be [0,1024)"),
        (
            {"tls_required": "true"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            {"tls_client_auth_policy": "require"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            {"e2e_processing_latency_percentile": (1.5, 0.5)},
            "invalid E2E processing latency percentile: 1.5",
        ),
        (
            {"e2e_processing_latency_percentile": (2.0,)},
            "invalid E2E processing latency percentile: 2",
        ),
        (
            {"e2e_processing_latency_percentile": (float("nan"),)},
            "invalid E2E processing latency percentile: nan",
        ),
        ({"output_buffer_timeout_ns": 0}, "--output-buffer-timeout must be > 0"),
        ({"sync_timeout_ns": 0}, "--sync-timeout must be > 0"),
        ({"state_interval_ns": 0}, "--state-interval must be > 0"),
        ({"retain_ns": -1}, "--retain must be >= 0"),
        ({"retain_bytes": -1}, "--retain-bytes must be >= 0"),
        ({"idempotency_window_ns": -1}, "--idempotency-window must be >= 0"),
        ({"idempotency_max_keys": -1}, "--idempotency-max-keys must be >= 0"),
        ({"min_free_disk": -1}, "--min-free-disk must be >= 0"),
        ({"max_memory": -1}, "--max-memory must be >= 0"),
        ({"drain_timeout_ns": -1}, "--drain-timeout must be >= 0"),
        ({"max_defer_timeout_ns": -1}, "--max-defer-timeout must be >= 0"),
        (
            {"statsd_address": "127.0.0.1:8125", "statsd_interval_ns": 10**9},
            "--statsd-interval must be > 1s",
        ),
        (
            {"e2e_processing_latency_window_time_ns": 0},
            "--e2e-processing-latency-window-time must be > 0",
        ),
        ({"mem_queue_size": -1}, "--mem-queue-size must be >= 0"),
        ({"move_topics": True}, "--move-topics needs --storage=log"),
        (
            {"admin": True, "http_address": ""},
            "--admin needs an --http-address that is host:port",
        ),
        (
            {"admin": True, "http_address": "http.sock"},
            "--admin needs an --http-address that is host:port",
        ),
    ],
)
def test_a_bad_value_ends_the_start(changes: dict[str, Any], reason: str) -> None:
    """Each rule has its own error text."""
    with pytest.raises(OptionsError) as raised:
        validated(dataclasses.replace(NsqdOptions(), **changes))
    assert str(raised.value) == f"failed to instantiate nsqd - {reason}"
