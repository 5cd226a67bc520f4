"""The users of --acl-file over TCP."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.daemon.test_acl import FILE, digest
from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.memory import nsqd_in_memory
from trionsq.transports.tls import TlsInfo
from trionsq.wire import commands


@pytest.fixture
def acl_file(tmp_path: Path) -> Path:
    """The file of users."""
    path = tmp_path / "acl.toml"
    path.write_text(FILE)
    return path


async def authorized(broker: Broker, token: bytes) -> Conversation:
    """A client that has sent AUTH."""
    talk = Conversation.begin(broker)
    await talk.say(commands.auth(token.decode()))
    await talk.frame()
    return talk


async def test_nobody_does_anything_without_a_user(acl_file: Path) -> None:
    """Each command that needs a right is refused before AUTH, and AUTH with another secret."""
    async with nsqd_in_memory(acl_file=str(acl_file)) as broker:
        for command in (
            commands.publish("orders", b"x"),
            commands.publish_many("orders", [b"x"]),
            commands.publish_deferred("orders", 1, b"x"),
            commands.subscribe("orders", "billing"),
        ):
            talk = Conversation.begin(broker)
            await talk.say(command)
            assert (await talk.error()).startswith("E_AUTH_FIRST")
        talk = Conversation.begin(broker)
        await talk.say(commands.auth("wrong"))
        assert await talk.error() == "E_AUTH_FAILED AUTH failed"
        assert not broker.topics


async def test_clients_are_asked_for_a_secret(acl_file: Path) -> None:
    """Most send AUTH only then; not if all users have certificates."""
    for text, is_asked in ((FILE, True), ("[users.a]\ncertificate = 'a'", False)):
        await trio.Path(acl_file).write_text(text)
        async with nsqd_in_memory(acl_file=str(acl_file)) as broker:
            assert broker.context.features.auth_required is is_asked


async def test_a_user_does_what_the_file_says(acl_file: Path) -> None:
    """And nothing else."""
    async with nsqd_in_memory(acl_file=str(acl_file)) as broker:
        talk = await authorized(broker, b"shop-token")
        await talk.say(commands.publish("orders", b"x"))
        await talk.response()
        await talk.say(commands.publish("audit2", b"x"))
        assert (await talk.error()).startswith("E_UNAUTHORIZED")
        talk = await authorized(broker, b"new")
        await talk.subscribe("orders", "billing", ready=1)
        assert (await talk.message()).body == b"x"
        talk = await authorized(broker, b"new")
        await talk.say(commands.subscribe("orders", "other"))
        assert (await talk.error()).startswith("E_UNAUTHORIZED")
        assert list(broker.topics) == ["orders"]


async def test_a_right_that_is_taken_away_ends_the_connection(acl_file: Path) -> None:
    """Of a consumer too, which sends no command that would be checked; others stay."""
    async with nsqd_in_memory(acl_file=str(acl_file)) as broker:
        stays, goes = await authorized(broker, b"old"), await authorized(broker, b"new")
        shop = await authorized(broker, b"shop-token")
        await stays.subscribe("audit", "c")
        await goes.subscribe("orders", "billing")
        await trio.Path(acl_file).write_text(
            f"[users.billing]\ntoken_sha256 = ['{digest('old')}', '{digest('new')}']\n"
            "subscribe = ['audit']"
        )
        assert broker.users is not None
        broker.users.file.reload()
        for talk in (goes, shop):
            with pytest.raises(UnexpectedFrame):
                await talk.frame()
        assert len(broker.clients) == 1


async def test_a_verified_certificate_needs_no_auth(acl_file: Path) -> None:
    """AUTH stays possible for clients that insist on it."""
    async with nsqd_in_memory(acl_file=str(acl_file)) as broker:
        assert broker.users is not None
        broker.users._trusts_certificates = True
        for secret in (None, "anything"):
            talk = Conversation.begin(broker)
            [client] = [one for one in broker.clients if one.auth is None and one.tls is None]
            client.tls = TlsInfo("TLSv1.3", "x", "billing.example")
            if secret is not None:
                await talk.say(commands.auth(secret))
                await talk.frame()
            await talk.subscribe("audit", "c")
            assert client.auth is not None
            assert client.auth.grant.identity == "billing"
