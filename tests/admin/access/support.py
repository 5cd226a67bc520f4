"""An application with users, in this process; its handlers do nothing."""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import argon2
from quart import Response
from quart_trio import QuartTrio

from admin.access.guard import Access
from admin.access.modes import Mode
from admin.access.roles import Role
from admin.access.users import Account, FixedUsers, Users
from admin.app import create_admin_app
from admin.dashboard import Dashboard
from admin.options import NsqadminOptions, validated
from admin.upstream import Upstream

# As cheap as Argon2 gets: these passwords keep nobody out.
_HASHER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PEER = "203.0.113.9"
ROLES = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def account(name: str, role: Role, password: str = "right") -> Account:
    """A user with a password."""
    return Account(name, role, _HASHER.hash(password))


USERS = FixedUsers(*(account(role.title, role) for role in ROLES))


def options(**more: Any) -> NsqadminOptions:
    """Options of a dashboard whose nsqd does not exist."""
    return validated(NsqadminOptions(nsqd_http_address=("127.0.0.1:1",), **more))


@dataclasses.dataclass
class Site:
    """A dashboard and its application; requests to it are from `PEER`."""

    dashboard: Dashboard
    app: QuartTrio
    clock: Clock

    @property
    def access(self) -> Access:
        return self.dashboard.access

    async def ask(
        self,
        method: str,
        path: str,
        *,
        peer: str | None = PEER,
        scope: Mapping[str, Any] = MappingProxyType({}),
        **more: Any,
    ) -> Response:
        """The answer to a request; ``scope`` is what the server says of it besides."""
        scope = {"client": (peer, 50000) if peer is not None else None, **scope}
        client = self.app.test_client(use_cookies=False)
        answer: Response = await client.open(path, method=method, scope_base=dict(scope), **more)
        return answer

    async def sign_in(self, name: str, password: str = "right", **more: Any) -> Response:
        """The answer to the sign-in form."""
        form = {"name": name, "password": password, **more.pop("fields", {})}
        return await self.ask("POST", "/sign-in", form=form, **more)


@asynccontextmanager
async def site(
    mode: Mode, users: Users = USERS, *, idle_handlers: bool = True, **more: Any
) -> AsyncIterator[Site]:
    """A dashboard with that mode and those options, whose handlers, but for sign-in, do nothing."""
    clock, given = Clock(), options(**more)
    access = Access(given, mode, users, clock)
    async with Upstream(given) as upstream:
        dashboard = Dashboard(given, upstream, access)
        app = create_admin_app(dashboard)
        for endpoint in app.view_functions if idle_handlers else ():
            if "/sign-" not in endpoint:
                app.view_functions[endpoint] = _nothing
        yield Site(dashboard, app, clock)


async def _nothing(**parts: str) -> Response:
    return Response(b"through", 200)


def cookie_of(answer: Response) -> str:
    """The session cookie that an answer sets, as a header's value."""
    return answer.headers["Set-Cookie"].partition(";")[0]


def basic(name: str, password: str) -> dict[str, str]:
    """The header of HTTP's basic authentication."""
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}
