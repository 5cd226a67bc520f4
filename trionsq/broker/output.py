"""What a client is sent: one order of bytes, written at once as far as the socket takes them."""

from __future__ import annotations

from collections import deque

import trio

from trionsq.broker.transport import Transport

__all__ = ["Output"]


class Output:
    """The writing half of a connection.

    `write` never waits. Whoever wrote looks at `pending` afterwards and waits in `drain` before
    it produces more, so that what is held here is bounded by what each writer makes in one go.

    Attributes:
        pending: bytes that the socket has not taken yet.
        blocked_since_s: monotonic time since which it has taken nothing, None if all is written.
    """

    __slots__ = ("_chunks", "_lock", "_transport", "blocked_since_s", "pending")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._chunks: deque[memoryview] = deque()
        self._lock = trio.Lock()
        self.pending = 0
        self.blocked_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<Output pending={self.pending}>"

    def write(self, data: bytes) -> None:
        """Send ``data`` after all that was written before.

        Raises:
            OSError: the connection broke.
        """
        if not data:
            return  # an empty chunk would look like a socket that takes nothing
        if self.pending:
            self._chunks.append(memoryview(data))
            self.pending += len(data)
            return
        sent = self._transport.send_nowait(data)
        if sent != len(data):
            self._chunks.append(memoryview(data)[sent:])
            self.pending = len(data) - sent
            self.blocked_since_s = trio.current_time()

    async def drain(self) -> None:
        """Wait until nothing is pending. On cancellation the rest stays pending.

        Raises:
            OSError: the connection broke.
        """
        async with self._lock:
            while self._chunks:
                await self._transport.wait_writable()
                self._flush()

    def _flush(self) -> None:
        chunks = self._chunks
        while chunks:
            sent = self._transport.send_nowait(chunks[0])
            if not sent:
                return
            self.pending -= sent
            self.blocked_since_s = trio.current_time()
            if sent < len(chunks[0]):
                chunks[0] = chunks[0][sent:]
                return
            chunks.popleft()
        self.blocked_since_s = None
