"""What the cookie of a session is called (access.cookie)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from admin.access.modes import Mode
from tests.admin.access.support import Site, cookie_of, site

HTTPS = {"X-Forwarded-Proto": "https"}


@pytest.fixture
async def found() -> AsyncIterator[Site]:
    async with site(Mode.PASSWORD) as one:
        one.access.port = 4151
        yield one


async def name_at(found: Site, host: str, headers: dict[str, str]) -> str:
    """The name of the cookie that somebody gets who sees us there."""
    seen = {**headers, "Host": host, ":authority": host}
    return cookie_of(await found.sign_in("viewer", headers=seen)).partition("=")[0]


@pytest.mark.parametrize(
    ("host", "headers", "name"),
    [
        ("a:4151", {}, "nsqadmin_session_4151"),
        ("a", {}, "nsqadmin_session_4151"),
        ("[::1]", {}, "nsqadmin_session_4151"),
        ("[::1]:4151", {}, "nsqadmin_session_4151"),
        ("a:8001", {}, "nsqadmin_session_4151_8001"),
        ("[::1]:8001", {}, "nsqadmin_session_4151_8001"),
        ("a:4152", HTTPS, "nsqadmin_session_4151_4152_tls"),
        ("a", HTTPS, "nsqadmin_session_4151_tls"),
        ("a:;x=y", {}, "nsqadmin_session_4151"),
        ("a:123456", {}, "nsqadmin_session_4151"),
    ],
)
async def test_it_is_no_other_dashboards(
    found: Site, host: str, headers: dict[str, str], name: str
) -> None:
    """Browsers tell hosts apart, but neither ports nor HTTPS from HTTP: the name does."""
    assert await name_at(found, host, headers) == name


async def test_without_a_port_of_ours(found: Site) -> None:
    """On a unix socket, or if an nsqd has HTTPS alone, the port that is seen tells."""
    found.access.port = -1
    assert await name_at(found, "a", {}) == "nsqadmin_session"
    assert await name_at(found, "a:4152", HTTPS) == "nsqadmin_session_4152_tls"


async def test_one_browser_is_signed_in_at_both(found: Site) -> None:
    """By HTTP and by HTTPS at once, and signing out of one leaves the other."""
    cookies = {}
    for scheme, headers in (("http", {}), ("https", HTTPS)):
        cookies[scheme] = cookie_of(await found.sign_in("viewer", headers=headers))
    jar = {"Cookie": "; ".join(cookies.values())}

    async def reads(headers: dict[str, str]) -> bool:
        answer = await found.ask("GET", "/api/topics", headers={**jar, **headers})
        return answer.status_code == 200

    assert await reads({})
    assert await reads(HTTPS)
    session = found.access.sessions.find_session(cookies["https"].partition("=")[2])
    assert session is not None
    found.access.sessions.end_session(session)
    assert await reads({})
    assert not await reads(HTTPS)
