"""What is answered to commands, and the answers that a connection owes for a while.

These are the answers to publishes that are not safe yet, and to what came after them. They go out
in the order of the commands. Messages and heartbeats do not wait for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from trionsq.core.round import Round
from trionsq.wire import frames
from trionsq.wire.errors import ProtocolError

__all__ = ["Answer", "OwedAnswer", "OwedAnswers", "Reply", "complete_reply"]

# What a connection may be owed before it is read on: 10,000 answers, and bodies that are not safe.
_MAX_ANSWER_BYTES: Final = 10_000 * len(frames.OK)
_MAX_BODY_BYTES: Final = 8 * 1024 * 1024


@dataclass(slots=True, eq=False, init=False)
class OwedAnswer:
    """The answer to a publish that is not safe yet.

    Attributes:
        round: decides whether the messages are stored.
        answer: the frames to answer then.
        command: PUB, MPUB or DPUB.
        body_nbytes: size of the messages.
    """

    round: Round
    answer: bytes
    command: str
    body_nbytes: int

    # See `trionsq.wire.events.Publish`.
    def __init__(self, round_: Round, answer: bytes, command: str, body_nbytes: int) -> None:
        self.round = round_
        self.answer = answer
        self.command = command
        self.body_nbytes = body_nbytes


Answer: TypeAlias = bytes | OwedAnswer
"""The frames to answer: now, or when what was published is safe."""
Reply: TypeAlias = Answer | Awaitable[Answer] | None
"""What to answer, an awaitable of it if the command must wait, None for no answer."""


async def complete_reply(reply: Reply) -> Answer:
    """Wait for a reply if necessary, and return the answer."""
    if reply is None or isinstance(reply, (bytes, OwedAnswer)):
        return reply or b""
    return await reply


class OwedAnswers:
    """What one connection is owed, as long as that is anything.

    Attributes:
        error: why it has to end: messages were not stored. Nothing more is answered then.
    """

    __slots__ = ("_answer_nbytes", "_answers", "_asked", "_body_nbytes", "_refuse", "_released",
                 "_write", "error")  # fmt: skip

    def __init__(self, write: Callable[[bytes, bool], None], refuse: Callable[[], None]) -> None:
        """
        Args:
            write: writes answers; is also told whether these were the last ones.
            refuse: is called after `error` was set.
        """
        self.error: ProtocolError | None = None
        self._write = write
        self._refuse = refuse
        # A list: a connection that waits for each answer makes one for each.
        self._answers: list[OwedAnswer] = []
        self._answer_nbytes = self._body_nbytes = 0
        # The round that was asked last to call back; most answers wait for the same one.
        self._asked: Round | None = None
        self._released: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<OwedAnswers {len(self._answers)} for {self._body_nbytes} bytes of bodies>"

    def add(self, answer: OwedAnswer) -> None:
        """Add an answer behind all others."""
        if self.error is not None:
            return
        self._answers.append(answer)
        self._answer_nbytes += len(answer.answer)
        self._body_nbytes += answer.body_nbytes
        if answer.round is not self._asked:
            self._asked = answer.round
            answer.round.when_done(self._release)

    def add_replies(self, data: bytes) -> None:
        """Add frames that answer commands behind the last publish."""
        if self.error is None:
            self._answers[-1].answer += data
            self._answer_nbytes += len(data)

    def drop(self) -> None:
        """Answer nothing any more: the connection has ended."""
        self._answers.clear()

    @property
    def is_full(self) -> bool:
        """Whether the client is owed too much to be read on."""
        return self._answer_nbytes > _MAX_ANSWER_BYTES or self._body_nbytes > _MAX_BODY_BYTES

    async def wait_for_room(self) -> None:
        """Wait while the client is owed too much."""
        while self.is_full:
            await self._wait_for_release()

    async def wait_released(self) -> None:
        """Wait until nothing is owed."""
        while self._answers or self.error is not None:
            await self._wait_for_release()

    async def _wait_for_release(self) -> None:
        if self._released is None:
            self._released = trio.Event()
        await self._released.wait()

    def _release(self) -> None:
        """Write the answers up to the first publish that is not safe."""
        answers = self._answers
        released: list[bytes] = []
        for first in answers:
            if not first.round.is_done:
                break
            if first.round.error is not None:
                text = f"{first.command} failed {first.round.error}"
                self.error = ProtocolError(f"E_{first.command}_FAILED", text)
                break
            released.append(first.answer)
            self._answer_nbytes -= len(first.answer)
            self._body_nbytes -= first.body_nbytes
        if self.error is None:
            del answers[: len(released)]
        else:
            answers.clear()
        if released:
            self._write(b"".join(released), not answers and self.error is None)
        if self.error is not None:
            self._refuse()
        elif released and self._released is not None:
            self._released.set()
            self._released = None
