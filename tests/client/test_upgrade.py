"""TLS, compression and AUTH (trionsq.client.handshake). Spec: client, section 1."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.client.network import ADDRESS
from tests.client.upgraded import (
    HOST,
    SECRET,
    Secured,
    SecuredNetwork,
    authority,
    server_context,
    stranger,
    trusting,
)
from trionsq.client import (
    AuthError,
    AuthRequiredError,
    Config,
    ConnectError,
    Connection,
    IdentifyError,
    Producer,
    UpgradeError,
)
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError

BODIES = [b"x", b"y" * 200_000, b"z" * 10]
CUTS = st.lists(st.sampled_from([1, 2, 3, 7, 100, 5000, 65536]), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Options with TLS and the trusted authority."""
    return trusting(tmp_path_factory.mktemp("ca"))


async def refused(config: Config, nsqd: Secured, error: type[Exception], reason: str) -> None:
    """Opening the connection fails with this error, and closes it."""
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, nsqd)
        with pytest.raises(error, match=reason) as caught:
            await Connection.open(ADDRESS, config, network.dial)
        assert str(caught.value).startswith(f"{ADDRESS}: ")
        assert network.links[0].is_closed


# What is agreed on


@pytest.mark.parametrize("auth", [False, True])
@pytest.mark.parametrize("compression", ["", "deflate", "snappy"])
@pytest.mark.parametrize("tls", [False, True])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=CUTS)
async def test_every_combination(
    tls: bool, compression: str, auth: bool, sizes: list[int], secure: Config
) -> None:
    """However the streams are cut, messages arrive, and each answer reaches its request."""
    options: dict[str, Any] = {"auth_secret": SECRET} if auth else {}
    if compression:
        options[compression] = True
    config = replace(secure if tls else Config(), **options)
    nsqd = Secured(server_context() if tls else None, wants_secret=auth)
    # Small pieces of large bodies take long without telling more.
    bodies = BODIES if min(sizes) >= 100 else [b"x", b"y" * 2000]
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, nsqd, sizes=sizes)
        async with Producer(ADDRESS, config=config, dial=network.dial_cut) as producer:
            replies = [await producer.begin_publish("t", body) for body in bodies]
            answers = [await reply.wait() for reply in replies]
    assert answers == [b"OK %d" % (index + 1) for index in range(len(bodies))]
    assert nsqd.published == bodies
    assert nsqd.layers == ["tls"] * tls + [compression] * bool(compression)
    assert nsqd.secret == (SECRET.encode() if auth else b"")
    assert nsqd.identity["tls_v1"] is tls


async def test_what_comes_with_the_last_word_of_the_beginning_is_not_lost() -> None:
    """A heartbeat that arrives together with the answer to AUTH is answered."""
    said = frames.response(b'{"permission_count":1}') + frames.HEARTBEAT
    nsqd = Secured(wants_secret=True, stop_at="auth", instead=said)
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, nsqd)
        config = Config(auth_secret=SECRET)
        connection = await Connection.open(ADDRESS, config, network.dial)
        before = network.links[0].outgoing.passed_bytes
        await nursery.start(connection.run)
        while network.links[0].outgoing.passed_bytes < before + len(b"NOP\n"):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_the_connection_knows_its_tls(secure: Config) -> None:
    """Version and cipher can be inspected."""
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, Secured(server_context()))
        connection = await Connection.open(ADDRESS, secure, network.dial)
        assert connection.tls is not None
        assert connection.tls.version == "TLSv1.3"
        connection.discard()


@pytest.mark.parametrize("name", ["deflate", "snappy"])
async def test_an_nsqd_without_compression_is_spoken_to_without(name: str) -> None:
    """If nsqd declines compression, the connection works without."""
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery).held()
        config = Config().parse(name)

        async def serve() -> None:
            peer = await network.peer()
            assert json.loads(await peer.identify(b'{"deflate":false,"snappy":false}'))[name]
            await peer.line()
            await peer.body()
            await peer.say(frames.OK)

        nursery.start_soon(serve)
        async with Producer(ADDRESS, config=config, dial=network.dial) as producer:
            await producer.publish("t", b"x")


# TLS


@pytest.mark.parametrize("answer", [b'{"tls_v1":false}', b"{}", b"OK"])
async def test_who_asks_for_tls_is_not_talked_out_of_it(answer: bytes, secure: Config) -> None:
    """Without TLS from nsqd, or with someone in between, nothing but IDENTIFY is sent."""
    config = replace(secure, auth_secret=SECRET)
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery).held()
        heard: list[bytes] = []

        async def serve() -> None:
            peer = await network.peer()
            heard.append(await peer.identify(answer))
            await peer.gone()

        nursery.start_soon(serve)
        with pytest.raises(UpgradeError, match="does not offer TLS"):
            await Connection.open(ADDRESS, config, network.dial)
        assert network.links[0].is_closed
    assert SECRET.encode() not in heard[0]


async def test_two_compressions_are_one_too_many() -> None:
    """nsqd must not turn on both: their order is undefined."""
    config = Config(deflate=True, snappy=True)
    await refused(config, Secured(), IdentifyError, "both deflate and snappy")


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (lambda: server_context(stranger()), "certificate is not accepted: .*issuer"),
        (lambda: server_context(name="other.test"), f"not valid for '{HOST}'"),
    ],
)
async def test_a_certificate_of_another(
    context: Callable[[], ssl.SSLContext], reason: str, secure: Config
) -> None:
    """The error names the address and the reason; with tls_insecure_skip_verify it works."""
    await refused(secure, Secured(context()), UpgradeError, reason)
    careless = Config(tls_v1=True, tls_insecure_skip_verify=True)
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, Secured(context()))
        (await Connection.open(ADDRESS, careless, network.dial)).discard()


async def test_the_clients_certificate(secure: Config, tmp_path: Path) -> None:
    """It is sent when nsqd requests one; without it nsqd's refusal is the error."""
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    authority().configure_trust(context)
    await refused(secure, Secured(context), UpgradeError, "no TLS: .*certificate required")
    pem = tmp_path / "client.pem"
    authority().issue_cert("me@test").private_key_and_cert_chain_pem.write_to_path(str(pem))
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, Secured(context))
        config = replace(secure, tls_cert=str(pem))
        (await Connection.open(ADDRESS, config, network.dial)).discard()


async def test_an_old_tls(secure: Config) -> None:
    """tls_min_version is a minimum for nsqd; the error has the reason of either side."""
    context = server_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    config = replace(secure, tls_min_version="tls1.3")
    await refused(config, Secured(context), UpgradeError, "no TLS: .*protocol version")
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, Secured(context))
        connection = await Connection.open(ADDRESS, secure, network.dial)
        assert connection.tls is not None
        assert connection.tls.version == "TLSv1.2"
        connection.discard()


# Failures of each step

REFUSAL = frames.error(ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed no"))


@pytest.mark.parametrize(
    ("step", "instead", "reason"),
    [
        ("tls", b"", "no TLS: (broken pipe|.*reset|.*closed)"),
        ("tls", REFUSAL, "no TLS: wrong version number"),
        ("tls_ok", b"", "no TLS: closed by nsqd"),
        ("tls_ok", REFUSAL, "no TLS: E_IDENTIFY_FAILED IDENTIFY failed no"),
        ("tls_ok", frames.response(b"ko"), "no TLS: nsqd answered b'ko'"),
        ("tls_ok", b"\xff" * 8, "no TLS: frame size"),
        ("deflate", b"", "no deflate: closed by nsqd"),
        ("deflate", REFUSAL, "no deflate: "),
        ("deflate", b"\xff" * 8, "no deflate: .*invalid"),
        ("snappy", b"", "no snappy: closed by nsqd"),
        ("snappy", REFUSAL, "no snappy: no stream identifier"),
    ],
)
async def test_a_layer_that_does_not_begin(
    step: str, instead: bytes, reason: str, secure: Config
) -> None:
    """The error names the layer, and what nsqd did instead."""
    config = secure if step.startswith("tls") else Config().parse(step)
    nsqd = Secured(server_context(), stop_at=step, instead=instead)
    await refused(config, nsqd, UpgradeError, reason)


@pytest.mark.parametrize("step", ["tls", "tls_ok", "deflate", "snappy", "auth"])
async def test_no_step_waits_for_ever(step: str, secure: Config, autojump_clock: MockClock) -> None:
    """TLS and compression take dial_timeout at most, AUTH read_timeout."""
    config = secure if step.startswith("tls") else Config()
    if step in ("deflate", "snappy"):
        config = config.parse(step)
    config = replace(config, dial_timeout_s=2, read_timeout_s=40, auth_secret=SECRET)
    nsqd = Secured(server_context(), wants_secret=step == "auth", stop_at=step)
    error, reason = (
        (AuthError, "no answer to AUTH")
        if step == "auth"
        else (UpgradeError, "not begun within 2 s")
    )
    await refused(config, nsqd, error, reason)
    assert trio.current_time() == pytest.approx(40 if step == "auth" else 2)


# AUTH


async def test_a_secret_is_wanted_and_there_is_none() -> None:
    """The error has NSQ's words."""
    await refused(Config(), Secured(wants_secret=True), AuthRequiredError, "Auth Required")


async def test_a_wrong_secret() -> None:
    """The error has nsqd's text, without the secret."""
    config = Config(auth_secret="wrong")
    reason = "Error authenticating E_AUTH_FAILED AUTH failed$"
    await refused(config, Secured(wants_secret=True), AuthError, reason)


async def test_an_nsqd_that_closes_instead_of_an_answer_to_auth() -> None:
    """It is an AuthError."""
    nsqd = Secured(wants_secret=True, stop_at="auth", instead=b"")
    config = Config(auth_secret=SECRET)
    await refused(config, nsqd, AuthError, "Error authenticating closed by nsqd")
    assert issubclass(AuthError, ConnectError)


async def test_a_secret_is_not_given_unasked() -> None:
    """It is sent only to an nsqd that requires it."""
    nsqd = Secured()
    async with trio.open_nursery() as nursery:
        network = SecuredNetwork(nursery, nsqd)
        config = Config(auth_secret=SECRET)
        async with Producer(ADDRESS, config=config, dial=network.dial) as producer:
            await producer.publish("t", b"x")
    assert (nsqd.secret, nsqd.published) == (b"", [b"x"])
    assert SECRET not in json.dumps(nsqd.identity)
