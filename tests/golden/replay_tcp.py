"""Replays one recorded TCP conversation against any ServerUnderTest."""

from __future__ import annotations

import re
from typing import Final

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.golden.cutting import Cutter
from tests.golden.interfaces import ServerUnderTest
from tests.golden.peer import EXPECT_LIMIT_S, Peer, TranscriptMismatchError
from tests.golden.transcripts import (
    Close,
    Expect,
    ExpectClose,
    ExpectNone,
    HttpStatus,
    RemoveDataPath,
    Send,
    SendFill,
    ShutdownWrite,
    Sleep,
    TcpCase,
    TcpStep,
    Upgrade,
    latin1,
)

LAST_COMMAND: Final = b"END_OF_CASE\n"
"""Sent where a case leaves a connection open. Servers answer it in order, in any state."""
_LAST_ERROR: Final = b"E_INVALID invalid command END_OF_CASE"
LAST_ANSWERS: Final = (
    (4 + len(_LAST_ERROR)).to_bytes(4) + (1).to_bytes(4) + _LAST_ERROR,
    len(_LAST_ERROR).to_bytes(4) + _LAST_ERROR,
)
"""Of nsqd and of nsqlookupd, whose frames have no type. Both close after it."""

HEARTBEAT: Final = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"
_HEARTBEAT_INTERVAL = re.compile(r'"heartbeat_interval":\s*(-?\d+)')
_DEFAULT_HEARTBEAT_S: Final = 30.0

_ERRORS_THAT_LEAVE_OPEN: Final = tuple(
    f"error E_{command}_FAILED" for command in ("FIN", "REQ", "TOUCH")
)

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


async def replay_tcp_case(case: TcpCase, server: ServerUnderTest, cutter: Cutter) -> None:
    """Run every step of ``case``, and check that nothing more comes on any connection; those that
    are open are closed at the end.

    Raises:
        TranscriptMismatchError: at the first step that went otherwise; the text names it.
    """
    replay = _TcpReplay(server, cutter)
    place = ""
    try:
        for number, step in enumerate(case.steps):
            place = f"step {number} of {cutter!r}: {step}"
            await replay.run(step)
        place = f"after the last step of {cutter!r}"
        await replay.check_ends(case)
    except (TranscriptMismatchError, trio.BrokenResourceError) as error:
        raise TranscriptMismatchError(
            f"{case.name}, {place}\n"
            f"{type(error).__name__}: {error}\n"
            f"--- the end of nsqd's log\n{server.log_tail()}"
        ) from error
    finally:
        with trio.CancelScope(shield=True):
            await replay.close_all()


class _TcpReplay:
    """The state of one replay: connections by name and captured bytes by name."""

    def __init__(self, server: ServerUnderTest, cutter: Cutter) -> None:
        self._server = server
        self._cutter = cutter
        self._peers: dict[str, Peer] = {}
        self._captured: dict[str, bytes] = {}

    async def run(self, step: TcpStep) -> None:
        match step:
            case Send():
                await self._send(step)
            case SendFill():
                await self._send_fill(step)
            case Expect():
                await self._expect(step)
            case ExpectClose():
                await self._expect_close(step)
            case ExpectNone():
                await self._expect_none(step)
            case Upgrade():
                peer = await self._peer(step.conn)
                with trio.fail_after(EXPECT_LIMIT_S):
                    await peer.upgrade(step.layer)
            case HttpStatus():
                await self._http(step)
            case ShutdownWrite():
                await (await self._peer(step.conn)).connection.shutdown_write()
            case Close():
                await self._peers.pop(step.conn).connection.close()
            case Sleep():
                await trio.sleep(step.duration_ms / 1000)
            case RemoveDataPath():
                await self._server.remove_data_path()

    async def check_ends(self, case: TcpCase) -> None:
        """Check that each connection is closed if the case says so, and otherwise open and silent.

        Silence is proved without waiting: the next frame answers `LAST_COMMAND`.
        """
        if isinstance(trio.lowlevel.current_clock(), MockClock):
            await wait_all_tasks_blocked()
        last = case.steps[-1]
        for conn, peer in self._peers.items():
            was_silent = isinstance(last, ExpectNone) and last.conn == conn
            if peer.close_was_expected or was_silent:
                continue
            if _ends_with_fatal_error(conn, case):
                await self._expect_close(ExpectClose(conn, discard=False))
            else:
                await self._check_silence(conn, peer, case)

    async def _check_silence(self, conn: str, peer: Peer, case: TcpCase) -> None:
        await peer.connection.send_all(LAST_COMMAND)
        heartbeats_left = _heartbeats_due(conn, peer, case)
        with trio.move_on_after(EXPECT_LIMIT_S):
            while (frame := await peer.read_frame()) == HEARTBEAT and heartbeats_left:
                heartbeats_left -= 1
            if frame not in LAST_ANSWERS:
                raise TranscriptMismatchError(f"connection {conn}: unexpected last {frame!r}")
            if await peer.read_more():
                raise TranscriptMismatchError(
                    f"connection {conn}: {bytes(peer.received)!r} after the last answer"
                )
            return
        raise TranscriptMismatchError(f"connection {conn}: the last command has no answer")

    async def close_all(self) -> None:
        for peer in self._peers.values():
            await peer.connection.close()

    async def _peer(self, conn: str) -> Peer:
        if conn not in self._peers:
            self._peers[conn] = Peer(await self._server.open_tcp())
        return self._peers[conn]

    async def _send(self, step: Send) -> None:
        peer = await self._peer(step.conn)
        pieces = self._cutter.pieces(self._filled(step.template))
        for number, piece in enumerate(pieces):
            try:
                await peer.connection.send_all(piece)
            except trio.BrokenResourceError:
                if number == 0:
                    raise
                # A fatal error was answered before the last piece left. If no close is recorded,
                # the next send fails, and after the last step `check_ends` does.
                return
            if len(pieces) > 1:
                await trio.lowlevel.checkpoint()

    async def _send_fill(self, step: SendFill) -> None:
        peer = await self._peer(step.conn)
        try:
            await peer.connection.send_all(step.byte * step.count)
        except trio.BrokenResourceError:
            return

    async def _expect(self, step: Expect) -> None:
        peer = await self._peer(step.conn)
        with trio.move_on_after(EXPECT_LIMIT_S) as scope:
            frame = await peer.read_frame()
        if scope.cancelled_caught:
            raise TranscriptMismatchError(
                f"no frame in {EXPECT_LIMIT_S} s, received {bytes(peer.received)!r}"
            )
        pattern = _PLACEHOLDER.sub(lambda name: self._captured[name[1]].hex(), step.pattern)
        match = re.fullmatch(pattern, frame.hex())
        if match is None:
            raise TranscriptMismatchError(f"got {frame!r}\nhex {frame.hex()}\nnot {pattern}")
        for name, digits in match.groupdict().items():
            self._captured[name] = bytes.fromhex(digits)

    async def _expect_close(self, step: ExpectClose) -> None:
        peer = await self._peer(step.conn)
        with trio.move_on_after(EXPECT_LIMIT_S):
            while await peer.read_more():
                if not step.discard:
                    break
        if peer.received and not step.discard:
            raise TranscriptMismatchError(f"data before the close: {bytes(peer.received)!r}")
        if not peer.ended:
            raise TranscriptMismatchError(f"still open after {EXPECT_LIMIT_S} s")
        peer.close_was_expected = True

    async def _expect_none(self, step: ExpectNone) -> None:
        peer = await self._peer(step.conn)
        if not peer.received:
            with trio.move_on_after(step.duration_ms / 1000):
                await peer.read_more()
        if peer.received:
            raise TranscriptMismatchError(f"not silent: {bytes(peer.received)!r}")
        if peer.ended:
            raise TranscriptMismatchError("closed where silence was expected")

    async def _http(self, step: HttpStatus) -> None:
        with trio.fail_after(EXPECT_LIMIT_S):
            answer = await self._server.http(step.request)
        if answer.status != step.status:
            raise TranscriptMismatchError(f"status {answer.status}: {answer.body!r}")

    def _filled(self, template: str) -> bytes:
        parts = _PLACEHOLDER.split(template)
        return b"".join(
            self._captured[part] if number % 2 else latin1(part)
            for number, part in enumerate(parts)
        )


def _ends_with_fatal_error(conn: str, case: TcpCase) -> bool:
    """Whether the last recorded frame of the connection is an error that closes it."""
    last = [step for step in case.steps if isinstance(step, Expect) and step.conn == conn][-1:]
    return any(
        step.text.startswith("error ") and not step.text.startswith(_ERRORS_THAT_LEAVE_OPEN)
        for step in last
    )


def _heartbeats_due(conn: str, peer: Peer, case: TcpCase) -> int:
    """The most heartbeats that may have come since the connection was opened."""
    interval_s = _DEFAULT_HEARTBEAT_S
    for step in case.steps:
        if isinstance(step, Send) and step.conn == conn:
            for value in _HEARTBEAT_INTERVAL.findall(step.template):
                interval_s = int(value) / 1000 or _DEFAULT_HEARTBEAT_S
    if interval_s < 0:
        return 0
    return int((trio.current_time() - peer.opened_at) / interval_s)
