"""Publishing each message once: with a key, and again over new connections until nsqd answers.

docs/idempotency.md has what nsqd promises.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, TypeAlias

import anyio

from trionsq.client.connection import Connection
from trionsq.client.errors import ClientError, ConnectError, NotConnectedError, UnknownOutcomeError
from trionsq.transports.runtime import current_time
from trionsq.wire.errors import ProtocolError

__all__ = ["KeyedCommand", "Repeater"]

KeyedCommand: TypeAlias = Callable[[bytes, bytes], bytes]
"""Returns a command with this key, and this epoch of nsqd unless it is empty."""

# Pauses between two attempts.
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Repeater:
    """The publishes of one idempotent producer.

    Attributes:
        unanswered: publishes that were sent, and that nsqd may or may not have stored. As long as
            there are any, the producer stays with its nsqd.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], retry_s: float) -> None:
        """``connect`` returns a connection; ``retry_s``: how long a publish is repeated."""
        self.unanswered = 0
        self._connect = connect
        self._retry_s = retry_s
        self._prefix = secrets.token_hex(8).encode()
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<Repeater unanswered={self.unanswered}>"

    async def publish(self, command: KeyedCommand) -> None:
        """Send a command until nsqd answers; if that is drained, to the next one.

        Raises:
            UnknownOutcomeError: it does not answer, or does not know.
            ProtocolError: nsqd refused it; nothing is stored.
            ConnectError: it was never sent.
            StoppedError: the producer was stopped.
        """
        give_up_s = current_time() + self._retry_s
        while True:
            try:
                return await self._publish(command)
            except ProtocolError as error:
                # The producer stays with this nsqd until that has refused all that it was sent.
                if not error.is_draining or current_time() + _FIRST_PAUSE_S > give_up_s:
                    raise
            await anyio.sleep(_FIRST_PAUSE_S)

    async def _publish(self, command: KeyedCommand) -> None:
        key = b"%b-%d" % (self._prefix, next(self._numbers))
        # The command is made before anything is counted: it may be invalid.
        first = command(key, b"")
        connection = await self._connect()
        self.unanswered += 1
        try:
            await self._repeat(connection, key, first, command)
        finally:
            self.unanswered -= 1

    async def _repeat(
        self, connection: Connection | None, key: bytes, first: bytes, command: KeyedCommand
    ) -> None:
        assert connection is not None
        epoch = _epoch(connection)
        pause_s, give_up_s = _FIRST_PAUSE_S, 0.0
        failure: ClientError
        while True:
            try:
                if connection is None:
                    connection = await self._connect()
                is_same = _epoch(connection) == epoch
                await connection.request(first if is_same else command(key, epoch)).wait()
                return
            except (ConnectError, NotConnectedError) as error:
                failure, connection = error, None
            except ProtocolError as error:
                if error.code == "E_KEY_UNKNOWN":
                    raise UnknownOutcomeError(f"nsqd was started again: {error}") from error
                raise
            now_s = current_time()
            give_up_s = give_up_s or now_s + self._retry_s
            if now_s + pause_s > give_up_s:
                text = f"it may be stored: no answer for {self._retry_s:g} s: {failure}"
                raise UnknownOutcomeError(text) from failure
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _epoch(connection: Connection) -> bytes:
    return str(connection.features.get("idempotency_epoch", "")).encode()
