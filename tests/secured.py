"""What a secured nsqd needs: certificates made at test time, and an auth server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import trio
import trustme

__all__ = ["SECRET", "AuthServer", "Papers", "auth_server", "make_papers"]

SECRET = "hush"
EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


@dataclass(frozen=True, slots=True)
class Papers:
    """Paths of PEM files: whom to trust; certificates of 127.0.0.1 and of a client, and their keys.

    ``stranger`` is an authority that signed none of them.
    """

    ca: str
    cert: str
    key: str
    client: str
    stranger: str

    @property
    def nsqd_options(self) -> dict[str, str]:
        """For `trionsq.testing.open_broker`."""
        return {
            "tls_cert": self.cert,
            "tls_key": self.key,
            "tls_root_ca_file": self.ca,
            "https_address": "127.0.0.1:0",
        }

    @property
    def nsqd_flags(self) -> list[str]:
        """The same on a command line."""
        options = self.nsqd_options.items()
        return [f"--{name.replace('_', '-')}={value}" for name, value in options]


def make_papers(folder: Path) -> Papers:
    """Write all of them."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    stranger = trustme.CA(key_type=trustme.KeyType.ECDSA)
    server = authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.ECDSA)
    client = authority.issue_cert("client@test", common_name="client")
    blobs = {
        "ca": authority.cert_pem,
        "cert": server.cert_chain_pems[0],
        "key": server.private_key_pem,
        "client": client.private_key_and_cert_chain_pem,
        "stranger": stranger.cert_pem,
    }
    for name, blob in blobs.items():
        blob.write_to_path(str(folder / f"{name}.pem"))
    return Papers(**{name: str(folder / f"{name}.pem") for name in blobs})


@dataclass(slots=True)
class AuthServer:
    """Grants everything to who knows SECRET.

    Attributes:
        address: ``host:port``, for --auth-http-address.
        asked: the queries so far.
    """

    address: str
    asked: list[dict[str, list[str]]]


@asynccontextmanager
async def auth_server() -> AsyncIterator[AuthServer]:
    """An auth server on 127.0.0.1, over HTTP."""
    asked: list[dict[str, list[str]]] = []

    async def serve(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            data = await stream.receive_some()
            if not data:
                return
            request += data
        query = parse_qs(urlsplit(request.split(b" ")[1].decode()).query, keep_blank_values=True)
        asked.append(query)
        granted = [EVERYTHING] if query["secret"] == [SECRET] else []
        body = json.dumps({"ttl": 3600, "authorizations": granted}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        await stream.send_all(head + body)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        yield AuthServer(f"127.0.0.1:{port}", asked)
        nursery.cancel_scope.cancel()
