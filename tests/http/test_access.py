"""The users of --acl-file over nsqd's HTTP API."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from quart_trio import QuartTrio

from tests.daemon.test_acl import FILE
from trionsq.broker.broker import Broker
from trionsq.http.access import may_use
from trionsq.http.app import create_app
from trionsq.testing.memory import nsqd_in_memory
from trionsq.web.access import HttpAccess, client_certificate


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Of an nsqd with the file of users."""
    path = tmp_path / "acl.toml"
    path.write_text(FILE)
    return {"acl_file": str(path)}


def guarded_app(broker: Broker) -> QuartTrio:
    """The API as nsqd serves it."""
    assert broker.users is not None
    return create_app(broker, access=HttpAccess(broker.users, may_use))


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


SHOP, BILLING, OPS = bearer("shop-token"), bearer("old"), bearer("ops-token")


async def test_every_route_but_the_health_checks_needs_a_user(options: dict[str, Any]) -> None:
    """Whoever adds one need not think of it."""
    async with nsqd_in_memory(**options) as broker:
        app = guarded_app(broker)
        client: Any = app.test_client()
        broker.topic("orders").channel("billing")
        free = set()
        for rule in app.url_map.iter_rules():
            path = rule.rule.replace("<opt>", "log_level")
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                answer = await client.open(f"{path}?topic=orders&channel=billing", method=method)
                if answer.status_code == 401:
                    assert await answer.get_json() == {"message": "UNAUTHORIZED"}
                    assert "WWW-Authenticate" in answer.headers
                else:
                    free.add(path)
        assert free == {"/ping", "/live", "/ready"}
        assert list(broker.topics) == ["orders"]


@pytest.mark.parametrize(
    ("headers", "method", "target", "status"),
    [
        (SHOP, "POST", "/pub?topic=orders", 200),
        (SHOP, "POST", "/mpub?topic=audit2", 403),
        (SHOP, "GET", "/stats?format=json", 200),
        (SHOP, "GET", "/metrics", 200),
        (SHOP, "POST", "/topic/delete?topic=orders", 403),
        (SHOP, "GET", "/topic/peek?topic=orders", 403),
        (BILLING, "GET", "/channel/peek?topic=orders&channel=billing", 200),
        (BILLING, "GET", "/channel/peek?topic=orders&channel=other", 403),
        (BILLING, "GET", "/topic/peek?topic=orders", 403),
        (BILLING, "POST", "/pub?topic=orders", 403),
        (BILLING, "GET", "/config/log_level", 403),
        (BILLING, "GET", "/topic/settings", 403),
        (BILLING, "GET", "/topic/settings?topic=orders", 403),
        (BILLING, "GET", "/topic/settings?topic=audit", 200),
        (BILLING, "GET", "/topic/peek?topic=audit", 200),
        (BILLING, "POST", "/topic/settings?topic=audit&durability=always", 403),
        (OPS, "GET", "/topic/peek?topic=orders", 200),
        (OPS, "PUT", "/config/log_level", 200),
        (OPS, "POST", "/pub?topic=orders", 403),
        (OPS, "POST", "/topic/delete?topic=orders", 200),
    ],
)
async def test_a_user_may_what_the_file_says(
    options: dict[str, Any], headers: dict[str, str], method: str, target: str, status: int
) -> None:
    """The topic is that of the query; what is about the node is for those who have it all."""
    async with nsqd_in_memory(**options) as broker:
        for channel in ("billing", "other"):
            broker.topic("orders").channel(channel)
        broker.topic("audit")
        client: Any = guarded_app(broker).test_client()
        answer = await client.open(target, method=method, headers=headers, data=b"info")
        assert answer.status_code == status


async def test_the_administrator_of_a_topic_is_that_of_no_node(options: dict[str, Any]) -> None:
    """A topic in the query of another route changes nothing; a certificate is enough."""
    async with nsqd_in_memory(**options) as broker:
        assert broker.users is not None
        broker.users._trusts_certificates = True
        broker.topic("orders")
        client = guarded_app(broker).test_client()
        token = client_certificate.set("a.example")
        try:
            assert (await client.post("/topic/pause?topic=orders")).status_code == 200
            refused = await client.put("/config/drain?topic=orders", data=b"true")
            assert refused.status_code == 403
            assert (await client.post("/topic/pause?topic=t&topic=orders")).status_code == 403
        finally:
            client_certificate.reset(token)
        assert not broker.drain.is_on


async def test_basic_has_the_token_as_its_password(options: dict[str, Any]) -> None:
    """The name of the user has to be right, or empty."""
    async with nsqd_in_memory(**options) as broker:
        client = guarded_app(broker).test_client()
        for text, status in (
            ("ops:ops-token", 200),
            (":ops-token", 200),
            ("shop:ops-token", 401),
            ("ops:x", 401),
        ):
            value = base64.b64encode(text.encode()).decode()
            answer = await client.get("/info", headers={"Authorization": f"Basic {value}"})
            assert answer.status_code == status
        answer = await client.get("/info", headers={"Authorization": "Basic !"})
        assert answer.status_code == 401


async def test_wrong_tokens_are_limited(options: dict[str, Any]) -> None:
    """Then the answer is 429 with a time to wait."""
    async with nsqd_in_memory(**options) as broker:
        client = guarded_app(broker).test_client()
        for _ in range(10):
            assert (await client.get("/info", headers=bearer("x"))).status_code == 401
        answer = await client.get("/info", headers=OPS)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0


async def test_the_log_says_who_changed_what(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Not who published or read; a token is in no line."""
    caplog.set_level(logging.DEBUG, "trionsq")
    async with nsqd_in_memory(**options) as broker:
        broker.topic("orders")
        client = guarded_app(broker).test_client()
        await client.post("/topic/empty?topic=orders", headers=OPS)
        await client.post("/topic/empty?topic=orders", headers=SHOP)
        await client.post("/pub?topic=orders", headers=SHOP, data=b"x")
        await client.get("/stats", headers=bearer("wrong-token"))
    text = caplog.text
    assert "HTTP: POST /topic/empty?topic=orders by ops from" in text
    assert "HTTP: POST /topic/empty of" in text
    assert "refused to shop" in text
    assert "/pub" not in text
    assert "-token" not in text
