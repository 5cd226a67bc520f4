"""Messages for handlers in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from trionsq.client import message as async_message
from trionsq.client.backoff import Outcome
from trionsq.client.codecs import T
from trionsq.wire.commands import give_up

__all__ = ["Message"]


class Message(Generic[T]):
    """One message. The first `finish` or `requeue` counts, later ones do nothing.

    Its answers may be given from any thread. They are sent in the background and in their order; if
    the connection is gone, nsqd delivers the message again.

    Attributes:
        id: 16 hex digits.
        body: what was published; of a consumer with a codec, what it made of that.
        timestamp_ns: time of publishing, in nanoseconds since the epoch.
        attempts: how often it was delivered, including this time.
        auto_response: whether `Consumer.run` answers for the handler. Set it to False to answer
            later, from anywhere.
    """

    __slots__ = (
        *("_call", "_message", "_outcome"),
        *("attempts", "auto_response", "body", "id", "timestamp_ns"),
    )

    def __init__(self, message: async_message.Message[T], call: Callable[..., object]) -> None:
        """``call`` has the event loop call a function."""
        self._message = message
        self._call = call
        # Of the first answer that was given here; it may still be on its way to the event loop.
        self._outcome: Outcome | None = None
        self.id = message.id
        self.body = message.body
        self.timestamp_ns = message.timestamp_ns
        self.attempts = message.attempts
        self.auto_response = True

    def __repr__(self) -> str:
        return repr(self._message)

    @property
    def nsqd_address(self) -> str:
        """``host:port`` of the nsqd that sent it."""
        return self._message.nsqd_address

    @property
    def is_open(self) -> bool:
        """Whether it has no answer yet."""
        return self._outcome is None and self._message.is_open

    @property
    def was_finished(self) -> bool:
        """Whether it has an answer, and that was `finish`."""
        return self._outcome is Outcome.SUCCESS

    @property
    def is_answerable(self) -> bool:
        """Whether an answer can still reach nsqd; if not, nsqd delivers the message again."""
        return self._message.is_answerable

    def finish(self) -> None:
        """FIN: the message is done, nsqd forgets it."""
        if self._outcome is None:
            self._outcome = Outcome.SUCCESS
            self._call(self._message.finish)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> None:
        """REQ: nsqd delivers it again; arguments as of `trionsq.client.Message.requeue`.

        Raises:
            ValueError: a negative or absurd delay.
        """
        if delay_s is not None and not 0 <= delay_s < 1e9:
            raise ValueError(f"a delay of {delay_s} s")
        if self._outcome is None:
            self._outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
            self._call(self._requeue, delay_s, backoff)

    def _requeue(self, delay_s: float | None, backoff: bool) -> None:
        self._message.requeue(delay_s, backoff=backoff)

    def dead_letter(self, reason: str, delay_s: float | None = None) -> None:
        """REQ with a reason: nsqd makes it a dead letter; as `trionsq.client.Message.dead_letter`.

        Raises:
            ValueError: a reason without 1 to 200 printable characters, or an absurd delay.
        """
        give_up(self.id, round((delay_s or 0) * 1000), reason)  # an invalid one raises here
        if self._outcome is None:
            self._outcome = Outcome.NEUTRAL
            self._call(self._message.dead_letter, reason, delay_s)

    def touch(self) -> None:
        """TOUCH: restart its timeout."""
        self._call(self._message.touch)
