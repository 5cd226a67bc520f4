"""Signing in and out, sessions, and how wrong passwords are slowed."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from admin.access import passwords
from admin.access import session as session_module
from admin.access.modes import Mode
from admin.access.passwords import (
    ATTEMPT_INTERVAL_S,
    ATTEMPTS_AT_ONCE,
    MAX_ADDRESSES,
    Busy,
    Passwords,
)
from admin.access.roles import Role
from admin.access.session import ABSOLUTE_S, MAX_SESSIONS_PER_USER, Sessions
from admin.access.users import Account, FixedUsers
from admin.pages.account import safe_path
from admin.watch.events import Events, TickStream
from tests.admin.access.support import PEER, USERS, Clock, Site, account, basic, cookie_of, site
from trionsq.daemon.token_buckets import TokenBuckets


class ChangingUsers:
    """Users that a test changes."""

    def __init__(self, *accounts: Account) -> None:
        self.accounts = {one.name: one for one in accounts}

    def find(self, name: str) -> Account | None:
        return self.accounts.get(name)


@pytest.fixture
async def found() -> AsyncIterator[Site]:
    async with site(Mode.PASSWORD) as opened:
        yield opened


async def reads(found: Site, cookie: str) -> bool:
    """Whether somebody with that cookie may read."""
    answer = await found.ask("GET", "/api/topics", headers={"Cookie": cookie})
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


async def test_signing_in_leads_where_one_wanted_to_go(found: Site) -> None:
    """The right password gives a session, in a cookie that no script and no other site gets."""
    answer = await found.sign_in("viewer", fields={"next": "/topics?sort=depth"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topics?sort=depth")
    attributes = set(answer.headers["Set-Cookie"].split("; ")[1:])
    assert attributes == {"HttpOnly", "Path=/", "SameSite=Lax"}
    assert await reads(found, cookie_of(answer))


@pytest.mark.parametrize(("name", "value"), [("X-Scheme", "https"), ("X-Forwarded-Proto", "https")])
async def test_the_cookie_stays_on_https(found: Site, name: str, value: str) -> None:
    """Where the page came by https, the cookie goes by nothing else."""
    answer = await found.sign_in("viewer", headers={name: value})
    assert "Secure" in answer.headers["Set-Cookie"].split("; ")


@pytest.mark.parametrize(
    ("name", "password"),
    [("viewer", "wrong"), ("nobody", "right"), ("", ""), ("viewer", ""), ("viewer", "x" * 5000)],
)
async def test_a_wrong_password_is_told_nothing_more(found: Site, name: str, password: str) -> None:
    """Wrong name or wrong password: the same answer, and no session; the typed name is kept."""
    answer = await found.sign_in(name, password)
    assert answer.headers["Location"] == "/sign-in?problem=wrong"
    cookies = [line.partition(";")[0] for line in answer.headers.getlist("Set-Cookie")]
    assert cookies == ([f"nsqadmin_name={name}"] if name else [])


@pytest.mark.parametrize(
    ("name", "password"), [("viewer", "right"), ("viewer", "wrong"), ("nobody", "wrong")]
)
async def test_a_name_that_does_not_exist_costs_the_same(
    name: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly one hash is computed for each attempt, whether there is such a user or not."""
    computed: list[str] = []

    class Counting:
        def verify(self, password_hash: str, given: bytes) -> bool:
            computed.append(password_hash)
            return passwords_hasher.verify(password_hash, given)

        hash = staticmethod(passwords._HASHER.hash)

    passwords_hasher = passwords._HASHER
    monkeypatch.setattr(passwords, "_HASHER", Counting())
    await Passwords(USERS, Clock()).check(name, password, PEER)
    assert len(computed) == 1


@pytest.mark.parametrize(
    "forged", ["", "nsqadmin_session=", "nsqadmin_session=admin", "nsqadmin_session=" + "A" * 43]
)
async def test_a_forged_session_is_none(found: Site, forged: str) -> None:
    """A cookie that nobody was given is as good as none; what is kept here is no cookie either."""
    await found.sign_in("admin")
    assert not await reads(found, forged)
    (key,) = found.access.sessions._sessions
    assert not await reads(found, f"nsqadmin_session={key}")


async def test_a_session_that_is_not_used_ends(found: Site) -> None:
    """Use keeps it alive, half a day without use does not."""
    cookie = cookie_of(await found.sign_in("viewer"))
    for _ in range(3):
        found.clock.now_s += 12 * 3600 - 1
        assert await reads(found, cookie)
    found.clock.now_s += 12 * 3600
    assert not await reads(found, cookie)


async def test_no_session_is_for_ever(found: Site) -> None:
    """A week after it began it ends, used or not."""
    cookie = cookie_of(await found.sign_in("viewer"))
    for _ in range(int(ABSOLUTE_S / 3600) - 1):
        found.clock.now_s += 3600
        assert await reads(found, cookie)
    found.clock.now_s += 3600
    assert not await reads(found, cookie)


async def test_signing_out_ends_every_copy_of_the_cookie(found: Site) -> None:
    """The session is over, not only the browser's cookie; other sessions go on."""
    cookie, other = [cookie_of(await found.sign_in("viewer")) for _ in range(2)]
    session = found.access.sessions.find_session(cookie.partition("=")[2])
    assert session is not None
    token = found.access._tokens.make_token(f"session:{session.key}")
    headers = {"Cookie": cookie, "X-CSRF-Token": token}
    answer = await found.ask("POST", "/sign-out", headers=headers)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in")
    assert not await reads(found, cookie)
    assert await reads(found, other)


async def test_signing_in_again_ends_the_session_before() -> None:
    """Nobody stays signed in as two users in one browser."""
    async with site(Mode.PASSWORD) as found:
        before = cookie_of(await found.sign_in("viewer"))
        await found.sign_in("admin", headers={"Cookie": before})
        assert not await reads(found, before)


async def test_what_happens_to_the_user_happens_to_the_session() -> None:
    """Another role counts at once; another password, or no line any more, ends the session."""
    users = ChangingUsers(account("ann", Role.VIEWER))
    async with site(Mode.PASSWORD, users) as found:
        cookie = cookie_of(await found.sign_in("ann"))
        answer = await found.ask("GET", "/config/x", headers={"Cookie": cookie})
        assert answer.status_code == 403
        seal = users.accounts["ann"].password_hash
        users.accounts["ann"] = Account("ann", Role.ADMIN, seal)
        answer = await found.ask("GET", "/config/x", headers={"Cookie": cookie})
        assert answer.status_code == 200
        users.accounts["ann"] = account("ann", Role.ADMIN, "another")
        assert not await reads(found, cookie)
        cookie = cookie_of(await found.sign_in("ann", "another"))
        del users.accounts["ann"]
        assert not await reads(found, cookie)


async def test_a_long_answer_can_ask_whether_its_reader_may_stay() -> None:
    """`standing` turns False with the session, the password or the role, and is no use of it."""
    users = ChangingUsers(account("ann", Role.VIEWER))
    async with site(Mode.PASSWORD, users) as found:
        standing = []

        async def stream() -> str:
            standing.append(found.access.standing())
            return ""

        found.app.view_functions["GET /events"] = stream
        for _ in range(2):
            cookie = cookie_of(await found.sign_in("ann"))
            await found.ask("GET", "/events", headers={"Cookie": cookie})
        assert [ask() for ask in standing] == [True, True]
        session = found.access.sessions.find_session(cookie.partition("=")[2])
        assert session is not None
        found.access.sessions.end_session(session)
        assert [ask() for ask in standing] == [True, False]
        users.accounts["ann"] = account("ann", Role.VIEWER, "another")
        assert [ask() for ask in standing] == [False, False]


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with too many loses the oldest of their own; all together are bounded as well."""
    monkeypatch.setattr(session_module, "MAX_SESSIONS", 200)
    sessions = Sessions(3600.0, Clock())
    first = sessions.start_session("other", "seal")
    tokens = [sessions.start_session("ann", "seal") for _ in range(MAX_SESSIONS_PER_USER + 1)]
    assert sessions.find_session(tokens[0]) is None
    assert sessions.find_session(tokens[1]) is not None
    assert sessions.find_session(first) is not None
    for number in range(200 + 10):
        sessions.start_session(str(number), "seal")
    assert len(sessions) == 200


async def test_guessing_is_slowed_and_nobody_else_is(found: Site) -> None:
    """One address may guess five times, then once in ten seconds; others sign in meanwhile."""
    for _ in range(ATTEMPTS_AT_ONCE):
        answer = await found.sign_in("admin", "guess")
        assert answer.headers["Location"] == "/sign-in?problem=wrong"
    answer = await found.sign_in("admin")
    assert answer.headers["Location"] == "/sign-in?problem=slow&wait=10"
    assert "Set-Cookie" in (await found.sign_in("admin", peer="203.0.113.10")).headers
    found.clock.now_s += ATTEMPT_INTERVAL_S
    assert "Set-Cookie" in (await found.sign_in("admin")).headers


async def test_guessing_by_basic_authentication_is_slowed_too(found: Site) -> None:
    """Both ways to send a password draw on the same attempts; the answer says how long to wait."""
    for _ in range(ATTEMPTS_AT_ONCE):
        answer = await found.ask("GET", "/api/topics", headers=basic("admin", "guess"))
        assert answer.status_code == 401
    answer = await found.ask("GET", "/api/topics", headers=basic("admin", "guess"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
    assert (await found.sign_in("admin")).headers["Location"].startswith("/sign-in?problem=slow")
    assert (await found.ask("GET", "/ping")).status_code == 200


async def test_right_passwords_are_no_guesses(found: Site) -> None:
    """A program that sends the right password with each request is never slowed."""
    for _ in range(10 * ATTEMPTS_AT_ONCE):
        answer = await found.ask("GET", "/api/topics", headers=basic("viewer", "right"))
        assert answer.status_code == 200
        assert "Set-Cookie" in (await found.sign_in("viewer")).headers


async def test_what_is_remembered_ends_with_the_password() -> None:
    """A password that was changed is not taken for another five minutes."""
    users = ChangingUsers(account("ann", Role.VIEWER))
    found = Passwords(users, Clock())
    assert await found.check_remembered("ann", "right", PEER) is not None
    users.accounts["ann"] = account("ann", Role.VIEWER, "another")
    assert await found.check_remembered("ann", "right", PEER) is None
    assert await found.check_remembered("ann", "another", PEER) is not None


async def test_too_many_passwords_at_once_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait are bounded; who is sent away for that has lost no attempt."""
    monkeypatch.setattr(passwords, "_MAX_WAITING", 0)
    found = Passwords(USERS, Clock())
    for _ in range(2 * ATTEMPTS_AT_ONCE):
        with pytest.raises(Busy):
            await found.check("admin", "right", PEER)
    monkeypatch.setattr(passwords, "_MAX_WAITING", 1)
    assert await found.check("admin", "right", PEER) is not None


async def test_hashing_keeps_nothing_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hashes are computed at once, never more, and requests are answered meanwhile."""
    at_once, most = 0, 0
    lock, go_on = threading.Lock(), threading.Event()

    def slow(password_hash: str | None, password: str) -> bool:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        assert go_on.wait(120)
        with lock:
            at_once -= 1
        return True

    monkeypatch.setattr(passwords, "_verify", slow)
    async with site(Mode.PASSWORD) as found, trio.open_nursery() as nursery:
        for number in range(8):

            async def sign_in(peer: str = f"203.0.113.{number}") -> None:
                assert "Set-Cookie" in (await found.sign_in("viewer", peer=peer)).headers

            nursery.start_soon(sign_in)
        while at_once < 2:
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.001)
        assert (await found.ask("GET", "/ping")).status_code == 200
        go_on.set()
    assert most == 2


async def test_a_stream_ends_with_its_session() -> None:
    """Live updates end when their reader may not look any more."""
    async with site(Mode.LOCAL) as found:
        may_stay = [True]
        stream = TickStream(Events(found.dashboard.poller), 0, lambda: may_stay[0])
        async with stream:
            assert await anext(stream) == b":\n\n"
            may_stay[0] = False
            assert await anext(stream, None) is None


def test_attempts_are_counted_for_a_bounded_number_of_addresses() -> None:
    """Addresses without end take no memory without end; an IPv6 network is one address."""
    attempts = TokenBuckets(ATTEMPT_INTERVAL_S, ATTEMPTS_AT_ONCE, MAX_ADDRESSES)
    for number in range(MAX_ADDRESSES + 50):
        attempts.take_token(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(attempts) == MAX_ADDRESSES
    for number in range(ATTEMPTS_AT_ONCE):
        assert attempts.take_token(f"2001:db8::{number:x}", 0.0) == 0
    assert attempts.take_token("2001:db8::ffff", 0.0) > 0
    assert attempts.take_token("2001:db8:1::1", 0.0) == 0


@pytest.mark.parametrize(
    ("path", "base_path", "safe"),
    [
        ("/topics?x=1&y=%2F", "", "/topics?x=1&y=%2F"),
        ("/admin/topics", "/admin", "/admin/topics"),
        ("/admin", "/admin", "/admin"),
        ("/administrators", "/admin", "/admin/"),
        ("/admin/../x", "/admin", "/admin/"),
        ("//evil.example", "", "/"),
        ("/\\evil.example", "", "/"),
        ("/x\r\nSet-Cookie: a", "", "/"),
        ("/\t/evil.example", "", "/"),
        ("https://evil.example/", "", "/"),
        ("javascript:alert(1)", "", "/"),
        ("", "", "/"),
    ],
)
def test_nobody_is_led_elsewhere(path: str, base_path: str, safe: str) -> None:
    """``next`` is a path of the dashboard, whatever somebody has put there."""
    assert safe_path(path, base_path) == safe


async def test_browsers_are_led_to_the_sign_in_page(found: Site) -> None:
    """A page leads there and back again, a fragment by htmx's header; programs are told 401."""
    html = {"Accept": "text/html"}
    answer = await found.ask(
        "GET",
        "/topics/a%23ephemeral?q=%2B&x",
        headers=html,
        scope={"raw_path": b"/topics/a%23ephemeral"},
    )
    location = answer.headers["Location"]
    assert (answer.status_code, location) == (
        303,
        "/sign-in?next=/topics/a%2523ephemeral%3Fq%3D%252B%26x",
    )
    answer = await found.ask("GET", "/topics", headers={"HX-Request": "true", **html})
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (401, "/sign-in")
    answer = await found.ask("GET", "/api/topics", headers=html)
    assert (answer.status_code, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic")
    answer = await found.ask("GET", "/events", headers={"Sec-Fetch-Mode": "cors"})
    assert (answer.status_code, answer.headers["WWW-Authenticate"][:7]) == (401, "Session")


async def test_without_passwords_there_is_nowhere_to_sign_in() -> None:
    """The other modes have no sign-in."""
    async with site(Mode.NONE, FixedUsers()) as found:
        assert (await found.sign_in("admin")).status_code == 404


async def test_no_password_and_no_session_gets_into_the_log(
    found: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Not a right one, not a wrong one, not one typed where the name belongs; at no level."""
    caplog.set_level(logging.DEBUG)
    cookie = cookie_of(await found.sign_in("admin"))
    await found.sign_in("admin", "hunter2-wrong")
    await found.sign_in("hunter2-as-name", "x")
    await found.ask("GET", "/api/topics", headers=basic("hunter2-basic", "hunter2-pass"))
    await found.ask("DELETE", "/api/topics/x", headers={"Cookie": cookie})
    await found.ask("GET", "/", headers={"Cookie": "nsqadmin_session=hunter2-forged"})
    kept = caplog.text + repr(found.access.audit.entries()) + repr(USERS.find("admin"))
    assert "ACCESS: wrong user or password from 203.0.113.9" in kept
    for secret in ("hunter2", cookie.partition("=")[2], "$argon2"):
        assert secret not in kept
