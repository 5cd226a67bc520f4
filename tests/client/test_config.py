"""The options of producers and consumers (trionsq.client.config). Spec: client, section 8."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trionsq.client import Config, ConfigError


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max_in_flight,200", "max_in_flight", 200),
        ("read-timeout,1m30s", "read_timeout_s", 90.0),
        ("read_timeout,45000", "read_timeout_s", 45.0),
        ("heartbeat_interval,-1", "heartbeat_interval_s", -1.0),
        ("lookupd_poll_jitter,0.5", "lookupd_poll_jitter", 0.5),
        ("backoff_strategy,full_jitter", "backoff_strategy", "full_jitter"),
        ("snappy", "snappy", True),
        ("snappy,0", "snappy", False),
        ("user_agent,a,b", "user_agent", "a,b"),
    ],
)
def test_options_are_read_from_text(text: str, name: str, value: object) -> None:
    """One option changes, all others keep their values."""
    assert getattr(Config().parse(text), name) == value
    assert Config().parse(text, text) == Config().parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "no_such_option,1",
        "max_in_flight",
        "max_in_flight,x",
        "max_in_flight,-1",
        "read_timeout,1ms",
        "read_timeout,soon",
        "snappy,perhaps",
        "backoff_strategy,linear",
        "lookupd_poll_jitter,nan",
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=text.partition(",")[0]):
        Config().parse(text)


@pytest.mark.parametrize(
    "options",
    [
        {"read_timeout_s": 0.05},
        {"max_attempts": 65536},
        {"sample_rate": 100},
        {"heartbeat_interval_s": 61},
        {"heartbeat_interval_s": 0},
        {"output_buffer_size": -2},
        {"tls_min_version": "tls9"},
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """Making the object raises ConfigError."""
    with pytest.raises(ConfigError):
        Config(**options)


DEFAULTS = """
dial_timeout = 1s
read_timeout = 60s
write_timeout = 1s
tcp_user_timeout = 10s
local_addr =
lookupd_poll_interval = 60s
lookupd_poll_jitter = 0.3
lookupd_poll_timeout = 1m
max_requeue_delay = 15m
default_requeue_delay = 90s
backoff_strategy = exponential
max_backoff_duration = 2m
backoff_multiplier = 1s
max_attempts = 5
low_rdy_idle_timeout = 10s
low_rdy_timeout = 30s
rdy_redistribute_interval = 5s
heartbeat_interval = 30s
sample_rate = 0
tls_v1 = false
tls_min_version = tls1.0
deflate = false
deflate_level = 6
snappy = false
output_buffer_size = 16384
output_buffer_timeout = 250ms
max_in_flight = 1
msg_timeout = 0
auth_secret =
skip_lookupd_authorization = true
"""


@pytest.mark.parametrize("line", DEFAULTS.strip().splitlines())
def test_a_default_is_the_documented_one(line: str) -> None:
    """A program that sets nothing has the values of go-nsq, and the one of docs/client.md."""
    name, _, value = line.partition(" =")
    assert Config().parse(f"{name},{value.strip()}") == Config()


def test_requeue_delays_grow_with_attempts() -> None:
    """The delay is default_requeue_delay x attempts, up to max_requeue_delay."""
    config = Config(default_requeue_delay_s=90, max_requeue_delay_s=200)
    assert [config.requeue_delay_s(attempts) for attempts in (1, 2, 3)] == [90, 180, 200]


def test_the_identity_is_json_in_milliseconds() -> None:
    """Times in IDENTIFY are milliseconds; -1 stays -1."""
    config = Config(client_id="c", hostname="h", output_buffer_timeout_s=-1, msg_timeout_s=2.5)
    identity = json.loads(json.dumps(config.identity()))
    assert identity["short_id"] == "c"
    assert identity["heartbeat_interval"] == 30_000
    assert identity["output_buffer_timeout"] == -1
    assert identity["msg_timeout"] == 2500
    assert "topology_zone" not in identity


def test_the_secret_is_not_shown() -> None:
    """The repr, which may end up in a log, does not contain it."""
    assert "hush" not in repr(Config(auth_secret="hush"))
