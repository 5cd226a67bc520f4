"""The file of users: what it may say, who is found, and how it changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from trionsq.daemon.acl import Acl, AclError, AclFile, Authenticator, TooManyAttempts, read_acl


def digest(token: str) -> str:
    """As the file has it."""
    return hashlib.sha256(token.encode()).hexdigest()


FILE = f"""
[users.shop]
token_sha256 = "{digest("shop-token")}"
publish = ["orders*", "audit"]
[users.billing]
token_sha256 = ["{digest("old")}", "{digest("new")}"]
certificate = "billing.example"
subscribe = ["orders/billing", "audit*", "eu.*.orders/b*"]
[users.ops]
token_sha256 = "{digest("ops-token")}"
admin = ["*"]
[users.team]
certificate = ["a.example", "b.example"]
admin = ["orders*"]
"""


def authenticator(tmp_path: Path, *, trusts_certificates: bool = True) -> Authenticator:
    """The users of FILE."""
    path = tmp_path / "acl.toml"
    path.write_text(FILE)
    return Authenticator(AclFile(str(path)), trusts_certificates=trusts_certificates)


def found(acl: Acl, token: str) -> str | None:
    """The name of the user of a token."""
    user = acl.by_token(token.encode())
    return None if user is None else user.name


def test_a_token_has_a_user() -> None:
    """Each of several tokens, and no other text; the hash itself is none."""
    acl = read_acl(FILE)
    assert [found(acl, one) for one in ("shop-token", "old", "new")] == ["shop", *["billing"] * 2]
    assert [found(acl, one) for one in ("", "ol", digest("old"))] == [None] * 3
    assert digest("old") not in repr(acl.by_token(b"old"))


def test_what_the_patterns_allow() -> None:
    """Whole names; a topic without a channel is all of its channels; rights imply no others."""
    acl = read_acl(FILE)
    shop, billing, ops = (acl.by_token(one) for one in (b"shop-token", b"old", b"ops-token"))
    team = acl.by_certificate("b.example")
    assert shop
    assert billing
    assert ops
    assert team
    topics = ("orders", "orders.eu", "audit", "audit2", "my-orders")
    assert [shop.may_publish(one) for one in topics] == [True, True, True, False, False]
    assert not shop.may_subscribe("orders", "billing")
    assert not shop.may_administer("orders")
    assert billing.may_subscribe("orders", "billing")
    assert not billing.may_subscribe("orders", "billing2")
    assert not billing.may_subscribe("orders2", "billing")
    assert billing.may_subscribe("audit2", "any#ephemeral")
    assert billing.may_subscribe("eu.x.orders", "b")
    assert not billing.may_subscribe("euxxorders", "b")  # a dot is a dot
    assert not billing.may_publish("orders")
    assert [billing.may_read(one) for one in ("orders", "audit")] == [False, True]
    assert ops.may_administer()
    assert ops.may_administer("t")
    assert ops.may_read("t")
    assert not ops.may_publish("t")
    assert not ops.may_subscribe("t", "c")
    assert team.may_administer("orders.eu")
    assert not team.may_administer("t")
    assert not team.may_administer()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no users"),
        ("[users]", "no users"),
        ("users = 1", "no users"),
        ("x", "not TOML"),
        ("[user.a]", "unknown key user"),
        ("[users.a]\ntoken = 'x'", "user a: unknown key token"),
        ("[users.a]\npublish = ['t']", "neither token_sha256 nor certificate"),
        ("[users.a]\ntoken_sha256 = 'abc'", "not 64 hex digits"),
        (f"[users.a]\ntoken_sha256 = '{digest('x')}'\npublish = 't t'", "bad pattern 't t'"),
        (f"[users.a]\ntoken_sha256 = '{digest('x')}'\npublish = 't/c'", "bad pattern 't/c'"),
        (f"[users.a]\ntoken_sha256 = '{digest('x')}'\nadmin = '*a*a*a*'", "bad pattern"),
        (f"[users.a]\ntoken_sha256 = '{digest('x')}'\npublish = [1]", "not a list of strings"),
        (f"[users.'a b']\ntoken_sha256 = '{digest('x')}'", "not the name of a user"),
        (
            f"[users.a]\ntoken_sha256 = '{digest('x')}'\n[users.b]\ntoken_sha256 = '{digest('x')}'",
            "a token occurs twice",
        ),
        ("[users.a]\ncertificate = 'c'\n[users.b]\ncertificate = 'c'", "c occurs twice"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_as_a_whole(text: str, reason: str) -> None:
    """The error says why."""
    with pytest.raises(AclError, match=reason.replace("*", r"\*")):
        read_acl(text)


async def test_a_changed_file_counts_once_it_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad or missing one changes nothing; `reload` reads also what seems unchanged."""
    monkeypatch.setattr("trionsq.daemon.acl._CHECK_S", 0.01)
    users = authenticator(tmp_path)
    path, changes = tmp_path / "acl.toml", []
    users.file.observers.append(lambda: changes.append(len(users.file.acl)))

    async def until(condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():  # noqa: ASYNC110
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(users.file.watch)
        with caplog.at_level("ERROR", "trionsq"):
            for number, text in enumerate(("[users", "", None), 1):
                if text is None:
                    path.unlink()
                else:
                    path.write_text(text)
                await until(lambda number=number: len(caplog.records) >= number)  # type: ignore[misc]
                assert found(users.file.acl, "shop-token") == "shop"
        assert changes == []
        path.write_text(f"[users.new]\ntoken_sha256 = '{digest('x')}'")
        await until(lambda: changes == [1])
        assert (found(users.file.acl, "shop-token"), found(users.file.acl, "x")) == (None, "new")
        users.file.reload()
        await until(lambda: changes == [1, 1])
        nursery.cancel_scope.cancel()


async def test_wrong_tokens_of_an_address_are_limited(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Not those of others; right ones don't count; then even the right one has to wait."""
    users = authenticator(tmp_path)
    for _ in range(100):
        assert users.authenticate("10.0.0.1", b"old", "")
    for _ in range(10):
        assert users.authenticate("10.0.0.1", b"wrong", "") is None
    with pytest.raises(TooManyAttempts) as raised:
        users.authenticate("10.0.0.1", b"old", "")
    assert users.authenticate("10.0.0.2", b"old", "")
    await trio.sleep(raised.value.wait_s)
    assert users.authenticate("10.0.0.1", b"old", "")


async def test_a_certificate_counts_where_it_is_verified(tmp_path: Path) -> None:
    """Also beside a secret that nobody knows, which some clients must send; a token comes first."""
    users = authenticator(tmp_path)
    name = "billing.example"
    for token, user in ((None, "billing"), (b"certificate", "billing"), (b"ops-token", "ops")):
        seen = users.authenticate("h", token, name)
        assert seen is not None
        assert seen.name == user
    assert users.authenticate("h", None, "other.example") is None
    assert users.authenticate("h", None, "") is None
    unverified = authenticator(tmp_path, trusts_certificates=False)
    assert unverified.authenticate("h", None, name) is None
