"""Auth servers in memory: each connection to one is answered by a script, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio

from trionsq.broker.broker import Broker
from trionsq.testing.conversation import Conversation
from trionsq.testing.streams import MemoryStream, Pipe
from trionsq.wire import commands

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
GRANTED = b'{"identity":"","identity_url":"","permission_count":1}'
ANSWER_NBYTES_MAX = 32 * 1024 * 1024


def http(status: int, body: bytes) -> bytes:
    """An HTTP answer."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def granting(*entries: object, ttl: int = 3600, **others: object) -> bytes:
    """An answer with these authorizations, by default one that allows everything."""
    said: dict[str, Any] = {"ttl": ttl, "authorizations": entries or [EVERYTHING]}
    return http(200, json.dumps(said | others).encode())


class AuthStub:
    """Stands in for the network between a broker and its auth servers.

    Attributes:
        answers: what the next connections get; the last one is for all that follow. None: the
            server takes the question and hangs.
        dialled: host and port of each connection.
        ends: the servers' ends of them.
        requests: what each of them was sent so far.
    """

    def __init__(self, broker: Broker, *answers: bytes | None) -> None:
        self.answers: list[bytes | None] = list(answers)
        self.dialled: list[tuple[str, int]] = []
        self.ends: list[MemoryStream] = []
        self.unreachable: set[str] = set()
        self.connected: Callable[[MemoryStream], None] = lambda end: None
        assert broker.auth_servers is not None
        broker.auth_servers.dial = self.dial

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        """See `trionsq.httpget.Dial`."""
        self.dialled.append((host, port))
        await trio.lowlevel.checkpoint()
        if host in self.unreachable:
            raise OSError("nobody there")
        up, down = Pipe(65536), Pipe(ANSWER_NBYTES_MAX)
        end = MemoryStream(up, down)
        self.ends.append(end)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            end.send_nowait(answer)
            end.end_sending()
        self.connected(end)
        return MemoryStream(down, up)

    async def request(self, number: int = -1) -> bytes:
        """What came over one of the connections, to its end."""
        seen = b""
        with suppress(trio.BrokenResourceError):
            async for data in self.ends[number]:
                seen += data
        return seen

    async def query(self, number: int = -1) -> dict[str, Sequence[str]]:
        """The decoded query of one of the connections."""
        target = (await self.request(number)).split(b" ")[1].decode()
        return dict(parse_qs(urlsplit(target).query, keep_blank_values=True))


async def authorized(broker: Broker, secret: str = "s") -> Conversation:
    """A connection that AUTH has succeeded on, with what `granting` grants."""
    talk = Conversation.begin(broker)
    await talk.say(commands.auth(secret))
    await talk.response(GRANTED)
    return talk
