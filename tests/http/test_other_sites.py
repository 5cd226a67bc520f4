"""What another site's page has a browser send is refused, on the fast path as by the framework."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.http.ways import answers_of, both_ways, way

ORIGINS = [b"", b"Origin: http://evil.example\r\n", b"ORIGIN: http://localhost\r\n",
           b"Origin: null\r\n", b"Origin:\r\n"]  # fmt: skip
SITES = [b"", b"Sec-Fetch-Site: cross-site\r\n", b"sec-fetch-site: same-origin\r\n",
         b"Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n"]  # fmt: skip
HOSTS = [b"localhost", b"127.0.0.1:4151", b"evil.example", b"evil.example:4151", b"a", b"",
         b"localhost.", b"LOCALHOST", b"[::1]:1", b"x.localhost", b"\xff.example"]  # fmt: skip
OTHERS = [b"", b"X-Forwarded-For: 1.2.3.4\r\n", b"Accept-Language: en\r\n"]
TARGETS = [b"POST /pub?topic=t", b"POST /mpub?topic=t", b"GET /ping", b"GET /stats?format=x",
           b"POST /topic/delete?topic=t"]  # fmt: skip


def request(target: bytes, host: bytes, *lines: bytes) -> bytes:
    body = b"x" if b"pub" in target else b""
    head = b"%b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n%b\r\n"
    return head % (target, host, len(body), b"".join(lines)) + body


REQUESTS = st.builds(request, *map(st.sampled_from, (TARGETS[:3], HOSTS, ORIGINS, SITES, OTHERS)))


@settings(max_examples=30)
@given(st.lists(REQUESTS, min_size=1, max_size=4), st.booleans())
def test_both_ways_decide_the_same(requests: list[bytes], by_tcp: bool) -> None:
    """Whatever a request says of where it comes from, and wherever its connection ends."""
    short, framework = both_ways([b"".join(requests)], by_tcp=by_tcp)
    assert short == framework


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("host", "line"),
    [
        (b"localhost", b"Origin: http://evil.example\r\n"),
        (b"localhost", b"Sec-Fetch-Site: cross-site\r\n"),
        (b"evil.example", b""),
    ],
)
def test_a_foreign_page_changes_nothing(target: bytes, host: bytes, line: bytes) -> None:
    """403, with the option that would allow it, and no topic; without that it is answered."""
    bad, good = request(target, host, line), request(target, b"localhost")
    for outcome in both_ways([bad], by_tcp=True):
        (answer,) = answers_of(outcome.answers)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"--http-allow-" in answer
        assert not outcome.topics
    if b"stats" not in target:  # which tells of memory
        for outcome in both_ways([good], by_tcp=True):
            assert b" 403 " not in outcome.answers


@pytest.mark.parametrize("fast_path", [True, False])
async def test_an_allowed_page_is_answered(autojump_clock: MockClock, fast_path: bool) -> None:
    """--http-allow-origin: its preflight is, its request is, and it may see the answer."""
    allowed = ("https://dash.example",)
    async with way(fast_path=fast_path, by_tcp=True, http_allow_origin=allowed) as server:
        origin = b"Origin: https://dash.example\r\nSec-Fetch-Site: cross-site\r\n"
        asks = b"Access-Control-Request-Method: POST\r\n"
        preflight = request(b"OPTIONS /pub?topic=t", b"localhost", origin, asks)
        publish = request(b"POST /pub?topic=t", b"localhost", origin)
        first, second = answers_of((await server.exchange([preflight + publish])).answers)
        for answer in (first, second):
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"access-control-allow-origin: https://dash.example\r\n" in answer.lower()
        assert b"access-control-allow-methods: " in first.lower()
        assert server.broker.topics["t"].core.message_count == 1


async def test_a_host_can_be_allowed(autojump_clock: MockClock) -> None:
    """--http-allow-host, and --broadcast-address, are names of this machine."""
    names: dict[str, Any] = {
        "http_allow_host": ("nsq.example",),
        "broadcast_address": "me.example",
    }
    async with way(fast_path=True, by_tcp=True, **names) as server:
        for host in (b"nsq.example", b"me.example:4151"):
            outcome = await server.exchange([request(b"POST /pub?topic=t", host)])
            assert outcome.answers.endswith(b"OK")
