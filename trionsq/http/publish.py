"""The checks of /pub and /mpub, and the messages of their bodies, for both paths of a request.

The fast path and the framework make the same checks, in the order that is part of the API.

Spec: nsqd-http, sections 3 and 4.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import Final

from trionsq.broker.broker import Broker
from trionsq.broker.topic import PublishRefused, Topic
from trionsq.durations import MILLISECOND_NS
from trionsq.web.protocol import HttpError, Query, valid_topic_name
from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies
from trionsq.wire.errors import DRAINING, ProtocolError
from trionsq.wire.mpub import parse_counted
from trionsq.wire.names import is_valid_key

__all__ = ["LineSplitter", "PublishRules"]

# No delay within --max-req-timeout has so many digits.
_MILLISECONDS = re.compile(rb"[+-]?[0-9]{1,30}")
# A key may be a string of RFC 8941, or stand alone.
_QUOTED = re.compile(rb'"(.*)"')
# Bytes of a text body that are split in one step: 5 ms if every second byte is a newline.
_MAX_STEP_BYTES: Final = 32 * 1024
# Larger bodies are kept in one object: freeing a million small objects takes 20 ms.
_MAX_LIST_BYTES: Final = 64 * 1024


class PublishRules:
    """The checks of one broker. The endpoints decide on their order.

    Attributes:
        max_msg_bytes: maximum size of a message.
        max_body_bytes: maximum size of a body with several messages.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.max_msg_bytes = broker.options.max_msg_size
        self.max_body_bytes = broker.options.max_body_size

    def topic(self, values: Query) -> Topic:
        """Return the topic of the parameters; create it if it does not exist.

        Raises:
            HttpError: MISSING_ARG_TOPIC, INVALID_TOPIC, EXITING, DRAINING.
        """
        return self.topic_named(valid_topic_name(values))

    def topic_named(self, name: str) -> Topic:
        """Return the topic of that valid name; create it if it does not exist.

        Raises:
            HttpError: EXITING, DRAINING.
        """
        broker = self._broker
        if broker.exiting:
            raise HttpError(503, "EXITING")
        if broker.drain.is_on and name not in broker.topics:
            raise drained()
        return broker.topic(name)

    def refusal(self, topic: Topic, command: str, refused: PublishRefused) -> HttpError:
        """Return the error for messages that ``topic`` refused; ``command`` is PUB or MPUB.

        EXITING only if the topic or nsqd ends, DRAINING during a drain. Otherwise a queue is full,
        or the disk failed or is about to be full, and the error gives the reason, as E_PUB_FAILED
        does over TCP.
        """
        if topic.exiting or self._broker.exiting:
            return HttpError(503, "EXITING")
        if topic.refusal == DRAINING:
            return drained()
        if refused.is_full:
            return HttpError(429, f"{command}_FAILED: {refused}")
        return HttpError(503, f"{command}_FAILED: {refused}")

    def defer_ms(self, values: Query) -> int:
        """Return the parameter ``defer``, 0 if there is none.

        Raises:
            HttpError: INVALID_DEFER.
        """
        delay = values.get(b"defer")
        if delay is None:
            return 0
        limit_ms = self._broker.options.max_defer_ns // MILLISECOND_NS
        if not _MILLISECONDS.fullmatch(delay) or not 0 <= int(delay) <= limit_ms:
            raise HttpError(400, "INVALID_DEFER")
        return int(delay)

    def key(self, headers: Sequence[str]) -> bytes | None:
        """Return the key of an idempotent publish; None without one, or if keys are ignored.

        Raises:
            HttpError: INVALID_IDEMPOTENCY_KEY.
        """
        if not headers or not self._broker.registry.keys.is_open:
            return None
        text = headers[0].encode("latin-1", "replace").strip()
        quoted = _QUOTED.fullmatch(text)
        key = text if quoted is None else quoted[1]
        if len(headers) > 1 or not is_valid_key(key):
            raise HttpError(400, "INVALID_IDEMPOTENCY_KEY")
        return key

    def is_binary(self, values: Query) -> bool:
        """Whether each message has its length before it: any ``binary`` but ``0`` and ``false``."""
        return values.get(b"binary", b"0") not in (b"0", b"false")

    def messages(self, values: Query, body: bytes) -> Generator[None, None, Bodies | None]:
        """Read the messages of a whole /mpub body in short steps.

        The generator returns None if there are no messages.

        Raises:
            HttpError: MSG_TOO_BIG, BODY_TOO_BIG; of a binary body BAD_BODY, BAD_MESSAGE.
        """
        return self._counted(body) if self.is_binary(values) else self._lines(body)

    def _counted(self, body: bytes) -> Generator[None, None, Bodies]:
        try:
            return (yield from parse_counted(body, self.max_msg_bytes, self.max_body_bytes))
        except ProtocolError as error:
            raise HttpError(413, error.code.removeprefix("E_")) from error

    def _lines(self, body: bytes) -> Generator[None, None, Bodies | None]:
        splitter = LineSplitter(self.max_msg_bytes, self.max_body_bytes)
        splitter.feed(body[:_MAX_STEP_BYTES])
        for start in range(_MAX_STEP_BYTES, len(body), _MAX_STEP_BYTES):
            yield
            splitter.feed(body[start : start + _MAX_STEP_BYTES])
        return splitter.finish()


def drained() -> HttpError:
    """Return the error for messages during a drain; another node may take them at once."""
    return HttpError(503, DRAINING.upper(), {"Retry-After": "1"})


class LineSplitter:
    """Splits a text body into messages while it arrives: one for each line that is not empty."""

    def __init__(self, max_msg_bytes: int, max_body_bytes: int) -> None:
        """Limits of a message and of the body, in bytes."""
        self._max_msg_bytes = max_msg_bytes
        self._max_body_bytes = max_body_bytes
        self._bodies: list[bytes] = []
        # Messages of a large body, each after a newline, and the end of each.
        self._packed = bytearray()
        self._ends = array("I", [0])
        self._rest = bytearray()
        self._received_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Split the next piece of the body.

        Raises:
            HttpError: MSG_TOO_BIG or BODY_TOO_BIG, whichever comes first.
        """
        allowed = self._max_body_bytes - self._received_bytes
        self._received_bytes += len(piece)
        first, *more = piece[: max(0, allowed)].split(b"\n")
        self._rest += first
        self._check_size(len(self._rest))
        if more:
            *lines, last = more
            self._end_line()
            self._check_size(max(map(len, more)))
            self._bodies += filter(None, lines)
            self._rest += last
            if self._received_bytes > _MAX_LIST_BYTES:
                self._pack()
        if len(piece) > allowed:
            raise HttpError(413, "BODY_TOO_BIG")

    def finish(self) -> Bodies | None:
        """Return all messages, None if there are none; the last line needs no newline."""
        self._end_line()
        if len(self._ends) > 1:
            self._pack()
            return PackedBodies(bytes(self._packed), self._ends, 1)
        return ListBodies(self._bodies) if self._bodies else None

    def _pack(self) -> None:
        if not self._bodies:
            return
        self._packed += b"\n"
        self._packed += b"\n".join(self._bodies)
        sizes = [1 + len(body) for body in self._bodies]
        sizes[0] += self._ends[-1]
        self._ends.extend(accumulate(sizes))
        self._bodies.clear()

    def _end_line(self) -> None:
        if self._rest:
            self._bodies.append(bytes(self._rest))
            self._rest.clear()

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_msg_bytes:
            raise HttpError(413, "MSG_TOO_BIG")
