"""Commands of a client that asked for idempotent publishes: PUB, MPUB and DPUB may have a key.

The key is one parameter more. Behind it may stand the epoch of nsqd, as IDENTIFY told it, when the
publish was sent first. Other clients' parsers know nothing of this.
"""

from __future__ import annotations

from typing import Final

from trionsq.wire.bodies import ListBodies
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import Event, PublishDeferred, PublishMany, PublishOnce
from trionsq.wire.lines import Params, split_line, valid_name
from trionsq.wire.mpub import MpubScan
from trionsq.wire.names import is_valid_key, quote
from trionsq.wire.server import ServerParser

__all__ = ["accept_keys"]

# Commands, and the number of their parameters without a key.
_PARAMETERS: Final = {b"PUB": 1, b"MPUB": 1, b"DPUB": 2}
# A key and an epoch.
Key = tuple[bytes, bytes]


def accept_keys(parser: ServerParser, accept: bool) -> None:
    """Have a parser take commands with a key from now on, or no longer."""
    # So it costs those who did not ask nothing.
    parser.__class__ = _KeyedParser if accept else ServerParser


class _KeyedParser(ServerParser):
    __slots__ = ()

    def _command(self, buffer: bytes | bytearray, pos: int, after: int) -> Event | None:
        params = split_line(bytes(buffer[pos:after]))
        count = _PARAMETERS.get(params[0])
        if count is None or len(params) < count + 2 or self.tls_required:
            return super()._command(buffer, pos, after)
        self.commands += 1
        line = bytes(buffer[pos:after])
        self._pos = after
        command = params[0].decode()
        if len(params) > count + 3:
            raise ProtocolError("E_INVALID", f"{command} invalid number of parameters")
        key, epoch = params[count + 1], b"".join(params[count + 2 :])
        for text in (key, epoch or key):
            if not is_valid_key(text):
                shown = quote(text)
                raise ProtocolError("E_BAD_KEY", b"%b key %b is not valid" % (params[0], shown))
        event = _HANDLERS[command](self, params, line, (key, epoch))
        if self._waiting is not None:
            self._pos = pos
            self._trim_buffer()
        return event

    def _pub_once(self, params: Params, line: bytes, key: Key) -> Event | None:
        topic = valid_name(params[1], "E_BAD_TOPIC", "PUB topic name")
        message = self._message(line, "PUB")
        if message is None:
            return None
        return PublishOnce("PUB", topic, key[0], 0, ListBodies([message]), key[1])

    def _dpub_once(self, params: Params, line: bytes, key: Key) -> Event | None:
        event = self._dpub(params, line)
        if not isinstance(event, PublishDeferred):
            return event
        return PublishOnce("DPUB", event.topic, key[0], event.delay_ms, event.bodies, key[1])

    def _mpub_once(self, params: Params, line: bytes, key: Key) -> Event | None:
        event = self._mpub_line(params, line)
        if self._mpub is not None:
            self._mpub[1].key = key
        return _with_key(event, key)

    def _continue_mpub(self, topic: str, scan: MpubScan) -> Event | None:
        event = super()._continue_mpub(topic, scan)
        return event if scan.key is None else _with_key(event, scan.key)


def _with_key(event: Event | None, key: Key) -> Event | None:
    if not isinstance(event, PublishMany):
        return event
    return PublishOnce("MPUB", event.topic, key[0], 0, event.bodies, key[1])


_HANDLERS: Final = {
    "PUB": _KeyedParser._pub_once,
    "MPUB": _KeyedParser._mpub_once,
    "DPUB": _KeyedParser._dpub_once,
}
