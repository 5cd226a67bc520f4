"""nsqd's side of a connection: bytes in, events out. No I/O, no clock.

`ServerParser` gets the data of each read and returns events, each of which may stand for a run of
commands. What an event changes (TLS after IDENTIFY, for instance) holds for the bytes after it.

`trionsq.wire.lines` recognises runs of FIN and of PUB, up to anything unusual.

Spec: tcp-protocol, sections 2, 3, 7 to 13.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trionsq.wire.bodies import ListBodies, StridedBodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import (
    Auth,
    Event,
    Finish,
    Identify,
    Publish,
    PublishDeferred,
    PublishMany,
    PublishManyBegins,
    PublishOnce,
    StartClose,
    Touch,
)
from trionsq.wire.keyed import Key, find_key, parse_publish
from trionsq.wire.lines import (
    FIN_LINE_BYTES,
    CommandLimits,
    IncompleteCommand,
    LineTooLong,
    Params,
    fin_id,
    fin_run,
    parse_deferred,
    parse_message_id,
    parse_ready,
    parse_requeue,
    parse_subscribe,
    pub_run,
    pub_topic,
    split_line,
    valid_name,
)
from trionsq.wire.mpub import MpubScan
from trionsq.wire.states import ALLOWED, COMMANDS, MAGIC_V2, ConnectionState

__all__ = ["MAX_LINE_BYTES", "ServerParser"]

# The original's read buffer: a line that does not fit ends the connection without a frame.
MAX_LINE_BYTES: Final = 16384
# A remainder below this is copied and joined with the next read. A larger one grows in place, so
# that a body in many small reads costs no quadratic copying.
_MAX_JOIN_BYTES: Final = 65536
_FIELD: Final = 4
_NEVER: Final = 2**63
_NOPS: Final = b"NOP\n" * 64
_INT32 = Struct(">i")


class ServerParser:
    """The commands of one client connection.

    Attributes:
        accepts_keys: whether publishes may have keys; see `trionsq.wire.keyed`.
        state: the client's state after the last event.
        commands: complete command lines so far; a run counts as one.
        dead_letters: whether REQ may have the reason of a dead letter.
        heartbeats: whether the client gets heartbeats; without them SUB is refused.
        is_used_up: whether the last event was the last one without more input; False if not known.
        tls_required: whether every command but IDENTIFY is refused; cleared when TLS is on.
    """

    __slots__ = ("_allowed", "_buffer", "_failure", "_limits", "_magic", "_mpub", "_pause_at",
                 "_pos", "_waiting", "accepts_keys", "commands", "dead_letters", "heartbeats",
                 "is_used_up", "state", "tls_required")  # fmt: skip

    def __init__(self, limits: CommandLimits, tls_required: bool = False) -> None:
        self.state = ConnectionState.INIT
        self._allowed = ALLOWED[ConnectionState.INIT]
        self.accepts_keys = False
        self.commands = 0
        self.dead_letters = False
        self.heartbeats = True
        self.is_used_up = False
        self.tls_required = tls_required
        self._limits = limits
        self._magic = False
        self._buffer: bytes | bytearray = b""
        self._pos = 0
        self._waiting: IncompleteCommand | None = None
        self._mpub: tuple[str, MpubScan] | None = None
        self._failure: ProtocolError | None = None
        self._pause_at = _NEVER

    def __repr__(self) -> str:
        return f"<ServerParser {self.state.name} buffered={self.buffered} waiting={self._waiting}>"

    @property
    def buffered(self) -> int:
        """Bytes received that no event has used yet."""
        return len(self._buffer) - self._pos

    def receive(self, data: bytes, max_commands: int = 0) -> None:
        """Add the data of a read; with ``max_commands`` as `pause_after`, too."""
        self.is_used_up = False
        if max_commands:
            self._pause_at = self.commands + max_commands
        left = len(self._buffer) - self._pos
        if not left:
            self._buffer = data
        elif left < _MAX_JOIN_BYTES:
            self._buffer = bytes(self._buffer[self._pos :]) + data
        elif self._pos == 0 and isinstance(self._buffer, bytearray):
            self._buffer += data
            return
        else:
            self._buffer = bytearray(self._buffer[self._pos :])
            self._buffer += data
        self._pos = 0

    def pause_after(self, commands: int) -> None:
        """Have `next_event` pause after so many more commands; a run counts as one."""
        self._pause_at = self.commands + commands

    def pause_sooner(self, commands: int) -> None:
        """Count the newest command as so many more: it took as long as these."""
        self._pause_at = max(self.commands, self._pause_at - commands)

    @property
    def paused(self) -> bool:
        """Whether there may be more events without more input."""
        return self.commands >= self._pause_at

    @property
    def is_walking(self) -> bool:
        """Whether an MPUB of very many messages is being read: each read takes milliseconds."""
        return self._mpub is not None and self._mpub[1].is_long

    def pop_rest(self) -> bytes:
        """Return the bytes after the last event, which belong to TLS or a compressed stream."""
        rest = bytes(self._buffer[self._pos :])
        self._buffer, self._pos = b"", 0
        return rest

    def end_of_input(self) -> ProtocolError | None:
        """Return the error to answer if the input ends here, None if there is nothing to say."""
        if self._mpub is not None:
            return self._mpub[1].if_eof
        if self._waiting is not None and self._waiting.code:
            return ProtocolError(self._waiting.code, self._waiting.text)
        return None

    def next_event(self) -> Event | None:
        """Return the next event; None if more input is needed, or after `pause_after`.

        Raises:
            ProtocolError: always fatal: the connection is of no further use.
            LineTooLong: the connection must be closed without a frame.
        """
        if self._failure is not None:
            raise self._failure
        if not self._magic and not self._read_magic():
            return None
        if (mpub := self._mpub) is not None:
            return self._continue_mpub(*mpub)
        while True:
            buffer, pos = self._buffer, self._pos
            if pos == len(buffer):
                self._buffer, self._pos = b"", 0
                return None
            if self.commands >= self._pause_at:
                return None
            waiting = self._waiting
            if waiting is not None and len(buffer) - pos < waiting.need:
                self._trim_buffer()
                return None
            end = buffer.find(b"\n", pos, pos + MAX_LINE_BYTES)
            if end < 0:
                if len(buffer) - pos >= MAX_LINE_BYTES:
                    raise LineTooLong
                self._waiting = None
                self._trim_buffer()
                return None
            event = self._command(buffer, pos, end + 1)
            if event is not _NOTHING:
                if self._pos == len(self._buffer):
                    self._buffer, self._pos = b"", 0  # an idle connection keeps no buffer
                    self.is_used_up = self._mpub is None
                return event

    def _trim_buffer(self) -> None:
        """Free the used part of the buffer, if it is large and more than the rest."""
        pos = self._pos
        if pos > _MAX_JOIN_BYTES and 2 * pos > len(self._buffer):
            self._buffer = self._buffer[pos:]
            self._pos = 0

    def _read_magic(self) -> bool:
        if len(self._buffer) - self._pos < len(MAGIC_V2):
            return False
        if self._buffer[self._pos : self._pos + len(MAGIC_V2)] != MAGIC_V2:
            raise ProtocolError("E_BAD_PROTOCOL")
        self._pos += len(MAGIC_V2)
        self._magic = True
        return True

    def _command(self, buffer: bytes | bytearray, pos: int, after: int) -> Event | None:
        """Handle the command whose line is ``buffer[pos:after]``; `_NOTHING` if it has no event."""
        self.commands += 1
        line = bytes(buffer[pos:after])
        if self.accepts_keys and not self.tls_required and (key := find_key(line)) is not None:
            return self._publish_once(key, line, pos, after)
        if not self.tls_required:
            if line.startswith(b"FIN ") and self.state is not ConnectionState.INIT:
                if after == len(buffer) and (id_ := fin_id(line)):  # mostly there is nothing else
                    self._pos = after
                    return Finish([id_])
                if ids := fin_run(buffer, pos):
                    self._pos = pos + FIN_LINE_BYTES * len(ids)
                    return Finish(ids)
            elif line.startswith(b"PUB "):
                self._pos = after  # it is allowed in any state
                publish = self._pub((), line)
                if publish is None:
                    self._pos = pos
                    self._trim_buffer()
                return publish
        params = split_line(line)
        name = params[0]
        if self.tls_required and name != b"IDENTIFY":
            raise ProtocolError("E_INVALID", b"cannot %b in current state (TLS required)" % name)
        state = self._allowed.get(name)
        if state is None:
            text = b"cannot %b in current state" if name in COMMANDS else b"invalid command %b"
            raise ProtocolError("E_INVALID", text % name)
        self._pos = after
        event = _HANDLERS[name](self, params, line)
        if self._waiting is not None:
            self._pos = pos
            self._trim_buffer()
        elif state is not self.state:
            self.state = state
            self._allowed = ALLOWED[state]
        return event

    # Each handler finds self._pos after the line. It moves it over the body, or sets self._waiting.

    def _body_size(self, line: bytes, command: str, code: str, limit: int) -> int | None:
        """Return the size of the body behind a line, in bytes; None if it is not there yet."""
        what = "message body" if code == "E_BAD_MESSAGE" else "body"
        there = len(self._buffer) - self._pos - _FIELD
        self._waiting = None
        if there < 0:
            self._wait(line, 0, code, f"{command} failed to read {what} size")
            return None
        (size,) = _INT32.unpack_from(self._buffer, self._pos)
        if size <= 0:
            raise ProtocolError(code, f"{command} invalid {what} size {size}")
        if size > limit:
            raise ProtocolError(code, f"{command} {what.split()[0]} too big {size} > {limit}")
        if there < size:
            self._wait(line, size, code, f"{command} failed to read {what}")
            return None
        return int(size)

    def _wait(self, line: bytes, size: int, code: str, text: str) -> None:
        self._waiting = IncompleteCommand(len(line) + _FIELD + size, code, text)

    def _body(self, line: bytes, command: str, code: str, limit: int) -> bytes | None:
        """Return the body behind a line; None if it is not there yet."""
        size = self._body_size(line, command, code, limit)
        if size is None:
            return None
        start = self._pos + _FIELD
        self._pos = start + size
        return bytes(self._buffer[start : start + size])

    def _message(self, line: bytes, command: str) -> bytes | None:
        return self._body(line, command, "E_BAD_MESSAGE", self._limits.max_msg_size)

    def _identify(self, params: Params, line: bytes) -> Event | None:
        body = self._body(line, "IDENTIFY", "E_BAD_BODY", self._limits.max_body_size)
        return None if body is None else Identify(body)

    def _auth(self, params: Params, line: bytes) -> Event | None:
        if len(params) != 1:
            raise ProtocolError("E_INVALID", "AUTH invalid number of parameters")
        secret = self._body(line, "AUTH", "E_BAD_BODY", self._limits.max_body_size)
        return None if secret is None else Auth(secret)

    def _sub(self, params: Params, line: bytes) -> Event:
        if not self.heartbeats:
            raise ProtocolError("E_INVALID", "cannot SUB with heartbeats disabled")
        return parse_subscribe(params)

    def _rdy(self, params: Params, line: bytes) -> Event | None:
        if self.state is ConnectionState.CLOSING:
            return _NOTHING
        return parse_ready(params, self._limits.max_rdy_count)

    def _fin(self, params: Params, line: bytes) -> Event:
        return Finish([parse_message_id(params, "FIN", 1)])

    def _req(self, params: Params, line: bytes) -> Event:
        return parse_requeue(params, self._limits.max_req_timeout_ms, self.dead_letters)

    def _touch(self, params: Params, line: bytes) -> Event:
        return Touch(parse_message_id(params, "TOUCH", 1))

    def _cls(self, params: Params, line: bytes) -> Event:
        return StartClose()

    def _nop(self, params: Params, line: bytes) -> Event | None:
        # Compressed NOPs cost their sender next to nothing, so a flood of them must be cheap here.
        while self._buffer.startswith(_NOPS, self._pos):
            self._pos += len(_NOPS)
        return _NOTHING

    def _pub(self, params: Params, line: bytes) -> Publish | None:
        topic = pub_topic(line)
        buffer, pos, limit = self._buffer, self._pos, self._limits.max_msg_size
        there = len(buffer) - pos - _FIELD
        if 0 < there <= limit and _INT32.unpack_from(buffer, pos) == (there,):
            # Mostly there is nothing else.
            self._waiting = None
            self._pos = len(buffer)
            return Publish(topic, StridedBodies(bytes(buffer[pos:]), _FIELD, there))
        if self._body_size(line, "PUB", "E_BAD_MESSAGE", limit) is None:
            return None
        bodies, self._pos = pub_run(buffer, pos - len(line), line, limit)
        return Publish(topic, bodies)

    def _dpub(self, params: Params, line: bytes) -> Event | None:
        topic, delay_ms = parse_deferred(params, self._limits.max_defer_timeout_ms)
        message = self._message(line, "DPUB")
        return None if message is None else PublishDeferred(topic, delay_ms, ListBodies([message]))

    def _publish_once(self, key: Key, line: bytes, pos: int, after: int) -> Event | None:
        self._pos = after
        params = split_line(line)
        command = params[0].decode()
        if command == "MPUB":
            return self._mpub_line(params, line, key)
        topic, delay_ms = parse_publish(params, self._limits.max_defer_timeout_ms)
        message = self._message(line, command)
        if message is None:
            self._pos = pos
            self._trim_buffer()
            return None
        return PublishOnce(command, topic, key[0], delay_ms, ListBodies([message]), key[1])

    def _mpub_line(self, params: Params, line: bytes, key: Key | None = None) -> Event | None:
        if len(params) < 2:
            raise ProtocolError("E_INVALID", "MPUB insufficient number of parameters")
        # The original's answer names the code twice.
        topic = valid_name(params[1], "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic name")
        scan = MpubScan(self._limits.max_msg_size, self._limits.max_body_size, key)
        try:
            if (event := self._continue_mpub(topic, scan)) is not None:
                return event
        except ProtocolError as error:
            self._failure = error
        self._mpub = (topic, scan)
        self._trim_buffer()
        return PublishManyBegins(topic)

    def _continue_mpub(self, topic: str, scan: MpubScan) -> Event | None:
        bodies = scan.scan(self._buffer, self._pos)
        if bodies is None:
            return None
        self._pos += scan.end
        self._mpub = None
        if scan.key is not None:
            return PublishOnce("MPUB", topic, scan.key[0], 0, bodies, scan.key[1])
        return PublishMany(topic, bodies)


# In place of an event: the command is done and needs none.
_NOTHING: Final = StartClose()

_HANDLERS: Final = {
    b"IDENTIFY": ServerParser._identify,
    b"AUTH": ServerParser._auth,
    b"SUB": ServerParser._sub,
    b"RDY": ServerParser._rdy,
    b"FIN": ServerParser._fin,
    b"REQ": ServerParser._req,
    b"TOUCH": ServerParser._touch,
    b"CLS": ServerParser._cls,
    b"NOP": ServerParser._nop,
    b"PUB": ServerParser._pub,
    b"DPUB": ServerParser._dpub,
    b"MPUB": ServerParser._mpub_line,
}
