"""Which requests are refused as those of another site's page (trionsq.web.sites)."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from trionsq.web.sites import SiteGuard, ends_at_loopback

NOTHING: Mapping[str, str] = {}
CHROME = {"accept-language": "en", "user-agent": "Mozilla/5.0"}
CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FRAME = {**LINK, "sec-fetch-dest": "iframe"}
EVIL = {"origin": "http://evil.example"}


def refused(
    guard: SiteGuard,
    method: str,
    host: str,
    said: Mapping[str, str] = NOTHING,
    *,
    to_loopback: bool = True,
) -> str | None:
    """What gave the request away; None if it is not refused."""
    before = dict(guard.refused_by)
    headers = [(name.encode(), value.encode()) for name, value in said.items()]
    reason = guard.refusal(method, [(b"host", host.encode()), *headers], to_loopback=to_loopback)
    more = [name for name, count in guard.refused_by.items() if count > before[name]]
    assert bool(more) == (reason is not None)
    if reason is not None:
        assert f"--http-allow-{more[0]}" in reason
    return more[0] if more else None


@pytest.fixture
def guard() -> SiteGuard:
    return SiteGuard(
        ["box"], ["https://grafana.example", "http://dash.example:80"], ["nsq.example"]
    )


@pytest.mark.parametrize(
    ("method", "said", "expected"),
    [
        # Programs.
        ("POST", {}, None),
        ("GET", {"user-agent": "curl/8", "accept": "*/*"}, None),
        # Our own pages, and what somebody typed.
        ("POST", {"sec-fetch-site": "same-origin", "origin": "http://localhost:4151"}, None),
        ("POST", {"origin": "http://localhost:4151"}, None),
        ("GET", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, None),
        # Pages of others.
        ("POST", EVIL, "origin"),
        ("GET", EVIL, "origin"),
        ("OPTIONS", EVIL, "origin"),
        ("POST", {"origin": "null"}, "origin"),
        ("POST", {"origin": ""}, "origin"),
        ("POST", {"origin": "http://localhost:4152"}, "origin"),
        ("POST", {"origin": "http://localhost:4151, http://evil.example"}, "origin"),
        ("GET", CROSS, "origin"),
        ("POST", CROSS, "origin"),
        ("POST", {"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, "origin"),
        ("POST", {"sec-fetch-site": "odd"}, "origin"),
        # A link may be followed; it may not post, nor be shown in a frame.
        ("GET", LINK, None),
        ("GET", FRAME, "origin"),
        ("POST", {**LINK, **EVIL}, "origin"),
        # Allowed.
        ("POST", {"origin": "https://grafana.example", **CROSS}, None),
        ("POST", {"origin": "HTTPS://Grafana.Example:443"}, None),
        ("POST", {"origin": "http://dash.example"}, None),
        ("POST", {"origin": "http://grafana.example"}, "origin"),
        ("POST", {"origin": "https://grafana.example.evil.example"}, "origin"),
    ],
)
@pytest.mark.parametrize("to_loopback", [True, False])
def test_where_a_request_comes_from(
    guard: SiteGuard, method: str, said: dict[str, str], expected: str | None, to_loopback: bool
) -> None:
    """What a browser sends from another site is refused, on whatever address; nothing else is."""
    assert refused(guard, method, "localhost:4151", said, to_loopback=to_loopback) == expected


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:4151",
        "localhost.",
        "a.localhost:4151",
        "127.0.0.1:4151",
        "[::1]:4151",
        "[::1]",
        "[fe80::1%25eth0]:4151",
        "10.1.2.3:4151",
        "box:4151",
        "nsqd",
        "_",
        "nsq.example",
        "NSQ.example.:80",
    ],
)
def test_hosts_that_nobody_outside_can_own(guard: SiteGuard, host: str) -> None:
    """Addresses, names without a dot, names of this machine and those that an option gives."""
    for said in (NOTHING, CHROME):
        assert refused(guard, "POST", host, said) is None
        assert refused(guard, "GET", host, said) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4151", "127.0.0.1.evil.example", "box.evil", "a.b:x"]
)
def test_a_page_whose_name_leads_to_loopback(guard: SiteGuard, host: str) -> None:
    """It is refused though all looks as from the same site; on other addresses it is not."""
    rebound = {**CHROME, "origin": f"http://{host}"}
    for method in ("GET", "POST"):
        assert refused(guard, method, host) == "host"
        assert refused(guard, method, host, rebound) == "host"
        assert refused(guard, method, host, rebound, to_loopback=False) is None


def test_a_proxy_on_this_machine_may_keep_the_host(guard: SiteGuard) -> None:
    """Programs that come through it are let in; a browser is not, for its page may say the same."""
    forwarded = {"x-forwarded-for": "10.0.0.9"}
    assert refused(guard, "POST", "nsqd.prod.example", forwarded) is None
    assert (
        refused(guard, "POST", "nsqd.prod.example", {"accept-language": "", **forwarded}) == "host"
    )
    assert refused(guard, "GET", "nsq.example", {**CHROME, **forwarded}) is None


def test_everything_can_be_allowed() -> None:
    """``*`` is the way of the original."""
    every_host = SiteGuard(hosts=["*"])
    assert refused(every_host, "GET", "evil.example") is None
    assert refused(every_host, "GET", "evil.example", CROSS) == "origin"
    everything = SiteGuard(origins=["*"])
    assert refused(everything, "POST", "evil.example", {**EVIL, **CROSS}) is None


def test_changes_may_be_left_to_the_application() -> None:
    """Reads are looked at all the same, and so is the host of both."""
    guard = SiteGuard(checks_writes=False)
    assert refused(guard, "POST", "localhost", EVIL) is None
    assert refused(guard, "GET", "localhost", EVIL) == "origin"
    assert refused(guard, "POST", "evil.example", EVIL) == "host"


def test_an_allowed_page_may_see_answers(guard: SiteGuard) -> None:
    """CORS: the origin is named, and a preflight learns what it asks for; others learn nothing."""
    allowed = (b"origin", b"https://grafana.example")
    assert guard.cors([allowed]) == {
        "Access-Control-Allow-Origin": "https://grafana.example",
        "Vary": "Origin",
    }
    preflight = guard.cors(
        [
            allowed,
            (b"access-control-request-method", b"POST"),
            (b"access-control-request-headers", b"content-type"),
        ]
    )
    assert preflight["Access-Control-Allow-Methods"] == "GET, POST, PUT"
    assert preflight["Access-Control-Allow-Headers"] == "content-type"
    assert guard.cors([(b"origin", b"http://evil.example")]) == {"Vary": "Origin"}
    assert SiteGuard().cors([allowed]) == {}


def test_which_connections_end_at_loopback() -> None:
    """Those to its addresses do; a unix socket has none."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listening:
            listening.bind((address, 0))
            assert ends_at_loopback(listening)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not ends_at_loopback(ours)
