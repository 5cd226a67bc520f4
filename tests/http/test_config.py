"""/config: every option is shown, two can be changed."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
from quart import Response
from quart_trio import QuartTrio

from tests.http.conftest import StartBroker
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.http.app import create_app
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.options import table

KEYS = [(name, spec.key) for name, spec in table(NsqdOptions) if spec.key is not None]


async def send(app: QuartTrio, method: str, key: str, body: bytes = b"") -> tuple[int, str]:
    """Status and body of the answer."""
    response: Response = await app.test_client().open(  # type: ignore[call-arg]
        f"/config/{key}", method=method, data=body
    )
    return response.status_code, await response.get_data(as_text=True)


def refused(status: int, code: str) -> tuple[int, str]:
    """A refusal as `send` returns it."""
    return status, f'{{"message":"{code}"}}'


CHOICES = {
    "log_level": ("error", "4"),
    "tls_required": ("tcp-https", "1"),
    "tls_min_version": ("tls1.2", str(0x0303)),
}
"""Of options with names for numbers: a choice, and its number."""


def other_value(name: str) -> tuple[object, str]:
    """A value that no option has by default, and how it is shown."""
    if name in CHOICES:
        return CHOICES[name]
    if name == "statsd_prefix":
        return "another", "another."
    match getattr(NsqdOptions(), name):
        case bool() as value:
            return not value, str(not value).lower()
        case int():
            return 7_654_321, "7654321"
        case str():
            return "another value", "another value"
        case tuple():
            return ("one", "two"), '["one","two"]'
    raise AssertionError(name)


@pytest.mark.parametrize(("name", "key"), KEYS)
async def test_each_option_is_shown_by_its_key(broker: Broker, name: str, key: str) -> None:
    """Whatever a config file may set can be asked for, and its present value is the answer; names
    of other kinds are unknown."""
    app = create_app(broker)
    value, shown = other_value(name)
    live = broker.live_options
    changed: Any = {name: value}
    live.current = dataclasses.replace(live.current, **changed)
    assert await send(app, "GET", key) == (200, shown)
    if name != key:
        assert await send(app, "GET", name) == refused(400, "INVALID_OPTION")


async def test_ports_and_prefix_are_the_real_ones(start_broker: StartBroker) -> None:
    """What follows from the listening ports is shown as it is in use."""
    broker = await start_broker(NsqdOptions(broadcast_address="10.0.0.1", broadcast_http_port=99))
    broker.ports.tcp, broker.ports.http = 7, 8
    app = create_app(broker)
    assert await send(app, "GET", "broadcast_tcp_port") == (200, "7")
    assert await send(app, "GET", "broadcast_http_port") == (200, "99")
    assert await send(app, "GET", "statsd_prefix") == (200, "nsq.10_0_0_1_99.")


async def test_a_change_is_heard_at_once(broker: Broker) -> None:
    """Who follows the options learns of the new ones before the answer goes out."""
    heard: list[NsqdOptions] = []
    broker.live_options.observers.append(heard.append)
    app = create_app(broker)
    assert await send(app, "PUT", "nsqlookupd_tcp_addresses", b'["a:1"]') == (200, '["a:1"]')
    assert await send(app, "PUT", "log_level", b"ERROR") == (200, "4")
    assert await send(app, "PUT", "nsqlookupd_tcp_addresses", b"null") == (200, "null")
    assert [(each.lookupd_tcp_address, each.log_level) for each in heard] == [
        (("a:1",), "info"),
        (("a:1",), "error"),
        (None, "error"),
    ]
    assert broker.options is heard[-1]


async def test_a_change_is_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The log tells what it is now."""
    app = create_app(broker)
    with caplog.at_level(logging.INFO, "trionsq"):
        await send(app, "PUT", "nsqlookupd_tcp_addresses", b'["a:1\\n"]')
    assert r"HTTP: option nsqlookupd_tcp_addresses is now ('a:1\n',)" in caplog.messages


@pytest.mark.parametrize(
    ("key", "body", "answer"),
    [
        ("nsqlookupd_tcp_addresses", b"[1]", refused(400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"[" * 90, refused(400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"\xff", refused(400, "INVALID_VALUE")),
        ("log_level", b"info\n", refused(400, "INVALID_VALUE")),
        ("log_level", b"i" * 101, refused(413, "INVALID_VALUE")),
        ("nope", b"", refused(413, "INVALID_VALUE")),
        ("debug_from", b"any", refused(400, "INVALID_OPTION")),
    ],
)
async def test_a_refused_change_changes_nothing(
    broker: Broker, key: str, body: bytes, answer: tuple[int, str]
) -> None:
    """The size is looked at first, then the key, then the value."""
    before = broker.options
    assert await send(create_app(broker), "PUT", key, body) == answer
    assert broker.options is before


async def test_deep_nesting_is_a_bad_value(start_broker: StartBroker) -> None:
    """It is refused, not a crash."""
    app = create_app(await start_broker(NsqdOptions()))
    body = b"[" * 1_000_000
    answer = await send(app, "PUT", "nsqlookupd_tcp_addresses", body)
    assert answer == refused(400, "INVALID_VALUE")


async def test_the_log_level_takes_effect(tmp_path: Path) -> None:
    """An operator turns on debug lines without a restart."""
    logger = logging.getLogger("trionsq")
    before = logger.level
    options = NsqdOptions(
        data_path=str(tmp_path), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0"
    )
    try:
        async with running_nsqd(options) as broker:
            assert await send(create_app(broker), "PUT", "log_level", b"debug") == (200, "1")
            assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)
