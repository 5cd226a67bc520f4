"""AUTH, and what it allows: commands of clients where auth servers decide who may do what.

Spec: tcp-protocol, section 9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import trio

from trionsq.broker.acl import AclGrants, GrantSource
from trionsq.broker.answers import Answer, Reply, complete_reply
from trionsq.broker.auth import AuthServers, ClientAuth
from trionsq.broker.client import Client, Handler
from trionsq.broker.runtime import Clock
from trionsq.daemon.acl import Authenticator
from trionsq.logtext import printable
from trionsq.wire import events, frames
from trionsq.wire.auth import Grant, Question, answer
from trionsq.wire.errors import ProtocolError

__all__ = ["AuthCommands", "guarded_handlers"]

log = logging.getLogger("trionsq")

_READ_BYTES: Final = 16 * 1024

_Guarded: TypeAlias = (
    events.Subscribe
    | events.Publish
    | events.PublishDeferred
    | events.PublishManyBegins
    | events.PublishMany
    | events.PublishOnce
)


class AuthCommands:
    """AUTH and the commands that need it, where auth servers decide who may do what.

    Attributes:
        handlers: of all commands, by the class of the command's event.
    """

    def __init__(
        self,
        handlers: Mapping[type, Handler],
        servers: GrantSource,
        clock: Clock,
        by_certificate: Callable[[Client], ClientAuth | None] = lambda client: None,
    ) -> None:
        """Args:
        handlers: run the commands of those who may.
        servers: decide who may.
        clock: time.
        by_certificate: gives a client without AUTH the grant of its certificate, if any.
        """
        self._servers = servers
        self._by_certificate = by_certificate
        self._clock = clock
        self._begin_mpub = handlers[events.PublishManyBegins]
        self._run_mpub = handlers[events.PublishMany]
        self._guarded_mpub = self._guard("MPUB", self._run_mpub)
        self._run_once = run_once = handlers[events.PublishOnce]
        self._guarded_once = {name: self._guard(name, run_once) for name in ("PUB", "MPUB", "DPUB")}
        self.handlers: Mapping[type, Handler] = {
            **handlers,
            events.Auth: self._auth,
            events.Subscribe: self._guard("SUB", handlers[events.Subscribe]),
            events.Publish: self._guard("PUB", handlers[events.Publish]),
            events.PublishDeferred: self._guard("DPUB", handlers[events.PublishDeferred]),
            events.PublishManyBegins: self._guard("MPUB", self._publish_many_begins),
            events.PublishMany: self._publish_many,
            events.PublishOnce: self._publish_once,
        }

    # AUTH

    def _auth(self, client: Client, event: events.Auth) -> Reply:
        if client.auth is not None and client.auth.secret:
            raise ProtocolError("E_INVALID", "AUTH already set")
        return self._authorize(client, event.secret)

    async def _authorize(self, client: Client, secret: bytes) -> bytes:
        grant: Grant | None = None
        async with trio.open_nursery() as nursery:
            # If the client disconnects, the answer is of no use to anybody.
            nursery.start_soon(
                _close_at_end_of_input,
                client,
                name=f"client {client.peer} end of input during AUTH",
            )
            grant = await self._servers.request_grant(_question(client, secret))
            nursery.cancel_scope.cancel()
        if grant is None:
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
        if not len(grant):
            raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
        client.auth = ClientAuth(secret, grant, self._clock.now_s())
        identity = printable(grant.identity)
        log.info("client(%s) - authorized as %s for %d s", client.peer, identity, grant.ttl_s)
        return frames.response(answer(grant))

    # The commands that need it

    def _guard(self, command: str, handler: Handler) -> Handler:
        """``handler`` for those who may run the command, and a refusal for the others."""
        is_publishing = command != "SUB"

        def guarded(client: Client, event: _Guarded) -> Reply:
            auth = client.auth or self._by_certificate(client)
            if auth is None:
                raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {command}")
            if self._clock.now_s() >= auth.expires_s:
                return self._run_renewed(client, auth, command, event, handler)
            # A publisher repeats its topic, so the verdict is mostly known.
            if not (is_publishing and auth.grant.verdicts.get(event.topic)):
                _check(auth.grant, command, event)
            return handler(client, event)

        return guarded

    async def _run_renewed(
        self, client: Client, auth: ClientAuth, command: str, event: _Guarded, handler: Handler
    ) -> Answer:
        """Renew the grant, then run the command, even if the client has ended its sending."""
        grant = await self._servers.request_grant(_question(client, auth.secret))
        if grant is None:
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
        auth.renew(grant, self._clock.now_s())
        _check(grant, command, event)
        return await complete_reply(handler(client, event))

    def _publish_many_begins(self, client: Client, event: events.PublishManyBegins) -> Reply:
        assert client.auth is not None
        client.auth.may_finish_mpub = True
        return self._begin_mpub(client, event)

    def _publish_many(self, client: Client, event: events.PublishMany) -> Reply:
        """An MPUB is checked once: before its body, if that was not there yet."""
        auth = client.auth
        if auth is None or not auth.may_finish_mpub:
            return self._guarded_mpub(client, event)
        auth.may_finish_mpub = False
        return self._run_mpub(client, event)

    def _publish_once(self, client: Client, event: events.PublishOnce) -> Reply:
        auth = client.auth
        if event.command != "MPUB" or auth is None or not auth.may_finish_mpub:
            return self._guarded_once[event.command](client, event)
        auth.may_finish_mpub = False
        return self._run_once(client, event)


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


def _question(client: Client, secret: bytes) -> Question:
    tls = client.tls
    common_name = "" if tls is None else tls.common_name
    return Question(secret, client.host, tls is not None, common_name)


async def _close_at_end_of_input(client: Client) -> None:
    """Close when the peer does, while a command waits. Return if the peer sends more."""
    while not client.parser.buffered:
        await client.transport.wait_readable()
        try:
            data = client.transport.receive_nowait(_READ_BYTES)
        except OSError:
            data = b""
        if data == b"":
            client.close()
            return
        if data is not None:
            client.parser.receive(data)


def guarded_handlers(
    handlers: Mapping[type, Handler],
    users: Authenticator | None,
    servers: AuthServers | None,
    clients: Iterable[Client],
    clock: Clock,
) -> Mapping[type, Handler]:
    """Return the handlers behind the users of --acl-file, or behind the auth servers, if any."""
    if users is not None:
        grants = AclGrants(users, servers, clients, clock)
        return AuthCommands(handlers, grants, clock, grants.by_certificate).handlers
    if servers is not None:
        return AuthCommands(handlers, servers, clock).handlers
    return handlers
