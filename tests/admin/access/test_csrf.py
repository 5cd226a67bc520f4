"""Requests that other sites' pages would have a user's browser send."""

from __future__ import annotations

import re
from typing import Any

import pytest
from quart import Response

from admin.access.cross_site import Tokens
from admin.access.modes import Mode
from tests.admin.access.support import Site, basic, cookie_of, site

HOST = {"Host": "nsq.example:4171"}
CASES = [
    ({}, True),
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": "same-site"}, False),
    # a proxy has renamed us, the browser knows better
    ({"Sec-Fetch-Site": "same-origin", "Origin": "https://front.example"}, True),
    ({"Sec-Fetch-Site": "cross-site", "Origin": "http://nsq.example:4171"}, False),
    ({"Origin": "http://nsq.example:4171"}, True),
    ({"Origin": "http://NSQ.example:4171"}, True),
    ({"Origin": "http://nsq.example"}, False),
    ({"Origin": "http://evil.example:4171"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "http://["}, False),
]


@pytest.mark.parametrize(("headers", "ours"), CASES)
@pytest.mark.parametrize("mode", [Mode.NONE, Mode.LOCAL, Mode.ACL, Mode.PASSWORD])
async def test_what_another_site_sends_is_refused(
    mode: Mode, headers: dict[str, str], ours: bool
) -> None:
    """In each mode: who changes or reads is a page of ours, or no browser."""
    host = {"Host": "localhost:4171"} if mode is Mode.LOCAL else HOST
    origin = headers.get("Origin", "")
    if mode is Mode.LOCAL:
        headers = headers | {"Origin": origin.lower().replace("nsq.example", "localhost")}
        headers = {name: value for name, value in headers.items() if value}
    known = {"X-Forwarded-User": "ann", **basic("admin", "right"), **host}
    async with site(mode, admin_user=("ann",) if mode is Mode.ACL else ()) as found:
        answer = await found.ask("DELETE", "/api/topics/x", headers=known | headers)
        assert answer.status_code == (200 if ours else 403)
        answer = await found.ask("GET", "/api/topics", headers=known | headers)
        assert answer.status_code == (200 if ours else 403)


async def test_a_proxy_may_say_what_we_are_called() -> None:
    """Only a trusted proxy's X-Forwarded-Host counts as our name."""
    more: dict[str, Any] = {
        "access": "proxy",
        "trusted_proxy_cidr": ("10.0.0.0/8",),
        "admin_user": ("ann",),
    }
    headers = {
        "X-Forwarded-User": "ann",
        "X-Forwarded-Host": "front.example",
        "Origin": "https://front.example",
        **HOST,
    }
    async with site(Mode.PROXY, **more) as found:
        answer = await found.ask("DELETE", "/api/topics/x", peer="10.0.0.1", headers=headers)
        assert answer.status_code == 200
    async with site(Mode.ACL, admin_user=("ann",)) as found:
        answer = await found.ask("DELETE", "/api/topics/x", peer="10.0.0.1", headers=headers)
        assert answer.status_code == 403


async def token_for(found: Site, cookie: str) -> str:
    """The token that a page shows to the owner of ``cookie``."""

    async def page() -> Response:
        return Response(found.access.csrf_token().encode())

    found.app.view_functions["GET /"] = page
    answer = await found.ask("GET", "/", headers={"Cookie": cookie})
    return str(await answer.get_data(as_text=True))


async def test_a_session_needs_its_own_token() -> None:
    """What is sent with a cookie needs the token of that session, in a header or in the form."""
    async with site(Mode.PASSWORD) as found:
        cookie = cookie_of(await found.sign_in("admin"))
        others = await token_for(found, cookie_of(await found.sign_in("admin")))
        token = await token_for(found, cookie)
        assert token != others
        sent = {"Cookie": cookie}
        for given, status in ((token, 200), (others, 403), ("", 403), ("\udcff", 403)):
            headers = {**sent, "X-CSRF-Token": given.encode(errors="replace").decode()}
            answer = await found.ask("DELETE", "/api/topics/x", headers=headers)
            assert answer.status_code == status
        answer = await found.ask("DELETE", "/api/topics/x", headers=sent)
        assert await answer.get_data() == b'{"message":"INVALID_CSRF_TOKEN"}'
        for given, status in (("wrong", 403), (token, 303)):
            form = {"csrf_token": given}
            answer = await found.ask("POST", "/sign-out", headers=sent, form=form)
            assert answer.status_code == status


async def test_pages_need_a_token_without_a_session_too() -> None:
    """Where nobody signs in, a form still has to be one that a page of ours has shown."""
    async with site(Mode.NONE) as found:
        assert (await found.ask("POST", "/sign-out")).status_code == 403
        token = await token_for(found, "")
        form = {"csrf_token": token}
        assert (await found.ask("POST", "/sign-out", form=form)).status_code == 303


def test_tokens_are_of_one_process_and_one_owner() -> None:
    """No token is good for another owner, or after a restart."""
    tokens = Tokens()
    token = tokens.make_token("session:a")
    assert tokens.check_token(token, "session:a")
    assert not tokens.check_token(token, "session:b")
    assert not Tokens().check_token(token, "session:a")


async def test_the_pages_show_the_token_that_is_asked_for() -> None:
    """The sign-out form of a page, as it is: what is in it signs its reader out."""
    async with site(Mode.PASSWORD, idle_handlers=False) as found:
        assert (await found.ask("GET", "/sign-in")).status_code == 200
        cookie = cookie_of(await found.sign_in("viewer"))
        answer = await found.ask("GET", "/lookup", headers={"Cookie": cookie})
        page = str(await answer.get_data(as_text=True))
        token = re.search(r'name="csrf_token" value="(\w+)"', page)
        assert token is not None, page
        form = {"csrf_token": token[1]}
        answer = await found.ask("POST", "/sign-out", headers={"Cookie": cookie}, form=form)
        assert answer.headers["Location"] == "/sign-in"
