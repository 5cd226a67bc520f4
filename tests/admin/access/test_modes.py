"""What --access means, and what is said of it at the start."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from admin.access.cross_site import security_headers
from admin.access.guard import open_access
from admin.access.modes import Mode, decide
from admin.options import OptionsError
from tests.admin.access.support import USERS, Clock, options, site


@pytest.mark.parametrize(
    ("hosts", "more", "mode"),
    [
        (["127.0.0.1"], {}, Mode.LOCAL),
        (["127.0.0.1", "::1"], {}, Mode.LOCAL),
        ([""], {}, Mode.LOCAL),
        (["127.0.0.1", "192.168.1.2"], {}, Mode.PASSWORD),
        (["0.0.0.0"], {}, Mode.PASSWORD),
        (["::"], {}, Mode.PASSWORD),
        (["0.0.0.0"], {"admin_user": ("ann",)}, Mode.ACL),
        (["127.0.0.1"], {"admin_user": ("ann",)}, Mode.ACL),
        (["127.0.0.1"], {"users_file": "users"}, Mode.PASSWORD),
        (["127.0.0.1"], {"access": "password"}, Mode.PASSWORD),
        (["127.0.0.1"], {"access": "proxy"}, Mode.PROXY),
        (["0.0.0.0"], {"access": "none"}, Mode.NONE),
        (["0.0.0.0"], {"access": "proxy", "admin_user": ("ann",)}, Mode.PROXY),
    ],
)
def test_what_auto_means(hosts: list[str], more: dict[str, Any], mode: Mode) -> None:
    """Open by itself on loopback alone; the original's list is the original's way."""
    assert decide(options(**more), hosts) is mode


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"access": "none", "admin_user": ("ann",)}, "--admin-user can.t be used with"),
        ({"access": "password", "admin_user": ("ann",)}, "--admin-user can.t be used with"),
        ({"access": "none", "users_file": "x"}, "--users-file requires --access=password"),
        ({"access": "proxy", "users_file": "x"}, "--users-file requires --access=password"),
        ({"users_file": "x", "admin_user": ("ann",)}, "--users-file requires --access=password"),
        ({"proxy_role_header": "X-Role"}, "--proxy-role-header requires --access=proxy"),
        ({"session_lifetime_ns": 0}, "--session-lifetime must be more than 0"),
        ({"trusted_proxy_cidr": ("here",)}, "failed to parse --trusted-proxy-cidr"),
        ({"audit_file": "/nowhere/audit"}, "failed to open --audit-file"),
    ],
)
def test_what_contradicts_itself_does_not_start(more: dict[str, Any], reason: str) -> None:
    """No option for access is passed over in silence."""
    with pytest.raises(OptionsError, match=reason):
        open_access(options(**more), ["127.0.0.1"], Clock())


@pytest.mark.parametrize(
    ("more", "level", "text"),
    [
        ({}, logging.INFO, "everyone on this machine may do everything"),
        ({"access": "none"}, logging.WARNING, "everyone who can connect may do"),
        ({"admin_user": ("a",)}, logging.WARNING, "header X-Forwarded-User, may make changes, w"),
        (
            {"admin_user": ("a",), "trusted_proxy_cidr": ("10.0.0.0/8",)},
            logging.INFO,
            "users of --admin-user",
        ),
        ({"access": "proxy"}, logging.INFO, "addresses other than loopback are refused"),
        ({"access": "password"}, logging.INFO, "users sign in with a password"),
    ],
)
def test_the_log_says_who_may_do_what(
    more: dict[str, Any], level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at the start; a warning where strangers may do things."""
    caplog.set_level(logging.INFO)
    open_access(options(**more), ["127.0.0.1"], Clock())
    (found,) = [one for one in caplog.records if text in one.getMessage()]
    assert found.levelno == level


async def test_every_answer_has_the_security_headers() -> None:
    """Pages, refusals, redirects, files, lost paths and failures alike."""
    async with site(Mode.PASSWORD, USERS) as found:

        async def fails() -> None:
            raise RuntimeError("a defect")

        found.app.view_functions["GET /sign-in"] = fails  # type: ignore[assignment]
        for method, path in [
            ("GET", "/"),
            ("GET", "/ping"),
            ("GET", "/lost"),
            ("DELETE", "/ping"),
            ("GET", "/topics/"),
            ("POST", "/api/topics"),
            ("POST", "/sign-in"),
        ]:
            answer = await found.ask(method, path, headers={"Accept": "text/html"})
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; "), path
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("url", "images"),
    [
        ("", "img-src 'self' data:"),
        ("https://graphs.example:8080/base?x", "img-src 'self' data: https://graphs.example:8080"),
        ("http://user:hunter2@graphs.example", "img-src 'self' data: http://graphs.example"),
        ("http://[::1]:80/", "img-src 'self' data: http://[::1]:80"),
        ("http://a; script-src *", "img-src 'self' data:"),
        ("http://a:b:c", "img-src 'self' data:"),
        ("ftp://graphs.example", "img-src 'self' data:"),
    ],
)
def test_graphs_may_come_from_graphite(url: str, images: str) -> None:
    """Its origin is let in for images, and nothing else of the option gets into the header."""
    policy = security_headers(url, private=False)["Content-Security-Policy"]
    assert policy.rpartition("; ")[2] == images
