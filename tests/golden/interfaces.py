"""What a replay needs of the broker it talks to, and nothing of how it is reached.

The same transcripts are replayed against a process on real sockets and against a broker in
this process over bounded memory streams: each side implements these two interfaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tests.golden.transcripts import AuthStub, Request, Server


class Connection(Protocol):
    """The client's end of one connection. A reset by the server reads as its end."""

    async def send_all(self, data: bytes) -> None:
        """Send; raises trio.BrokenResourceError once the server has closed."""

    async def receive_some(self) -> bytes:
        """The bytes that came, at least one; b"" at the end. Cancelling loses none."""

    async def shutdown_write(self) -> None:
        """Half close, so that the server reads EOF."""

    async def close(self) -> None:
        """Close both ways; again is harmless."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ServerUnderTest(Protocol):
    """One running broker."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """host:port by placeholder: tcp_addr, http_addr, https_addr, where there is one."""

    async def open_tcp(self) -> Connection:
        """A new connection, nothing sent on it yet."""

    async def http(self, request: Request) -> HttpAnswer:
        """One HTTP request on a connection of its own."""

    async def remove_data_path(self) -> None:
        """Delete the data directory while the broker runs."""

    def log_tail(self) -> str:
        """The end of the broker's log, for a failure's text."""


class ServerStarter(Protocol):
    """How a place (sockets, memory) starts a broker for a group of cases."""

    def __call__(
        self, wanted: Server, auth_address: str | None
    ) -> AbstractAsyncContextManager[ServerUnderTest]:
        """A running broker as wanted, ``{{auth_addr}}`` of its flags filled in."""


class AuthServer(Protocol):
    """A running stub auth server."""

    address: str
    requests: list[Mapping[str, object]]


class AuthStarter(Protocol):
    """How a place starts the stub auth server of a case."""

    def __call__(self, stub: AuthStub) -> AbstractAsyncContextManager[AuthServer]:
        """The stub, listening."""
