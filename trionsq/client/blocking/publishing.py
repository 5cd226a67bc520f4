"""What the thread of a blocking producer does."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import anyio

from trionsq.client.blocking.background import Background
from trionsq.client.errors import ClientError, ConnectError, ProtocolError, StoppedError
from trionsq.client.producer import Producer
from trionsq.client.repeating import KeyedCommand
from trionsq.client.reply import Reply
from trionsq.transports.runtime import Token, checkpoint

__all__ = ["Entry", "Publishing"]

log = logging.getLogger("trionsq.client")

# In one turn of the event loop: commands to send, answers to hand on.
_MAX_A_TURN: Final = 256


class Entry:
    """A command that waits for nsqd's answer.

    Attributes:
        command: returns it.
        confirmed: done when nsqd has answered.
        reply: nsqd's answer, once the command is sent.
    """

    __slots__ = ("command", "confirmed", "reply")

    def __init__(self, command: KeyedCommand) -> None:
        self.command = command
        self.confirmed = Future[None]()
        self.reply: Reply[bytes] | None = None


class Publishing:
    """Sends what is queued, and tells who waits. A process has its own.

    Attributes:
        queue: commands to send; other threads append to it.
        answered: how many have their answer, or their error.
        background: the thread.
    """

    def __init__(
        self,
        producer: Producer,
        lock: threading.Condition,
        on_answer: Callable[[], None],
    ) -> None:
        """``lock`` is held by those who append; ``on_answer`` is called after each answer."""
        self.queue: deque[Entry] = deque()
        self.answered = 0
        self.background = Background(self._run, "trionsq-producer")
        self._producer = producer
        self._lock = lock
        self._on_answer = on_answer
        # In the order of their commands, which is that of the answers.
        self._sent: deque[Entry] = deque()
        self._queued, self._has_sent, self._stopped = Token(), Token(), Token()
        self.background.ended.add_done_callback(self._abandon)

    def __repr__(self) -> str:
        return f"<Publishing queued={len(self.queue)} sent={len(self._sent)}>"

    def wake(self) -> None:
        """Send what is queued. From any thread."""
        self.background.call(self._queued.set)

    def stop(self) -> None:
        """End the thread. From any thread."""
        self.background.call(self._stopped.set)

    async def _run(self) -> None:
        async with self._producer, anyio.create_task_group() as tasks:
            tasks.start_soon(self._send)
            tasks.start_soon(self._confirm)
            await self._stopped.wait()
            tasks.cancel_scope.cancel()

    def _abandon(self, ended: Future[None]) -> None:
        """Tell those who still wait that the thread has ended."""
        if (error := ended.exception()) is not None:
            log.error("the producer's thread has ended", exc_info=error)
        with self._lock:
            for entry in [*self._sent, *self.queue]:
                self._finish(entry, StoppedError("the producer was stopped"))

    async def _send(self) -> None:
        count = 0
        while True:
            await self._queued.wait()
            while self.queue:
                entry = self.queue.popleft()
                self._sent.append(entry)
                try:
                    entry.reply = await self._producer.begin_command(entry.command)
                except ConnectError as error:
                    self._fail(entry, error)
                    # All that is queued has waited for the same attempt.
                    for _ in range(len(self.queue)):
                        self._sent.append(self.queue.popleft())
                        self._fail(self._sent[-1], error)
                except (ClientError, ProtocolError) as error:
                    self._fail(entry, error)
                self._has_sent.set()
                count += 1
                if count % _MAX_A_TURN == 0:
                    await checkpoint()

    def _fail(self, entry: Entry, error: Exception) -> None:
        entry.reply = Reply()
        entry.reply.set_error(error)

    async def _confirm(self) -> None:
        count = 0
        while True:
            while self._sent and (reply := self._sent[0].reply) is not None:
                error: Exception | None = None
                try:
                    await reply.wait()
                except ProtocolError as refused:
                    error = await self._publish_elsewhere(self._sent[0], refused)
                except ClientError as failure:
                    error = failure
                self._finish(self._sent.popleft(), error)
                count += 1
                if count % _MAX_A_TURN == 0:
                    await checkpoint()
            await self._has_sent.wait()

    async def _publish_elsewhere(self, entry: Entry, refused: ProtocolError) -> Exception | None:
        """Publish again what a drained nsqd has refused; return the error."""
        if not refused.is_draining:
            return refused
        try:
            await (await self._producer.begin_command(entry.command)).wait()
        except (ClientError, ProtocolError) as error:
            return error
        return None

    def _finish(self, entry: Entry, error: Exception | None) -> None:
        self.answered += 1
        if error is None:
            entry.confirmed.set_result(None)
        else:
            entry.confirmed.set_exception(error)
        self._on_answer()
