"""The users of --acl-file over TCP: by AUTH, or by their client certificate."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from trionsq.broker.auth import ClientAuth
from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import Clock
from trionsq.daemon.acl import AclFile, AclUser, Authenticator, TooManyAttempts
from trionsq.wire.auth import Grant, Question

__all__ = ["AclGrants", "GrantSource", "UserGrant", "users_of"]

log = logging.getLogger("trionsq")

# It ends when the file changes.
_TTL_S: Final = 10 * 365 * 86_400


def users_of(options: NsqdOptions) -> Authenticator | None:
    """Return the users of --acl-file, None without it. Raises AclError."""
    if not options.acl_file:
        return None
    is_verified = options.tls_client_auth_policy == "require-verify"
    return Authenticator(AclFile(options.acl_file), trusts_certificates=is_verified)


class GrantSource(Protocol):
    """Decides what a client may do."""

    async def request_grant(self, question: Question) -> Grant | None:
        """Return the grant, None if there is none."""


class UserGrant(Grant):
    """The rights of a user.

    Attributes:
        user: in the file.
    """

    __slots__ = ("user",)

    def __init__(self, user: AclUser) -> None:
        super().__init__(user.name, "", _TTL_S, [])
        self.user = user

    def __len__(self) -> int:
        return len(self.user.publish) + len(self.user.subscribe)

    def may_publish(self, topic: str) -> bool:
        verdict = self.verdicts.get(topic)
        if verdict is None:
            if len(self.verdicts) >= 1024:
                self.verdicts.clear()
            verdict = self.verdicts[topic] = self.user.may_publish(topic)
        return verdict

    def may_subscribe(self, topic: str, channel: str) -> bool:
        return self.user.may_subscribe(topic, channel)


class AclGrants:
    """The grants of a file's users, then those of auth servers."""

    def __init__(
        self,
        authenticator: Authenticator,
        servers: GrantSource | None,
        clients: Iterable[Client],
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._servers = servers
        self._clients = clients
        self._clock = clock
        authenticator.file.observers.append(self._renew_all)

    async def request_grant(self, question: Question) -> Grant | None:
        """Return the grant for a secret or certificate; None if nobody knows it."""
        name = question.common_name
        try:
            user = self._authenticator.authenticate(question.remote_ip, question.secret, name)
        except TooManyAttempts as error:
            log.warning("AUTH: too many attempts of %s", question.remote_ip)
            log.debug("AUTH: the next attempt of %s in %.1f s", question.remote_ip, error.wait_s)
            return None
        if user is not None:
            return UserGrant(user)
        return None if self._servers is None else await self._servers.request_grant(question)

    def by_certificate(self, client: Client) -> ClientAuth | None:
        """Return the grant of a client's certificate, kept at the client; None without one."""
        name = "" if client.tls is None else client.tls.common_name
        user = self._authenticator.by_certificate(name)
        if user is None:
            return None
        client.auth = ClientAuth(b"", UserGrant(user), self._clock.now_s())
        log.info("client(%s) - authorized as %s by certificate", client.peer, user.name)
        return client.auth

    def _renew_all(self) -> None:
        """Renew the grants of all clients; those close that may not go on with what they do."""
        for client in list(self._clients):
            auth = client.auth
            if auth is None or not isinstance(auth.grant, UserGrant):
                continue
            name = "" if client.tls is None else client.tls.common_name
            user = self._authenticator.find(auth.secret, name)
            if user == auth.grant.user:
                continue
            if user is not None:
                auth.renew(UserGrant(user), self._clock.now_s())
            if user is None or not _may_stay(client, user):
                log.info("client(%s) - closed: its rights have changed", client.peer)
                client.close()


def _may_stay(client: Client, user: AclUser) -> bool:
    channel = client.channel
    if not isinstance(channel, Channel):
        return True
    return user.may_subscribe(channel.topic.name, channel.name)
