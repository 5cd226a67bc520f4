"""--access=proxy: users and roles in headers, and whose headers count."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.datastructures import Headers

from admin.access.modes import Mode, Proxies
from admin.options import OptionsError
from tests.admin.access.support import PEER, site

PROXY = "10.0.0.1"
MORE: dict[str, Any] = {
    "access": "proxy",
    "proxy_role_header": "X-Role",
    "trusted_proxy_cidr": ("10.0.0.0/8",),
}


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        (PROXY, [("X-Forwarded-User", "ann"), ("X-Role", "operator")], 200),
        (PROXY, [("X-Forwarded-User", "ann"), ("X-Role", "Admin")], 200),
        (PROXY, [("X-Forwarded-User", "ann"), ("X-Role", "viewer")], 403),
        (PROXY, [("X-Forwarded-User", "ann"), ("X-Role", "everyone")], 403),
        (PROXY, [("X-Forwarded-User", "ann"), ("X-Role", "boss")], 403),
        (PROXY, [("X-Forwarded-User", "ann")], 403),
        # a client's own header before the proxy's
        (PROXY, [("X-Forwarded-User", "ann"), ("X-Role", "admin"), ("X-Role", "viewer")], 403),
        (PROXY, [("X-Role", "admin")], 403),
        (PROXY, [("X-Forwarded-User", ""), ("X-Role", "admin")], 403),
        (PEER, [("X-Forwarded-User", "ann"), ("X-Role", "admin")], 403),
        ("127.0.0.1", [("X-Forwarded-User", "ann"), ("X-Role", "admin")], 403),
        (None, [("X-Forwarded-User", "ann"), ("X-Role", "admin")], 403),
    ],
)
async def test_role_by_header(
    peer: str | None, headers: list[tuple[str, str]], status: int
) -> None:
    """The role is what the proxy says; without a word it is viewer; others' words are nothing."""
    async with site(Mode.PROXY, **MORE) as found:
        answer = await found.ask("POST", "/api/topics", peer=peer, headers=Headers(headers))
        assert answer.status_code == status


async def test_an_untrusted_address_does_not_even_read() -> None:
    """A header from elsewhere than a proxy is ignored: this is nobody."""
    async with site(Mode.PROXY, **MORE) as found:
        for peer, status in ((PEER, 403), (PROXY, 200)):
            headers = {"X-Forwarded-User": "ann", "X-Role": "admin"}
            answer = await found.ask("GET", "/api/topics", peer=peer, headers=headers)
            assert answer.status_code == status


async def test_the_names_of_admin_user_are_admins_behind_a_proxy() -> None:
    """--admin-user makes somebody an admin whatever the role header says; others are viewers."""
    async with site(Mode.PROXY, access="proxy", admin_user=("ann",)) as found:
        for name, status in (("ann", 200), ("bob", 403)):
            headers = {"X-Forwarded-User": name}
            answer = await found.ask("DELETE", "/api/topics/x", peer="::1", headers=headers)
            assert answer.status_code == status


async def test_loopback_is_the_proxy_unless_another_is_named() -> None:
    """Without --trusted-proxy-cidr it is loopback, and a unix socket."""
    async with site(Mode.PROXY, access="proxy") as found:
        for peer, status in (("127.0.0.1", 200), ("::1", 200), (None, 200), (PEER, 403)):
            headers = {"X-Forwarded-User": "ann"}
            answer = await found.ask("GET", "/api/topics", peer=peer, headers=headers)
            assert answer.status_code == status, peer


@pytest.mark.parametrize(
    ("peer", "forwarded", "origin"),
    [
        (PEER, "1.2.3.4", PEER),
        (PROXY, "", PROXY),
        (PROXY, "1.2.3.4", "1.2.3.4"),
        (PROXY, "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        (PROXY, "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4"),
        (PROXY, "6.6.6.6, unknown", PROXY),
        (PROXY, "," * 100_000, PROXY),
        ("not an address", "1.2.3.4", "not an address"),
    ],
)
def test_who_asks(peer: str, forwarded: str, origin: str) -> None:
    """The last in X-Forwarded-For that is no proxy of ours; what clients put before is nothing."""
    headers = Headers([("X-Forwarded-For", forwarded)])
    assert Proxies(["10.0.0.0/8"]).origin_of(peer, headers) == origin


def test_a_network_that_is_none_ends_the_start() -> None:
    """--trusted-proxy-cidr is checked at the start."""
    with pytest.raises(OptionsError, match=r"failed to parse --trusted-proxy-cidr \(10/99\)"):
        Proxies(["10/99"])
