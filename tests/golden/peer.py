"""One connection of a replay, read frame by frame."""

from __future__ import annotations

import struct

import trio

from tests.golden.interfaces import Connection
from tests.golden.layers import PushedBackConnection, upgraded

EXPECT_LIMIT_S = 30.0
SIZE_BYTES = 4


class TranscriptMismatchError(AssertionError):
    """The server did not say what was recorded."""


class Peer:
    """One named connection, with what was received and not yet looked at.

    Attributes:
        opened_at: by trio's clock.
        ended: whether the server closed.
        close_was_expected: whether the transcript says so.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.opened_at = trio.current_time()
        self.received = bytearray()
        self.ended = False
        self.close_was_expected = False

    async def upgrade(self, layer: str) -> None:
        """Lay TLS or compression over the connection; what was read beyond belongs to it."""
        inner = PushedBackConnection(self.connection, bytes(self.received))
        self.received.clear()
        self.connection = await upgraded(inner, layer)

    async def read_more(self) -> bool:
        """Wait for bytes; False at the end of the stream."""
        if self.ended:
            return False
        data = await self.connection.receive_some()
        self.received += data
        self.ended = not data
        return bool(data)

    async def read_exactly(self, count: int) -> bytes:
        """The next bytes; raises TranscriptMismatchError where the stream ends before."""
        while len(self.received) < count:
            if not await self.read_more():
                raise TranscriptMismatchError(f"closed after {bytes(self.received)!r}")
        data = bytes(self.received[:count])
        del self.received[:count]
        return data

    async def read_frame(self) -> bytes:
        """The next frame, its size included; raises TranscriptMismatchError at the end."""
        size = await self.read_exactly(SIZE_BYTES)
        return size + await self.read_exactly(int(struct.unpack(">I", size)[0]))
