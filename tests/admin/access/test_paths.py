"""Each path and each role: who gets through."""

from __future__ import annotations

from typing import Any

import pytest

from admin.access.guard import SIGN_IN_PATH
from admin.access.modes import Mode
from admin.access.roles import REQUIRED_ROLES, REQUIRED_ROLES_WITH_ACL, Role, required_role
from tests.admin.access.support import PEER, ROLES, Site, basic, site

_ADMINS_WORDS = ("DELETE", "empty", "delete", "tombstone", "/config", "/debug", "/audit")


def paths_of(found: Site) -> list[str]:
    """What the application answers, as `REQUIRED_ROLES` has it."""
    return [
        f"{method} {rule.rule}"
        for rule in found.app.url_map.iter_rules()
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
    ]


def filled(path: str) -> str:
    """A path with something for each of its parts."""
    return "/".join("x" if part.startswith("<") else part for part in path.split("/"))


async def test_every_path_has_a_role() -> None:
    """A path can't be added without saying who it is for, nor stay in the table without use."""
    async with site(Mode.LOCAL, graphite_url="http://g", proxy_graphite=True) as found:
        assert set(paths_of(found)) == set(REQUIRED_ROLES)
    assert set(REQUIRED_ROLES_WITH_ACL) <= set(REQUIRED_ROLES)


def test_the_roles_are_what_users_were_told() -> None:
    """Changing needs an operator, what can't be undone an admin; looking is for all who are let in.

    Looking at messages is an operator's, for they may hold anything.
    """
    everyone = {path for path, role in REQUIRED_ROLES.items() if role is Role.EVERYONE}
    assert {path.partition(" ")[2].split("/")[1] for path in everyone} == {
        "ping",
        "live",
        "ready",
        "static",
        "fonts",
        "sign-in",
    }
    for path, role in REQUIRED_ROLES.items():
        if path in everyone or path == "POST /sign-out":
            continue
        if any(word in path for word in _ADMINS_WORDS):
            assert role is Role.ADMIN, path
        elif not path.startswith("GET") or "peek" in path:
            assert role >= Role.OPERATOR, path


async def test_each_role_gets_where_it_may_and_nowhere_else() -> None:
    """Every path is open to those with its role or more, and to nobody else, in each way."""
    async with site(Mode.PASSWORD, graphite_url="http://g", proxy_graphite=True) as found:
        tried = 0
        for path in paths_of(found):
            method, _, rule = path.partition(" ")
            if SIGN_IN_PATH in rule or rule == "/sign-out":
                continue
            for role in (Role.EVERYONE, *ROLES):
                headers = basic(role.title, "right") if role else {}
                await_token = not rule.startswith(("/api", "/config")) and method != "GET"
                if await_token and role:
                    token = found.access._tokens.make_token(f"basic:{role.title}")
                    headers["X-CSRF-Token"] = token
                answer = await found.ask(method, filled(rule), headers=headers)
                body = await answer.get_data()
                through = body == b"through"
                assert through == (role >= REQUIRED_ROLES[path]), (
                    path,
                    role,
                    answer.status_code,
                    body,
                )
                if not through:
                    assert answer.status_code == (403 if role else 401), (path, role)
                tried += 1
        assert tried > 80


async def test_a_path_that_was_forgotten_is_for_admins() -> None:
    """What the table does not name is closed to all others."""
    assert required_role("POST", "/forgotten", acl=False) is Role.ADMIN
    assert required_role("POST", "/forgotten", acl=True) is Role.ADMIN


async def test_the_roles_hold_below_a_base_path() -> None:
    """The table is read without the base path, so that it holds with one too."""
    async with site(Mode.PASSWORD, base_path="/some/where") as found:
        seen = [
            (await found.ask(method, path, headers=basic("viewer", "right"))).status_code
            for method, path in [
                ("GET", "/some/where"),
                ("GET", "/some/where/api/topics"),
                ("POST", "/some/where/api/topics"),
                ("GET", "/some/where/config/log_level"),
            ]
        ]
        assert seen == [200, 200, 403, 403]
        answer = await found.ask("GET", "/some/where", headers={"Accept": "text/html"})
        assert answer.headers["Location"] == "/some/where/sign-in?next=/some/where"


@pytest.mark.parametrize(("user", "status"), [("alice", 200), ("bob", 403), ("", 403)])
async def test_the_originals_list_decides_who_changes_things(user: str, status: int) -> None:
    """With --admin-user everybody reads, /config included, and those who are named may do all."""
    async with site(Mode.ACL, admin_user=("alice",), acl_http_header="X-User") as found:
        headers = {"X-User": user} if user else {}
        for path in REQUIRED_ROLES:
            method, _, rule = path.partition(" ")
            if rule == "/render" or "/sign-" in rule or not rule.startswith(("/api", "/config")):
                continue
            answer = await found.ask(method, filled(rule), headers=headers)
            reading = method == "GET" or rule.startswith("/config")
            assert answer.status_code == (200 if reading else status), path
            if answer.status_code == 403:
                assert await answer.get_data() == b'{"message":"FORBIDDEN"}'


async def test_the_originals_header_may_be_tied_to_proxies() -> None:
    """With --trusted-proxy-cidr only the proxies' word counts, also for --admin-user."""
    more: dict[str, Any] = {"admin_user": ("alice",), "trusted_proxy_cidr": ("10.0.0.0/8",)}
    async with site(Mode.ACL, **more) as found:
        for peer, status in ((PEER, 403), ("10.1.2.3", 200), ("::ffff:10.1.2.3", 200)):
            headers = {"X-Forwarded-User": "alice"}
            answer = await found.ask("DELETE", "/api/topics/x", headers=headers, peer=peer)
            assert answer.status_code == status, peer


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("localhost:4171", {}, 200),
        ("127.0.0.1:4171", {}, 200),
        ("[::1]:4171", {}, 200),
        ("nsq.localhost", {}, 200),
        ("rebound.example:4171", {}, 403),
        ("127.0.0.1.evil.example", {}, 403),
        ("localhost:4171", {"X-Forwarded-For": "203.0.113.7"}, 403),
        ("localhost:4171", {"Via": "1.1 proxy"}, 403),
    ],
)
async def test_nobody_signs_in_on_this_machine_itself(
    host: str, headers: dict[str, str], status: int
) -> None:
    """On loopback all is open, but only reading for what came by a foreign name or a proxy."""
    async with site(Mode.LOCAL) as found:
        sent = {"Host": host, **headers}
        answer = await found.ask("DELETE", "/api/topics/x", peer="127.0.0.1", headers=sent)
        assert answer.status_code == status
        assert (await found.ask("GET", "/api/topics", headers=sent)).status_code == 200


async def test_none_is_open_to_all() -> None:
    """--access=none asks nobody anything."""
    async with site(Mode.NONE, access="none") as found:
        answer = await found.ask("DELETE", "/api/topics/x", headers={"Host": "nsq.example"})
        assert answer.status_code == 200
