"""What a client is sent: one order of bytes, written at once as far as the socket takes them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from trionsq.transports.transport import Transport

__all__ = ["Output"]


class Output:
    """The writing half of a connection.

    `write` never waits. Whoever wrote looks at `pending` afterwards and waits in `drain` before
    it produces more, so that what is held here is bounded by what each writer makes in one go.

    Attributes:
        pending: bytes that the socket has not taken yet.
        blocked_since_s: monotonic time since which it has taken nothing, None if all is written.
    """

    __slots__ = ("_chunks", "_lock", "_send", "_transport", "blocked_since_s", "pending")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._send: Callable[[bytes | memoryview], int] = transport.send_nowait
        # A list, and a lock once it is needed: of thousands of connections few are ever behind.
        self._chunks: list[memoryview] = []
        self._lock: trio.Lock | None = None
        self.pending = 0
        self.blocked_since_s: float | None = None

    def use(self, transport: Transport) -> None:
        """Write to ``transport`` from now on. Nothing is pending."""
        assert not self.pending
        self._transport = transport
        self._send = transport.send_nowait

    def end(self) -> None:
        """End the stream, all of which is written; what is written from now on goes nowhere."""
        assert not self.pending
        self._send = len
        self._transport.end_sending()

    def __repr__(self) -> str:
        return f"<Output pending={self.pending}>"

    def check(self) -> str | None:
        """What is wrong with the account of what is pending, None if nothing is. Cheap."""
        has_chunks, is_blocked = bool(self._chunks), self.blocked_since_s is not None
        if self.pending < 0 or has_chunks != (self.pending > 0) or has_chunks != is_blocked:
            return (
                f"{self.pending} bytes are pending in {len(self._chunks)} chunks, "
                f"blocked since {self.blocked_since_s}"
            )
        return None

    def write(self, data: bytes) -> bool:
        """Send ``data`` after all that was written before; whether the socket has taken it.

        Raises:
            OSError: the connection broke.
        """
        if not data:
            return not self.pending  # an empty chunk would look like a socket that takes nothing
        if self.pending:
            self._chunks.append(memoryview(data))
            self.pending += len(data)
            return False
        sent = self._send(data)
        if sent == len(data):
            return True
        self._chunks.append(memoryview(data)[sent:])
        self.pending = len(data) - sent
        self.blocked_since_s = trio.current_time()
        return False

    async def drain(self) -> None:
        """Wait until nothing is pending. On cancellation the rest stays pending.

        Raises:
            OSError: the connection broke.
        """
        if self._lock is None:
            self._lock = trio.Lock()
        async with self._lock:
            while self._chunks:
                await self._transport.wait_writable()
                self._flush()

    def _flush(self) -> None:
        chunks = self._chunks
        done = 0
        for chunk in chunks:
            sent = self._send(chunk)
            if sent:
                self.pending -= sent
                self.blocked_since_s = trio.current_time()
            if sent < len(chunk):
                chunks[done] = chunk[sent:]
                break
            done += 1
        del chunks[:done]
        if not chunks:
            self.blocked_since_s = None
