"""An HTTP client on one connection that a server, or the test itself, may end at any time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio
from trio.testing import wait_all_tasks_blocked

__all__ = ["CutOff", "HttpTalk", "get", "post", "until_cut_off"]

_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: ([0-9]+)\r\n")
_ENDED: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class CutOff(Exception):
    """The connection ended before the answer did."""


@contextmanager
def until_cut_off() -> Iterator[None]:
    """A client whose connection ends stops there."""
    try:
        yield
    except CutOff:
        return


class HttpTalk:
    """Sends requests and reads answers, which need a Content-Length.

    Attributes:
        stream: the connection.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._unread = b""

    async def send(self, *pieces: bytes) -> None:
        """Send a request, in pieces that the server reads one by one.

        Raises:
            CutOff: see the class.
        """
        for piece in pieces:
            try:
                await self.stream.send_all(piece)
            except _ENDED:
                raise CutOff from None
            await wait_all_tasks_blocked()

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer.

        Raises:
            CutOff: see the class.
        """
        while b"\r\n\r\n" not in self._unread:
            await self._read_more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        assert length is not None, head
        size = int(length[1])
        while len(self._unread) < size:
            await self._read_more()
        body, self._unread = self._unread[:size], self._unread[size:]
        return int(head.split()[1]), body

    async def ask(self, *pieces: bytes, expected: int = 200) -> bytes:
        """Send a request, and return the body of its answer, which has to have that status.

        Raises:
            CutOff: see the class.
        """
        await self.send(*pieces)
        status, body = await self.answer()
        if status == 503 and b"EXITING" in body:
            raise CutOff("nsqd stops")
        assert status == expected, (pieces, status, body)
        return body

    async def end(self) -> None:
        """Wait until the server ends the connection, without more.

        Raises:
            CutOff: see the class.
        """
        assert not self._unread
        try:
            assert not await self.stream.receive_some()
        except _ENDED:
            raise CutOff from None

    async def _read_more(self) -> None:
        try:
            data = await self.stream.receive_some()
        except _ENDED:
            data = b""
        if not data:
            raise CutOff
        self._unread += data


def get(target: str) -> bytes:
    """A request without a body."""
    return b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target.encode()


def post(target: str, body: bytes = b"", *, method: bytes = b"POST", more: bytes = b"") -> bytes:
    """A request with a body; ``more`` are further header lines."""
    head = b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n"
    return head % (method, target.encode(), len(body), more) + body
