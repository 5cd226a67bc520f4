"""Messages of a connection that notes what is answered."""

from __future__ import annotations

from typing import Any

from trionsq.client.backoff import Outcome
from trionsq.client.message import Batch, Message
from trionsq.wire.client import Columns

__all__ = ["Answers", "message"]


class Answers:
    """The origin of batches: an nsqd that takes all answers.

    Attributes:
        commands: what was sent, for instance ``b"FIN 0000000000000001"``.
        outcomes: what backoff was told, one for each command.
    """

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.outcomes: list[Outcome | None] = []
        self.address = "nsqd.test:4150"
        self.is_open = True

    def send_answers(
        self, batch: Batch, commands: bytes, count: int, outcome: Outcome | None
    ) -> bool:
        """Note them."""
        self.commands += commands.splitlines()
        self.outcomes += [outcome] * count
        return True

    def send_touch(self, batch: Batch, commands: bytes) -> bool:
        """Note it."""
        self.commands += commands.splitlines()
        return True

    def requeue_delay_s(self, attempts: int) -> float:
        """As many seconds as attempts."""
        return float(attempts)


def message(
    body: Any = b"body", *, origin: Answers | None = None, number: int = 1, attempts: int = 1
) -> Message[Any]:
    """A message with that number as id."""
    columns = Columns([1_000_000_000], [attempts], [b"%016d" % number], [body])
    return Batch(origin or Answers(), columns)[0]
