"""AUTH, and the commands that need it, where there are auth servers.

Without auth servers nothing here is used: the handlers of `trionsq.broker.commands` stand alone.

Spec: tcp-protocol, sections 9, 10 and 12.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import trio

from trionsq.broker.auth import AuthServers, ClientAuth
from trionsq.broker.commands import HANDLERS, Handler, Reply
from trionsq.logtext import printable
from trionsq.wire import events, frames
from trionsq.wire.auth import Grant, Question, answer
from trionsq.wire.errors import ProtocolError

if TYPE_CHECKING:
    from trionsq.broker.client import Client

__all__ = ["handlers_with_auth"]

log = logging.getLogger("trionsq")


_Guarded: TypeAlias = (
    events.Subscribe
    | events.Publish
    | events.PublishDeferred
    | events.PublishManyBegins
    | events.PublishMany
)


def handlers_with_auth(servers: AuthServers) -> Mapping[type, Handler]:
    """What the broker does for each command if ``servers`` decide who may do what."""

    def authorize(client: Client, event: events.Auth) -> Reply:
        if client.auth is not None:
            raise ProtocolError("E_INVALID", "AUTH already set")
        return _authorize(servers, client, event.secret)

    def guard(command: str, of: type, handler: Handler | None = None) -> Handler:
        return _guarded(servers, command, handler or HANDLERS[of])

    return {
        **HANDLERS,
        events.Auth: authorize,
        events.Subscribe: guard("SUB", events.Subscribe),
        events.Publish: guard("PUB", events.Publish),
        events.PublishDeferred: guard("DPUB", events.PublishDeferred),
        events.PublishManyBegins: guard("MPUB", events.PublishManyBegins, _begin_mpub),
        events.PublishMany: _finish_mpub(guard("MPUB", events.PublishMany)),
    }


# AUTH


async def _authorize(servers: AuthServers, client: Client, secret: bytes) -> bytes:
    grant: Grant | None = None
    async with trio.open_nursery() as nursery:
        # Nobody wants to know any more what a client that is gone may do.
        nursery.start_soon(
            client.close_at_end_of_input, name=f"client {client.peer} end of input during AUTH"
        )
        grant = await servers.ask(_question(client, secret))
        nursery.cancel_scope.cancel()
    if grant is None:
        raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
    if not len(grant):
        raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
    client.auth = ClientAuth(secret, grant, client.broker.clock.now_s())
    identity = printable(grant.identity)
    log.info("client(%s) - authorized as %s for %d s", client.peer, identity, grant.ttl_s)
    return frames.response(answer(grant))


def _question(client: Client, secret: bytes) -> Question:
    tls, common_name = _tls_of(client)
    return Question(secret, client.host, tls, common_name)


def _tls_of(client: Client) -> tuple[bool, str]:
    """Whether the connection is encrypted, and the common name of its certificate."""
    tls = client.tls
    return (False, "") if tls is None else (True, tls.common_name)


# The commands that need it


def _guarded(servers: AuthServers, command: str, handler: Handler) -> Handler:
    """``handler`` for those who may do that, and a refusal for the others."""

    is_publishing = command != "SUB"

    def guarded(client: Client, event: _Guarded) -> Reply:
        auth = client.auth
        if auth is None:
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")
        if client.broker.clock.now_s() >= auth.expires_s:
            return _when_renewed(servers, client, auth, command, event, handler)
        # Publishers come again and again, so the known verdict is looked for right here.
        if not (is_publishing and auth.grant.verdicts.get(event.topic)):
            _check(auth.grant, command, event)
        return handler(client, event)

    return guarded


def _check(grant: Grant, command: str, event: _Guarded) -> None:
    channel = ""
    if isinstance(event, events.Subscribe):
        channel = event.channel
        allowed = grant.may_subscribe(event.topic, channel)
    else:
        allowed = grant.may_publish(event.topic)
    if not allowed:
        text = f'AUTH failed for {command} on "{event.topic}" "{channel}"'
        raise ProtocolError("E_UNAUTHORIZED", text)


async def _when_renewed(
    servers: AuthServers,
    client: Client,
    auth: ClientAuth,
    command: str,
    event: _Guarded,
    handler: Handler,
) -> bytes:
    # Not given up when the client ends its sending: this command is still to be carried out.
    grant = await servers.ask(_question(client, auth.secret))
    if grant is None:
        raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
    auth.renew(grant, client.broker.clock.now_s())
    _check(grant, command, event)
    reply = handler(client, event)
    if reply is None or isinstance(reply, bytes):
        return reply or b""
    return await reply


def _begin_mpub(client: Client, event: events.PublishManyBegins) -> Reply:
    assert client.auth is not None
    client.auth.may_finish_mpub = True
    return HANDLERS[events.PublishManyBegins](client, event)


def _finish_mpub(guarded: Handler) -> Handler:
    """An MPUB is checked once: before its body, if that was not there yet."""

    def finish(client: Client, event: events.PublishMany) -> Reply:
        auth = client.auth
        if auth is None or not auth.may_finish_mpub:
            return guarded(client, event)
        auth.may_finish_mpub = False
        return HANDLERS[events.PublishMany](client, event)

    return finish
