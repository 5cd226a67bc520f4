"""A plain reading of the protocol: the server's side of the commands, one byte position at a time.

Written from tcp-protocol, sections 2, 3 and 7 to 13, with none of the shortcuts of
`trionsq.wire.server`; the tests hold both against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import (
    Auth,
    Event,
    Finish,
    GiveUp,
    Identify,
    Publish,
    PublishDeferred,
    PublishMany,
    PublishManyBegins,
    PublishOnce,
    Ready,
    Requeue,
    StartClose,
    Subscribe,
    Touch,
)
from trionsq.wire.lines import CommandLimits, LineTooLong
from trionsq.wire.names import quote
from trionsq.wire.server import ServerParser

Command = tuple[object, ...]
TOO_LONG = ("line too long", b"")
MAX_LINE_BYTES = 16384


@dataclass
class Outcome:
    """What a stream of bytes means: its commands, one by one, and how it ends.

    `failure` is the fatal error, as code and text; `at_eof` the one that is answered if the
    client ends its stream after these bytes.
    """

    commands: list[Command] = field(default_factory=list)
    failure: tuple[str, bytes] | None = None
    at_eof: tuple[str, bytes] | None = None


class _Refused(Exception):
    def __init__(self, code: str, text: str | bytes = b"") -> None:
        self.answer = (code, text.encode() if isinstance(text, str) else text)


class _Ended(_Refused):
    """The input ended; the answer is what nsqd says to that."""


class _Closed(Exception):
    """The input ended where nsqd closes without a word."""


class _Input:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes | None:
        if len(self.data) - self.at < count:
            return None
        self.at += count
        return self.data[self.at - count : self.at]

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            if len(self.data) - self.at >= MAX_LINE_BYTES:
                raise _Refused(*TOO_LONG)
            raise _Closed
        if end + 1 - self.at > MAX_LINE_BYTES:
            raise _Refused(*TOO_LONG)
        line = self.data[self.at : end]
        self.at = end + 1
        return line[:-1] if line.endswith(b"\r") else line

    def number(self, code: str, what: str) -> int:
        field = self.take(4)
        if field is None:
            raise _Ended(code, what)
        return int.from_bytes(field, "big", signed=True)


class Reference:
    """Reads a whole stream; `outcome` holds the result."""

    def __init__(
        self,
        data: bytes,
        limits: CommandLimits,
        heartbeats: bool = True,
        tls_required: bool = False,
    ) -> None:
        self.input = _Input(data)
        self.limits = limits
        self.heartbeats = heartbeats
        self.tls_required = tls_required
        self.state = 0
        self.outcome = Outcome()
        try:
            self._magic()
            while True:
                self._command()
        except _Closed:
            pass
        except _Ended as ended:
            self.outcome.at_eof = ended.answer
        except _Refused as refused:
            self.outcome.failure = refused.answer

    def _emit(self, *command: object) -> None:
        self.outcome.commands.append(command)

    def _magic(self) -> None:
        magic = self.input.take(4)
        if magic is None:
            raise _Closed
        if magic != b"  V2":
            raise _Refused("E_BAD_PROTOCOL")

    def _command(self) -> None:
        words = self.input.line().split(b" ")
        name = words[0]
        if self.tls_required and name != b"IDENTIFY":
            raise _Refused("E_INVALID", b"cannot " + name + b" in current state (TLS required)")
        allowed = {
            b"IDENTIFY": (0,),
            b"AUTH": (0,),
            b"SUB": (0,),
            b"RDY": (3, 4),
            b"FIN": (3, 4),
            b"REQ": (3, 4),
            b"TOUCH": (3, 4),
            b"CLS": (3,),
            b"PUB": (0, 3, 4),
            b"MPUB": (0, 3, 4),
            b"DPUB": (0, 3, 4),
            b"NOP": (0, 3, 4),
        }
        if name not in allowed:
            raise _Refused("E_INVALID", b"invalid command " + name)
        if self.state not in allowed[name]:
            raise _Refused("E_INVALID", b"cannot " + name + b" in current state")
        getattr(self, "_" + name.decode().lower())(words[1:])

    def _body(self, command: str) -> bytes:
        limit = self.limits.max_body_size
        size = self.input.number("E_BAD_BODY", f"{command} failed to read body size")
        if size > limit:
            raise _Refused("E_BAD_BODY", f"{command} body too big {size} > {limit}")
        if size <= 0:
            raise _Refused("E_BAD_BODY", f"{command} invalid body size {size}")
        body = self.input.take(size)
        if body is None:
            raise _Ended("E_BAD_BODY", f"{command} failed to read body")
        return body

    def _identify(self, words: list[bytes]) -> None:
        self._emit("IDENTIFY", self._body("IDENTIFY"))

    def _auth(self, words: list[bytes]) -> None:
        if words:
            raise _Refused("E_INVALID", "AUTH invalid number of parameters")
        self._emit("AUTH", self._body("AUTH"))

    def _sub(self, words: list[bytes]) -> None:
        if not self.heartbeats:
            raise _Refused("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(words) < 2:
            raise _Refused("E_INVALID", "SUB insufficient number of parameters")
        topic = _valid(words[0], "E_BAD_TOPIC", b"SUB topic")
        channel = _valid(words[1], "E_BAD_CHANNEL", b"SUB channel")
        self.state = 3
        self._emit("SUB", topic, channel)

    def _rdy(self, words: list[bytes]) -> None:
        if self.state == 4:
            return
        count = 1
        if words:
            count = _number(words[0], b"RDY could not parse count ")
        limit = self.limits.max_rdy_count
        if count > limit:
            raise _Refused("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        self._emit("RDY", count)

    def _fin(self, words: list[bytes]) -> None:
        self._emit("FIN", _id(words, 1, "FIN"))

    def _req(self, words: list[bytes]) -> None:
        id_ = _id(words, 2, "REQ")
        delay_ms = _number(words[1], b"REQ could not parse timeout ")
        self._emit("REQ", id_, min(delay_ms, self.limits.max_req_timeout_ms))

    def _touch(self, words: list[bytes]) -> None:
        self._emit("TOUCH", _id(words, 1, "TOUCH"))

    def _cls(self, words: list[bytes]) -> None:
        self.state = 4
        self._emit("CLS")

    def _nop(self, words: list[bytes]) -> None:
        return

    def _message(self, command: str) -> bytes:
        limit = self.limits.max_msg_size
        what = f"{command} failed to read message body size"
        size = self.input.number("E_BAD_MESSAGE", what)
        if size <= 0:
            raise _Refused("E_BAD_MESSAGE", f"{command} invalid message body size {size}")
        if size > limit:
            raise _Refused("E_BAD_MESSAGE", f"{command} message too big {size} > {limit}")
        body = self.input.take(size)
        if body is None:
            raise _Ended("E_BAD_MESSAGE", f"{command} failed to read message body")
        return body

    def _pub(self, words: list[bytes]) -> None:
        if not words:
            raise _Refused("E_INVALID", "PUB insufficient number of parameters")
        topic = _valid(words[0], "E_BAD_TOPIC", b"PUB topic")
        self._emit("PUB", topic, self._message("PUB"))

    def _dpub(self, words: list[bytes]) -> None:
        if len(words) < 2:
            raise _Refused("E_INVALID", "DPUB insufficient number of parameters")
        topic = _valid(words[0], "E_BAD_TOPIC", b"DPUB topic")
        delay_ms = _number(words[1], b"DPUB could not parse timeout ")
        limit = self.limits.max_defer_timeout_ms
        if delay_ms > limit:
            raise _Refused("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{limit}")
        self._emit("DPUB", topic, delay_ms, self._message("DPUB"))

    def _mpub(self, words: list[bytes]) -> None:
        if not words:
            raise _Refused("E_INVALID", "MPUB insufficient number of parameters")
        topic = _valid(words[0], "E_BAD_TOPIC", b"E_BAD_TOPIC MPUB topic")
        self._emit("MPUB line", topic)
        limit = self.limits.max_body_size
        size = self.input.number("E_BAD_BODY", "MPUB failed to read body size")
        if size <= 0:
            raise _Refused("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > limit:
            raise _Refused("E_BAD_BODY", f"MPUB body too big {size} > {limit}")
        count = self.input.number("E_BAD_BODY", "MPUB failed to read message count")
        if count <= 0 or count > (limit - 4) // 5:
            raise _Refused("E_BAD_BODY", f"MPUB invalid message count {count}")
        self._emit("MPUB", topic, *[self._mpub_message(index) for index in range(count)])

    def _mpub_message(self, index: int) -> bytes:
        limit = self.limits.max_msg_size
        what = f"MPUB failed to read message({index}) body size"
        size = self.input.number("E_BAD_MESSAGE", what)
        if size <= 0:
            raise _Refused("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
        if size > limit:
            raise _Refused("E_BAD_MESSAGE", f"MPUB message too big {size} > {limit}")
        body = self.input.take(size)
        if body is None:
            raise _Ended("E_BAD_MESSAGE", "MPUB failed to read message body")
        return body


def _valid(name: bytes, code: str, what: bytes) -> str:
    if len(name) > 64 or not re.fullmatch(rb"[.a-zA-Z0-9_-]+(#ephemeral)?", name):
        raise _Refused(code, what + b" name " + quote(name) + b" is not valid")
    return name.decode()


def _number(text: bytes, complaint: bytes) -> int:
    if any(digit not in b"0123456789" for digit in text):
        raise _Refused("E_INVALID", complaint + text)
    return int(text or b"0")


def _id(words: list[bytes], count: int, command: str) -> bytes:
    if len(words) < count:
        raise _Refused("E_INVALID", f"{command} insufficient number of params")
    if len(words[0]) != 16:
        raise _Refused("E_INVALID", "invalid message ID")
    return words[0]


# The parser under test, brought to the same terms.


def pieces(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """``data`` cut into pieces of these sizes, again and again."""
    at = 0
    for size in cycle(sizes):
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size


def one_by_one(event: Event) -> list[Command]:
    """The commands that an event stands for; the line of an MPUB is left to the caller."""
    match event:
        case Identify(body):
            return [("IDENTIFY", body)]
        case Auth(secret):
            return [("AUTH", secret)]
        case Subscribe(topic, channel):
            return [("SUB", topic, channel)]
        case Ready(count):
            return [("RDY", count)]
        case Finish(ids):
            assert ids
            return [("FIN", id_) for id_ in ids]
        case Requeue(id_, delay_ms):
            return [("REQ", id_, delay_ms)]
        case GiveUp(id_, delay_ms, reason):
            return [("REQ", id_, delay_ms, reason)]
        case Touch(id_):
            return [("TOUCH", id_)]
        case StartClose():
            return [("CLS",)]
        case Publish(topic, bodies):
            return [("PUB", topic, body) for body in bodies.slice(0, bodies.count)]
        case PublishDeferred(topic, delay_ms, bodies):
            return [("DPUB", topic, delay_ms, bodies.body_at(0))]
        case PublishManyBegins(topic):
            return [("MPUB line", topic)]
        case PublishMany(topic, bodies):
            return [("MPUB", topic, *bodies.slice(0, bodies.count))]
        case PublishOnce(command, topic, key, delay_ms, bodies, epoch):
            return [
                (f"{command} once", topic, key, epoch, delay_ms, *bodies.slice(0, bodies.count))
            ]


class Feeder:
    """Feeds a `ServerParser` and notes what comes out, in the terms of `Outcome`."""

    def __init__(self, parser: ServerParser) -> None:
        self.parser = parser
        self.outcome = Outcome()
        self.events = 0
        self._begun = False

    def feed(self, data: bytes) -> bool:
        """Whether the parser wants more."""
        self.parser.receive(data)
        try:
            while (event := self.parser.next_event()) is not None:
                self._note(event)
        except ProtocolError as error:
            # None of the parser's errors leaves the connection open.
            self.outcome.failure = (error.code if error.fatal else "not fatal", error.text)
        except LineTooLong:
            self.outcome.failure = TOO_LONG
        return self.outcome.failure is None

    def _note(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, PublishMany) and not self._begun:
            self.outcome.commands.append(("MPUB line", event.topic))
        self._begun = isinstance(event, PublishManyBegins)
        self.outcome.commands += one_by_one(event)

    def end(self) -> Outcome:
        error = None if self.outcome.failure else self.parser.end_of_input()
        self.outcome.at_eof = None if error is None else (error.code, error.text)
        return self.outcome


def parse(
    data: bytes,
    sizes: Iterable[int],
    limits: CommandLimits,
    heartbeats: bool = True,
    tls_required: bool = False,
) -> Outcome:
    """What `ServerParser` makes of ``data``, received in pieces of these sizes."""
    parser = ServerParser(limits, tls_required)
    parser.heartbeats = heartbeats
    feeder = Feeder(parser)
    for piece in pieces(data, sizes):
        if not feeder.feed(piece):
            break
    return feeder.end()
