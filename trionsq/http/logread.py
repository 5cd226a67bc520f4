"""GET /topic/log: messages of a topic with a log, read without a channel.

The original has no such endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.logs import log_of
from trionsq.broker.seeks import SeekFailed, find_in_log
from trionsq.http.admin import Administration
from trionsq.http.loglines import Frames, Lines, LogForm
from trionsq.http.logstream import LIFE_S, MAX_READERS, LogRange, LogStream, Readers
from trionsq.http.seeking import TOPIC_HAS_NO_LOG, position_argument
from trionsq.storage.log.runs import durable_end
from trionsq.storage.log.seeking import LogPosition, WantedPosition
from trionsq.storage.log.tokens import ForeignTokenError, ReadToken, check_token
from trionsq.storage.log.topiclog import TopicLog
from trionsq.web.protocol import HttpError, Query, valid_topic_name
from trionsq.web.request import chosen, number, query
from trionsq.web.responses import error

__all__ = ["LogReading"]

_DEFAULT_COUNT: Final = 1_000
_MAX_COUNT: Final = 1_000_000
_MAX_WAIT_S: Final = 60
_RETRY_S: Final = 5
# Longer than any answer takes: a client that reads a little now and then is cut off.
_SEND_S: Final = LIFE_S + 60.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold back what is sent while one waits
}


class LogReading:
    """The endpoint.

    Attributes:
        readers: the answers under way.
    """

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._admin = admin
        self.readers = Readers(lambda: broker.exiting, broker.clock)

    async def read(self) -> Response:
        """GET /topic/log."""
        values = query()
        name = valid_topic_name(values)
        topic_log = self._log_of(name)
        form = _form(values)
        count = _count(values)
        wait_s = number(values, "wait", 0, 0, _MAX_WAIT_S)
        token, begin, to = _token(values), position_argument(b"from"), position_argument(b"to")
        if token is not None and begin is not None:
            raise HttpError(400, "INVALID_ARG_AFTER: not together with from")
        if self.readers.count >= MAX_READERS:
            self.readers.refused_count += 1
            refused = error(503, "TOO_MANY_READERS")
            refused.headers["Retry-After"] = str(_RETRY_S)
            return refused

        def find() -> TopicLog:
            found = self._log_of(name)
            if found is not topic_log:
                raise HttpError(404, "TOPIC_NOT_FOUND")
            return found

        try:
            last = None if to is None else await _end(find, to)
            if token is None:
                begin = begin or WantedPosition("beginning")
                first = (await find_in_log(find, begin)).sequence
            else:
                check_token(find(), token)
                first = token.sequence
        except SeekFailed as failure:
            raise HttpError(500, f"NOT_READ: {failure}") from failure
        except ForeignTokenError as foreign:
            raise HttpError(409, f"TOKEN_OF_ANOTHER_LOG: {foreign}") from foreign
        stream = LogStream(self.readers, topic_log, form, LogRange(first, last, count, wait_s))
        response = Response(stream, 200, headers=_HEADERS, content_type=form.content_type)
        response.timeout = _SEND_S
        return response

    def _log_of(self, name: str) -> TopicLog:
        topic_log = log_of(self._admin.topic_named(name))
        if topic_log is None:
            raise HttpError(400, TOPIC_HAS_NO_LOG)
        return topic_log


async def _end(find: Callable[[], TopicLog], to: WantedPosition) -> int | WantedPosition:
    """Return the first sequence that is not wanted; a time that no message has yet stays one."""
    if to.kind == "sequence":
        return to.value
    position: LogPosition = await find_in_log(find, to)
    if to.kind == "time" and position.sequence >= durable_end(find()):
        return to
    return position.sequence


def _count(values: Query) -> int:
    digits = values.get(b"count", b"%d" % _DEFAULT_COUNT)
    if digits.isdigit() and len(digits) < 10 and 1 <= int(digits) <= _MAX_COUNT:
        return int(digits)
    raise HttpError(400, "INVALID_ARG_COUNT")


def _form(values: Query) -> LogForm:
    body = chosen(values, "body", "text", "base64")
    if chosen(values, "format", "ndjson", "binary") == "binary":
        return Frames()
    return Lines(text=body == "text")


def _token(values: Query) -> ReadToken | None:
    text = values.get(b"after")
    if text is None:
        return None
    try:
        return ReadToken.parse(text.decode())
    except ValueError:  # also of the encoding
        raise HttpError(400, "INVALID_ARG_AFTER: no token of /topic/log") from None
