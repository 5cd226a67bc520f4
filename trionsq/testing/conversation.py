"""A client for tests: it sends what the test says, and returns the frames it receives."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Final

import trio

from trionsq.broker.broker import Broker
from trionsq.testing.streams import CAPACITY_BYTES, MemoryStream, memory_connection
from trionsq.wire import commands
from trionsq.wire.client import ClientDecoder, ErrorFrame, Frame, MessageFrame, Response
from trionsq.wire.states import MAGIC_V2

__all__ = ["Conversation", "UnexpectedFrame"]

# Longer than any delay that nsqd has by default; in the virtual time of tests it costs little.
_PATIENCE_S: Final = 4000.0


class UnexpectedFrame(AssertionError):
    """nsqd sent something else or nothing, or closed the connection."""


class Conversation:
    """The client's side of one connection.

    While it reads, it answers heartbeats with NOP and does not return them.

    Attributes:
        stream: the connection.
        shows_heartbeats: return heartbeats like other frames, and leave the answer to the test.
        heartbeats: number of heartbeats so far.
    """

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self.shows_heartbeats = False
        self.heartbeats = 0
        self._decoder = ClientDecoder()
        self._frames: deque[Frame] = deque()

    @classmethod
    def begin(
        cls, broker: Broker, capacity_bytes: int = CAPACITY_BYTES, *, magic: bytes = MAGIC_V2
    ) -> Conversation:
        """Connect to ``broker`` in memory and send the magic."""
        stream, transport = memory_connection(capacity_bytes)
        broker.connect(transport)
        stream.send_nowait(magic)
        return cls(stream)

    async def say(self, *parts: bytes) -> None:
        """Send commands, or parts of them."""
        await self.stream.send_all(b"".join(parts))

    async def frame(self) -> Frame:
        """Wait for the next frame and return it.

        Raises:
            UnexpectedFrame: the connection ended, or no frame arrived for 4,000 s.
        """
        with trio.move_on_after(_PATIENCE_S):
            while not self._frames:
                data = await self.stream.receive_some()
                if not data:
                    raise UnexpectedFrame("the connection ended")
                await self._decode(data)
            return self._frames.popleft()
        raise UnexpectedFrame(f"no frame arrived for {_PATIENCE_S} s")

    async def _decode(self, data: bytes) -> None:
        self._decoder.feed(data)
        for frame in self._decoder:
            if isinstance(frame, Response) and frame.is_heartbeat:
                self.heartbeats += 1
                if not self.shows_heartbeats:
                    # After a half close no answer can be sent.
                    with suppress(trio.ClosedResourceError):
                        await self.say(commands.nop())
                    continue
            self._frames.append(frame)

    async def response(self, data: bytes = b"OK") -> None:
        """Wait for this response.

        Raises:
            UnexpectedFrame: another frame arrived.
        """
        frame = await self.frame()
        if not isinstance(frame, Response) or frame.data != data:
            raise UnexpectedFrame(f"{frame} instead of {data!r}")

    async def error(self) -> str:
        """Wait for an error frame and return its code and text.

        Raises:
            UnexpectedFrame: another frame arrived.
        """
        frame = await self.frame()
        if not isinstance(frame, ErrorFrame):
            raise UnexpectedFrame(f"{frame} instead of an error")
        return str(frame.as_error())

    async def message(self) -> MessageFrame:
        """Wait for a message and return it.

        Raises:
            UnexpectedFrame: another frame arrived.
        """
        frame = await self.frame()
        if not isinstance(frame, MessageFrame):
            raise UnexpectedFrame(f"{frame} instead of a message")
        return frame

    async def messages(self, count: int) -> list[MessageFrame]:
        """Wait for this number of messages and return them."""
        return [await self.message() for _ in range(count)]

    async def subscribe(self, topic: str, channel: str, *, ready: int = 0) -> None:
        """Send SUB, and RDY unless it is 0."""
        await self.say(commands.subscribe(topic, channel))
        await self.response()
        if ready:
            await self.say(commands.ready(ready))

    async def silence(self, seconds: float) -> None:
        """Expect that no frame arrives and the connection stays open for some time.

        Raises:
            UnexpectedFrame: a frame arrived, or the connection ended.
        """
        with trio.move_on_after(seconds):
            raise UnexpectedFrame(f"{await self.frame()} where silence was expected")

    async def end(self) -> list[Frame]:
        """Wait for the end of the connection, also by a reset. Return the frames before it.

        Raises:
            UnexpectedFrame: the connection did not end.
        """
        with trio.move_on_after(_PATIENCE_S):
            try:
                while data := await self.stream.receive_some():
                    await self._decode(data)
            except trio.BrokenResourceError:
                self._frames.extend(self._decoder.pop_frames())
            left = list(self._frames)
            self._frames.clear()
            return left
        raise UnexpectedFrame(f"still open after {_PATIENCE_S} s")

    def close(self) -> None:
        """Close the connection."""
        self.stream.close()
