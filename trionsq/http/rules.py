"""What /pub and /mpub refuse, whichever way the request came. Spec: nsqd-http, sections 3 and 4."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, TypeVar

import trio

from trionsq.broker.broker import Broker
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.durations import MILLISECOND_NS
from trionsq.http.messages import LineSplitter
from trionsq.web.errors import HttpError
from trionsq.web.parameters import Query, valid_topic_name
from trionsq.wire.bodies import Bodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.mpub import parse_counted

__all__ = ["PublishRules", "in_turns"]

T = TypeVar("T")

# More digits than any delay in range has.
_MILLISECONDS = re.compile(rb"[+-]?[0-9]{1,30}")
# Of a text body that are split in one step: with a line for each second byte that takes 5 ms.
_STEP_NBYTES_MAX: Final = 32 * 1024


class PublishRules:
    """The checks of one broker; the order in which they are made is the endpoints' matter.

    Attributes:
        msg_size_max, body_size_max: of a message, of a body of several; in bytes.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.msg_size_max = broker.options.max_msg_size
        self.body_size_max = broker.options.max_body_size

    def topic(self, values: Query) -> Topic:
        """The topic that is asked for, made if need be.

        Raises:
            HttpError: MISSING_ARG_TOPIC, INVALID_TOPIC, EXITING.
        """
        return self.topic_named(valid_topic_name(values))

    def topic_named(self, name: str) -> Topic:
        """The topic of that valid name, made if need be.

        Raises:
            HttpError: EXITING.
        """
        if self._broker.exiting:
            raise HttpError(503, "EXITING")
        return self._broker.topic(name)

    def refusal(self, topic: Topic, command: str, refused: PublishRefused) -> HttpError:
        """The answer to a publish that ``topic`` refused; ``command`` is PUB or MPUB.

        EXITING only if the topic or nsqd ends. Otherwise the disk did not take the messages, and
        the answer gives its reason, as E_PUB_FAILED does over TCP.
        """
        if topic.exiting or self._broker.exiting:
            return HttpError(503, "EXITING")
        return HttpError(503, f"{command}_FAILED: {refused}")

    def defer_ms(self, values: Query) -> int:
        """The delay that is asked for, 0 if none.

        Raises:
            HttpError: INVALID_DEFER.
        """
        given = values.get(b"defer")
        if given is None:
            return 0
        limit_ms = self._broker.options.max_req_timeout_ns // MILLISECOND_NS
        if not _MILLISECONDS.fullmatch(given) or not 0 <= int(given) <= limit_ms:
            raise HttpError(400, "INVALID_DEFER")
        return int(given)

    def is_binary(self, values: Query) -> bool:
        """Whether the messages are counted; whatever it is set to, but for two values, says so."""
        return values.get(b"binary", b"0") not in (b"0", b"false")

    def messages(self, values: Query, body: bytes) -> Generator[None, None, Bodies | None]:
        """Read the messages of an /mpub whose body is wholly there, in short steps.

        The result is None if there are none.

        Raises:
            HttpError: MSG_TOO_BIG, BODY_TOO_BIG; of a binary body BAD_BODY, BAD_MESSAGE.
        """
        return self._counted(body) if self.is_binary(values) else self._lines(body)

    def _counted(self, body: bytes) -> Generator[None, None, Bodies]:
        try:
            return (yield from parse_counted(body, self.msg_size_max, self.body_size_max))
        except ProtocolError as error:
            raise HttpError(413, error.code.removeprefix("E_")) from error

    def _lines(self, body: bytes) -> Generator[None, None, Bodies | None]:
        splitter = LineSplitter(self.msg_size_max, self.body_size_max)
        splitter.feed(body[:_STEP_NBYTES_MAX])
        for start in range(_STEP_NBYTES_MAX, len(body), _STEP_NBYTES_MAX):
            yield
            splitter.feed(body[start : start + _STEP_NBYTES_MAX])
        return splitter.finish()


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Do all steps, with a turn for other tasks after each; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()
