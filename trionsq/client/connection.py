"""A connection to nsqd, and its three tasks: one reads, one writes, one watches for silence.

`Connection.open` connects and performs the `Handshake`; `run` then works until the connection ends.
`put` and `request` write without waiting: all commands of one turn of the event loop leave in one
system call, so that a batch of FINs costs one.

Spec: client, section 1; tcp-protocol, sections 2, 4, 8 and 14.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

import anyio
from anyio.abc import TaskStatus

from trionsq.client.config import Config
from trionsq.client.errors import ClientError, ConnectError, NotConnectedError
from trionsq.client.handshake import DEFAULT_MAX_RDY, Dial, Handshake, dial_tcp
from trionsq.client.reply import Reply
from trionsq.hostport import parse_address
from trionsq.transports.runtime import Event, Token, checkpoint, current_time, new_event
from trionsq.transports.transport import BaseSocketTransport, Transport
from trionsq.wire import commands
from trionsq.wire.client import (
    MAX_FRAME_BYTES,
    ColumnDecoder,
    Columns,
    ErrorFrame,
    Frame,
    FrameError,
    MessageFrame,
)
from trionsq.wire.errors import ProtocolError
from trionsq.wire.frames import MESSAGE_META_BYTES

__all__ = ["Connection"]

log = logging.getLogger("trionsq.client")

_READ_BYTES: Final = 128 * 1024
# Bytes that the socket has not yet taken: above the first limit, `room` waits; above the second,
# the connection is given up.
_ROOM_BYTES: Final = 1024 * 1024
_MAX_PENDING_BYTES: Final = 256 * 1024 * 1024
# Requests without an answer; an nsqd that gives none must not fill the memory.
_MAX_REPLIES: Final = 65_536
# In one turn of the event loop: bytes that are joined (and encrypted) for the socket, beyond the
# first command; frames that are handled one by one (an error frame is a line of the log).
_MAX_WRITE_BYTES: Final = 1024 * 1024
_MAX_FRAMES_A_TURN: Final = 128
# How long to read on when the connection seems broken: nsqd may have said why.
_LAST_WORDS_S: Final = 0.1


class Connection:
    """One connection, connected and identified. Made by `open`.

    Attributes:
        address: ``host:port``.
        features: nsqd's answer to IDENTIFY; empty without feature negotiation.
        tls: version, cipher and nsqd's name; None without TLS.
        on_messages: called with the messages of each read, in the reading task.
        on_refused: called with errors that leave the connection open (FIN, REQ, TOUCH).
        is_open: whether commands can still reach nsqd.
        failure: why the connection ended; None while it is open and after `end`.
        ended: set when `run` has ended.
    """

    def __init__(self, handshake: Handshake, config: Config, decoder: ColumnDecoder) -> None:
        """``handshake`` has succeeded; ``decoder`` is the one that it used."""
        self.address = handshake.address
        self.features = handshake.features
        self.tls = handshake.tls
        self.on_messages: Callable[[Columns], None] = _no_messages
        self.on_refused: Callable[[ErrorFrame], None] = self._log_refused
        self.is_open = True
        self.failure: Exception | None = None
        self.ended = new_event()
        self._transport = handshake.transport
        self._config = config
        self._decoder = decoder
        self._out: deque[bytes] = deque()
        self._pending_bytes = 0
        # Set when there is something to write.
        self._wake = Token()
        # Made by the first task that waits for room.
        self._room: Event | None = None
        self._replies: deque[Reply[bytes]] = deque()
        self._last_read_s = 0.0
        self._is_ending = False
        self._scope = anyio.CancelScope()

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed ({self.failure})"
        return f"<Connection {self.address} {state} waiting={len(self._replies)}>"

    @classmethod
    async def open(
        cls, address: str, config: Config, dial: Dial = dial_tcp, *, idempotent: bool = False
    ) -> Connection:
        """Connect to ``host:port`` and perform the handshake. Cancelling closes the socket.

        Raises:
            ConnectError: not reachable in time, or not an nsqd; `IdentifyError`, `UpgradeError`,
                `AuthError` if one of these steps failed.
            ValueError: not an address.
        """
        host, port = parse_address(address)
        transport: Transport | None = None
        with anyio.move_on_after(config.dial_timeout_s):
            try:
                transport = await dial(host, port, config.local_addr)
            except OSError as error:
                raise ConnectError(f"{address}: {error}") from error
        if transport is None:
            raise ConnectError(f"{address}: not connected within {config.dial_timeout_s:g} s")
        if config.tcp_user_timeout_s and isinstance(transport, BaseSocketTransport):
            transport.set_user_timeout(config.tcp_user_timeout_s)
        max_frame_bytes = MAX_FRAME_BYTES
        if config.max_msg_size:
            max_frame_bytes = config.max_msg_size + MESSAGE_META_BYTES + 4
        decoder = ColumnDecoder(max_frame_bytes)
        handshake = Handshake(address, transport, config, decoder, idempotent=idempotent)
        try:
            await handshake.run()
        except BaseException:
            transport.close()
            raise
        return cls(handshake, config, decoder)

    @property
    def max_rdy_count(self) -> int:
        """The largest RDY that nsqd accepts."""
        return int(self.features.get("max_rdy_count", DEFAULT_MAX_RDY))

    # Writing

    def put(self, data: bytes) -> None:
        """Send commands without an answer, once this task yields; none on a closed connection."""
        if not self.is_open:
            return
        self._out.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _MAX_PENDING_BYTES:
            self._fail(NotConnectedError(f"{self.address}: nsqd does not read what is sent"))
        self._wake.set()

    def request(self, data: bytes) -> Reply[bytes]:
        """Send a command that has an answer. Answers come in the order of requests.

        The reply raises ProtocolError if nsqd refuses the command, NotConnectedError if the
        connection ends first.
        """
        reply = Reply[bytes]()
        if self.is_open:
            self._replies.append(reply)
            self.put(data)
        else:
            reply.set_error(self._lost())
        return reply

    @property
    def has_room(self) -> bool:
        """Whether the connection is open and takes another request: see `room`."""
        is_full = self._pending_bytes > _ROOM_BYTES or len(self._replies) >= _MAX_REPLIES
        return self.is_open and not is_full

    async def room(self) -> None:
        """Wait for room: at most 1 MiB unsent and 65,536 answers missing. No wait if so."""
        while self.is_open and not self.has_room:
            if self._room is None:
                self._room = new_event()
            await self._room.wait()

    def _release_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    # Its tasks

    async def run(self, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read and write until the connection ends; then all open requests fail.

        Returns without an exception; see `failure`. Cancelling closes the connection at once.
        """
        self._last_read_s = current_time()
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                tasks.start_soon(self._write)
                tasks.start_soon(self._watch_silence)
                task_status.started()
                await self._read()
        finally:
            self.abort()
            self._transport.close()
            self.ended.set()

    def discard(self) -> None:
        """Close a connection that was never run."""
        self.is_open = False
        self._transport.close()

    def abort(self) -> None:
        """Close at once: unsent commands are lost, open requests fail."""
        self.is_open = False
        self._scope.cancel()
        self._out.clear()
        self._pending_bytes = 0
        self._release_room()
        while self._replies:
            self._replies.popleft().set_error(self._lost())

    def end(self) -> None:
        """Begin the orderly end: send what was put, then read until nsqd closes. See `ended`."""
        self._is_ending = True
        self.is_open = False
        self._wake.set()

    def _lost(self) -> NotConnectedError:
        if isinstance(self.failure, NotConnectedError):
            return NotConnectedError(*self.failure.args)
        return NotConnectedError(f"{self.address}: {self.failure or 'not connected'}")

    def _fail(self, error: Exception) -> None:
        if self.failure is None and not self._is_ending:
            self.failure = error
        self.abort()

    async def _write(self) -> None:
        while True:
            if self._out:
                data = self._pop_data()
                try:
                    await self._send(data)
                except OSError as error:
                    # If nsqd sent an error before it closed, that error says more.
                    self.is_open = False
                    await anyio.sleep(_LAST_WORDS_S)
                    self._fail(error)
                    return
                self._pending_bytes -= len(data)
                self._release_room()
            elif self._is_ending:
                self._transport.end_sending()
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _pop_data(self) -> bytes:
        """Remove the first command, and as many more as one write may have."""
        out = self._out
        if self._pending_bytes <= _MAX_WRITE_BYTES:
            data = b"".join(out)
            out.clear()
            return data
        count = len(out[0])
        parts = [out.popleft()]
        while out and (count := count + len(out[0])) <= _MAX_WRITE_BYTES:
            parts.append(out.popleft())
        return b"".join(parts)

    async def _send(self, data: bytes) -> None:
        sent = self._transport.send_nowait(data)
        if sent == len(data):
            return
        view = memoryview(data)[sent:]
        while view:
            with anyio.move_on_after(self._config.write_timeout_s) as timeout:
                await self._transport.wait_writable()
            if timeout.cancelled_caught:
                raise TimeoutError(f"nsqd read nothing for {self._config.write_timeout_s:g} s")
            view = view[self._transport.send_nowait(view) :]

    async def _read(self) -> None:
        transport, decoder = self._transport, self._decoder
        data: bytes | None = b""
        try:
            # Frames may have arrived together with the last answer of the handshake.
            for frame in decoder:
                self._handle_frame(frame)
            while True:
                # A short read has emptied the socket.
                if data is None or len(data) < _READ_BYTES:
                    await transport.wait_readable()
                else:
                    await checkpoint()
                data = transport.receive_nowait(_READ_BYTES)
                if data is None:
                    continue
                if not data:
                    self._fail(NotConnectedError(f"{self.address}: closed by nsqd"))
                    return
                self._last_read_s = current_time()
                decoder.feed(data)
                columns = decoder.pop_columns()
                if columns.ids:
                    self.on_messages(columns)
                for number, frame in enumerate(decoder, 1):
                    self._handle_frame(frame)
                    if number % _MAX_FRAMES_A_TURN == 0:
                        await checkpoint()
        except (OSError, FrameError) as error:
            self._fail(error)

    def _handle_frame(self, frame: Frame) -> None:
        if isinstance(frame, ErrorFrame):
            self._handle_error(frame)
        elif not isinstance(frame, MessageFrame):
            if frame.is_heartbeat:
                self.put(commands.nop())
            elif self._replies:
                self._replies.popleft().set_value(frame.data)
                self._release_room()
            else:
                raise FrameError(f"an answer without a request: {frame.data[:64]!r}")

    def _handle_error(self, frame: ErrorFrame) -> None:
        if not frame.fatal:
            self.on_refused(frame)
            return
        error = ProtocolError(frame.code, frame.text, frame.fatal)
        if self._replies:
            self._replies.popleft().set_error(error)
        if error.is_draining:
            self.end()  # each publish that was sent has an answer of its own
        else:
            self._fail(error)

    def _log_refused(self, frame: ErrorFrame) -> None:
        log.warning("%s: %s", self.address, frame.as_error())

    async def _watch_silence(self) -> NoReturn:
        """End the connection when nsqd has sent nothing for read_timeout."""
        timeout_s = self._config.read_timeout_s
        while True:
            last_s = self._last_read_s
            await anyio.sleep_until(last_s + timeout_s)
            if self._last_read_s == last_s:
                # Perhaps this program was stopped: let it first read what has arrived.
                await anyio.sleep(_LAST_WORDS_S)
            if self._last_read_s == last_s:
                self._fail(NotConnectedError(f"{self.address}: silent for {timeout_s:g} s"))


def _no_messages(_columns: Columns) -> None:
    raise ClientError("nsqd sent messages before SUB")
