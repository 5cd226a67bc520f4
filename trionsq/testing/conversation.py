"""A client that says what it is told and shows what it is sent, in whole frames."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Final

import trio

from trionsq.broker.broker import Broker
from trionsq.testing.streams import CAPACITY_NBYTES, MemoryStream, memory_connection
from trionsq.wire import commands
from trionsq.wire.client import ClientDecoder, ErrorFrame, Frame, MessageFrame, Response
from trionsq.wire.states import MAGIC_V2

__all__ = ["Conversation", "UnexpectedFrame"]

# Longer than any wait that nsqd imposes by default; in the virtual time of tests it costs little.
_PATIENCE_S: Final = 4000.0


class UnexpectedFrame(AssertionError):
    """nsqd sent something else, or nothing, or closed."""


class Conversation:
    """The client's side of one connection, for tests.

    Heartbeats are answered by NOP and not shown, while anything is being read.

    Attributes:
        stream: the connection.
        shows_heartbeats: show them like other frames, and leave the answer to the caller.
        heartbeats: how many came so far.
    """

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self.shows_heartbeats = False
        self.heartbeats = 0
        self._decoder = ClientDecoder()
        self._frames: deque[Frame] = deque()

    @classmethod
    def begin(
        cls, broker: Broker, capacity_nbytes: int = CAPACITY_NBYTES, *, magic: bytes = MAGIC_V2
    ) -> Conversation:
        """Connect to ``broker`` in memory and send the magic."""
        stream, transport = memory_connection(capacity_nbytes)
        broker.connect(transport)
        stream.send_nowait(magic)
        return cls(stream)

    async def say(self, *said: bytes) -> None:
        """Send commands, or parts of them."""
        await self.stream.send_all(b"".join(said))

    async def frame(self) -> Frame:
        """The next frame.

        Raises:
            UnexpectedFrame: the connection ended, or nothing came for very long.
        """
        with trio.move_on_after(_PATIENCE_S):
            while not self._frames:
                data = await self.stream.receive_some()
                if not data:
                    raise UnexpectedFrame("the connection ended")
                await self._decode(data)
            return self._frames.popleft()
        raise UnexpectedFrame(f"nothing came in {_PATIENCE_S} s")

    async def _decode(self, data: bytes) -> None:
        self._decoder.feed(data)
        for frame in self._decoder:
            if isinstance(frame, Response) and frame.is_heartbeat:
                self.heartbeats += 1
                if not self.shows_heartbeats:
                    # After a half close there is no way to answer.
                    with suppress(trio.ClosedResourceError):
                        await self.say(commands.nop())
                    continue
            self._frames.append(frame)

    async def response(self, data: bytes = b"OK") -> None:
        """Expect this response.

        Raises:
            UnexpectedFrame: it was another frame.
        """
        frame = await self.frame()
        if not isinstance(frame, Response) or frame.data != data:
            raise UnexpectedFrame(f"{frame} instead of {data!r}")

    async def error(self) -> str:
        """The code and text of the error frame that comes next.

        Raises:
            UnexpectedFrame: it was another frame.
        """
        frame = await self.frame()
        if not isinstance(frame, ErrorFrame):
            raise UnexpectedFrame(f"{frame} instead of an error")
        return str(frame.as_error())

    async def message(self) -> MessageFrame:
        """The message that comes next.

        Raises:
            UnexpectedFrame: it was another frame.
        """
        frame = await self.frame()
        if not isinstance(frame, MessageFrame):
            raise UnexpectedFrame(f"{frame} instead of a message")
        return frame

    async def messages(self, count: int) -> list[MessageFrame]:
        """The next messages."""
        return [await self.message() for _ in range(count)]

    async def subscribe(self, topic: str, channel: str, *, ready: int = 0) -> None:
        """SUB, and RDY unless it is 0."""
        await self.say(commands.subscribe(topic, channel))
        await self.response()
        if ready:
            await self.say(commands.ready(ready))

    async def silence(self, seconds: float) -> None:
        """Expect that no frame comes for some time; the end of the connection counts as one.

        Raises:
            UnexpectedFrame: one came.
        """
        with trio.move_on_after(seconds):
            raise UnexpectedFrame(f"{await self.frame()} where silence was expected")

    async def end(self) -> list[Frame]:
        """Wait for the end of the connection; the frames that came before. A reset is an end.

        Raises:
            UnexpectedFrame: it did not end.
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
