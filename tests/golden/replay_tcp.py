"""Replays one recorded TCP conversation against any ServerUnderTest."""

from __future__ import annotations

import re

import trio

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

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


async def replay_tcp_case(case: TcpCase, server: ServerUnderTest, cutter: Cutter) -> None:
    """Run every step of ``case``; its connections are closed at the end.

    Raises:
        TranscriptMismatchError: at the first step that went otherwise; the text names it.
    """
    replay = _TcpReplay(server, cutter)
    try:
        for number, step in enumerate(case.steps):
            try:
                await replay.run(step)
            except (TranscriptMismatchError, trio.BrokenResourceError) as error:
                raise TranscriptMismatchError(
                    f"{case.name}, step {number} of {cutter!r}: {step}\n"
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
                await self._peers[step.conn].connection.close()
            case Sleep():
                await trio.sleep(step.duration_ms / 1000)
            case RemoveDataPath():
                await self._server.remove_data_path()

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
                return  # a fatal error was answered before the last piece left
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
