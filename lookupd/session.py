"""The TCP protocol V1 of one connection: bytes in, bytes out; no input or output, no clock.

After the magic, commands are lines; IDENTIFY has a body. Each is answered by a frame without a
type, an error by its text and the end of the connection. Spec: nsqlookupd, section 1.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from lookupd.registrars import read_token
from lookupd.registry import (
    MissingFieldsError,
    Producer,
    Registry,
    RegistryFullError,
    read_announced,
)
from trionsq.logtext import printable
from trionsq.wire.names import is_valid_name

__all__ = ["MAGIC", "MAX_BODY_BYTES", "MAX_LINE_BYTES", "Session", "frame"]

log = logging.getLogger("trionsq")

MAGIC: Final = b"  V1"
MAX_LINE_BYTES: Final = 4 * 1024
"""Our limit; the original has none. The longest valid line has 150 bytes."""
MAX_BODY_BYTES: Final = 64 * 1024
"""Our limit for the body of IDENTIFY."""

_SIZE: Final = struct.Struct(">i")
_OK: Final = b"OK"
# Trimmed from lines: white space of Unicode.
_ASCII_SPACE: Final = b"\t\n\v\f\r "
_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


class _Awaited(Enum):
    MAGIC = "magic"
    LINE = "line"
    SIZE = "body size"
    BODY = "body"
    NOTHING = "nothing"


class _FatalError(Exception):
    """The last response of a connection: a code and, after a space, the reason."""


def frame(data: bytes) -> bytes:
    """An answer as it goes over the wire."""
    return _SIZE.pack(len(data)) + data


class Session:
    """The state of one connection; turns input into responses.

    Attributes:
        registry: where it registers.
    """

    def __init__(
        self,
        registry: Registry,
        remote_address: str,
        identity: bytes,
        admits: Callable[[str], bool] = lambda token: True,
    ) -> None:
        """``identity`` is the JSON text that answers an IDENTIFY; ``admits`` tells whether the nsqd
        with a token may register."""
        self.registry = registry
        self._remote_address = remote_address
        self._identity = identity
        self._admits = admits
        self._producer: Producer | None = None
        self._awaited = _Awaited.MAGIC
        self._buffer = bytearray()
        self._body_nbytes = 0
        self._answers = bytearray()
        self._steps: Mapping[_Awaited, Callable[[int], bool]] = {
            _Awaited.MAGIC: self._take_magic,
            _Awaited.LINE: self._take_line,
            _Awaited.SIZE: self._take_size,
            _Awaited.BODY: self._take_body,
        }

    def __repr__(self) -> str:
        who = self._remote_address
        return f"<Session {who} awaits {self._awaited.value}, {len(self._buffer)} bytes>"

    @property
    def begun(self) -> bool:
        """Whether the magic was received."""
        return self._awaited is not _Awaited.MAGIC

    @property
    def ended(self) -> bool:
        """Whether the connection is to be closed."""
        return self._awaited is _Awaited.NOTHING

    def receive(self, data: bytes, now_ns: int) -> bytes:
        """Process input that was received at ``now_ns``; the bytes to send."""
        self._buffer += data
        try:
            while not self.ended and self._steps[self._awaited](now_ns):
                pass
        except _FatalError as error:
            self._refuse(error)
        return self._taken_answers()

    def end_of_input(self) -> bytes:
        """Process the end of input; the bytes to send before the connection is closed."""
        if self._awaited in (_Awaited.SIZE, _Awaited.BODY):
            what = self._awaited.value
            self._refuse(_FatalError(f"E_BAD_BODY IDENTIFY failed to read {what}".encode()))
        self._awaited = _Awaited.NOTHING
        return self._taken_answers()

    def close(self) -> None:
        """End the session: its producer is removed, the topics and channels stay."""
        self._awaited = _Awaited.NOTHING
        self._buffer.clear()
        if self._producer is not None:
            self.registry.remove_producer(self._producer)
            log.info("DB: client(%s) is gone", self._remote_address)

    def _refuse(self, error: _FatalError) -> None:
        text: bytes = error.args[0]
        log.error("client(%s) - %s", self._remote_address, printable(text.decode(errors="replace")))
        self._answer(text)
        self._awaited = _Awaited.NOTHING
        self._buffer.clear()

    def _answer(self, data: bytes) -> None:
        self._answers += frame(data)

    def _taken_answers(self) -> bytes:
        answers = bytes(self._answers)
        self._answers.clear()
        return answers

    def _take(self, nbytes: int) -> bytes | None:
        """The next bytes, None if they are incomplete."""
        if len(self._buffer) < nbytes:
            return None
        data = bytes(self._buffer[:nbytes])
        del self._buffer[:nbytes]
        return data

    # One step for each awaited part: False if it is incomplete.

    def _take_magic(self, _now_ns: int) -> bool:
        magic = self._take(len(MAGIC))
        if magic is None:
            return False
        if magic != MAGIC:
            raise _FatalError(b"E_BAD_PROTOCOL")
        self._awaited = _Awaited.LINE
        return True

    def _take_line(self, now_ns: int) -> bool:
        end = self._buffer.find(b"\n", 0, MAX_LINE_BYTES)
        if end < 0:
            if len(self._buffer) >= MAX_LINE_BYTES:
                raise _FatalError(b"E_INVALID command line is too long")
            return False
        line = self._take(end + 1)
        assert line is not None
        self._do(_trimmed(line).split(b" "), now_ns)
        return True

    def _take_size(self, _now_ns: int) -> bool:
        size = self._take(_SIZE.size)
        if size is None:
            return False
        (self._body_nbytes,) = _SIZE.unpack(size)
        if not 0 <= self._body_nbytes <= MAX_BODY_BYTES:
            raise _FatalError(b"E_BAD_BODY IDENTIFY invalid body size %d" % self._body_nbytes)
        self._awaited = _Awaited.BODY
        return True

    def _take_body(self, now_ns: int) -> bool:
        body = self._take(self._body_nbytes)
        if body is None:
            return False
        self._identify(body, now_ns)
        self._awaited = _Awaited.LINE
        return True

    # Commands

    def _do(self, words: list[bytes], now_ns: int) -> None:
        name, *parameters = words
        match name:
            case b"PING":
                if self._producer is not None:
                    self._producer.last_update_ns = now_ns
                self._answer(_OK)
            case b"IDENTIFY":
                if self._producer is not None:
                    raise _FatalError(b"E_INVALID cannot IDENTIFY again")
                self._awaited = _Awaited.SIZE
            case b"REGISTER":
                self._register(*self._place(name, parameters))
            case b"UNREGISTER":
                self._unregister(*self._place(name, parameters))
                self._answer(_OK)
            case _:
                raise _FatalError(b"E_INVALID invalid command " + name)

    def _identify(self, body: bytes, now_ns: int) -> None:
        try:
            announced, token = read_announced(body), read_token(body)
        except MissingFieldsError as error:
            raise _FatalError(f"E_BAD_BODY {error}".encode()) from None
        except ValueError:
            raise _FatalError(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not self._admits(token):
            raise _FatalError(b"E_UNAUTHORIZED IDENTIFY needs the token of an nsqd")
        self._producer = Producer(self._remote_address, announced, now_ns)
        self.registry.add_producer(self._producer)
        log.info(
            "DB: client(%s) IDENTIFY %s tcp:%d http:%d version:%s",
            self._remote_address,
            printable(announced.broadcast_address),
            announced.tcp_port,
            announced.http_port,
            printable(announced.version, 100),
        )
        self._answer(self._identity)

    def _place(self, command: bytes, parameters: list[bytes]) -> tuple[Producer, str, str]:
        """The producer, the topic, and the channel or ``""``; further parameters are ignored."""
        if self._producer is None:
            raise _FatalError(b"E_INVALID client must IDENTIFY")
        if not parameters:
            raise _FatalError(b"E_INVALID %b insufficient number of params" % command)
        topic, channel = parameters[0], b"".join(parameters[1:2])
        if not is_valid_name(topic):
            raise _FatalError(b"E_BAD_TOPIC %b topic name '%b' is not valid" % (command, topic))
        if channel and not is_valid_name(channel):
            raise _FatalError(
                b"E_BAD_CHANNEL %b channel name '%b' is not valid" % (command, channel)
            )
        return self._producer, topic.decode("ascii"), channel.decode("ascii")

    def _register(self, producer: Producer, topic: str, channel: str) -> None:
        try:
            self.registry.register(producer, topic, channel or None)
        except RegistryFullError as error:
            log.error(
                "client(%s) - REGISTER %s %s: %s", self._remote_address, topic, channel, error
            )
            self._answer(f"E_REGISTER_FAILED REGISTER {error}".encode())
            return
        self._answer(_OK)
        log.info("DB: client(%s) REGISTER %s %s", self._remote_address, topic, channel)

    def _unregister(self, producer: Producer, topic: str, channel: str) -> None:
        if channel:
            self.registry.unregister_channel(producer, topic, channel)
        else:
            self.registry.unregister_topic(producer, topic)
        log.info("DB: client(%s) UNREGISTER %s %s", self._remote_address, topic, channel)


def _trimmed(line: bytes) -> bytes:
    if line.isascii():
        return line.strip(_ASCII_SPACE)
    return line.decode(errors="surrogateescape").strip(_SPACE).encode(errors="surrogateescape")
