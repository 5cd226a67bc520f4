"""The body of MPUB: ``[body size][count]([size][body])*``.

The counted messages end the command; the body size is only checked for its range. A bad length is
an error as soon as it arrives. So the body is walked message by message as its parts arrive, but a
whole body with messages of one size is read at once.

Spec: tcp-protocol, section 12.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from struct import error as StructError

from trionsq.wire.bodies import Bodies, PackedBodies, StridedBodies
from trionsq.wire.errors import ProtocolError

__all__ = ["MpubScan", "parse_counted", "same_size_prefix"]

_INT32 = Struct(">i")
_FIELD = 4
# Offset of the first message: after the body size and the count.
_FIRST = 2 * _FIELD
_NEVER = 2**63
# Messages that one step of `parse_counted` walks: about 2 ms.
_MAX_STEP_MESSAGES = 20_000
# A read of 128 KiB with more messages takes 2 ms.
_LONG = 10_000


def same_size_prefix(buffer: bytes | bytearray, at: int, count: int) -> bool:
    """Tell whether ``count`` records of the same size follow each other from ``at`` on.

    The buffer must hold ``count`` records of the size that the first size field says.
    """
    field = buffer[at : at + _FIELD]
    stride = _FIELD + int.from_bytes(field, "big")
    end = at + stride * count
    return all(
        buffer[at + column : end : stride] == field[column : column + 1] * count
        for column in reversed(range(_FIELD))  # sizes differ in their last bytes first
    )


class MpubScan:
    """A walk through the body of one MPUB. Offsets count from the body size field.

    Attributes:
        need: bytes that `scan` needs before it can go on.
        what: error code and name of the field that it needs.
        end: offset after the last message, once `scan` has returned bodies.
        key: that the command has, and an epoch; None without.
    """

    __slots__ = ("_count", "_ends", "_max_body_size", "_max_msg_size", "_size", "end", "key",
                 "need", "what")  # fmt: skip

    def __init__(
        self, max_msg_size: int, max_body_size: int, key: tuple[bytes, bytes] | None = None
    ) -> None:
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._count = 0
        # Offset of the first message, and the end of each message so far.
        self._ends = [_FIRST]
        self._size = 0
        self.need = _FIELD
        self.what = ("E_BAD_BODY", "body size")
        self.end = 0
        self.key = key

    @property
    def is_long(self) -> bool:
        """Whether very many messages have been walked."""
        return len(self._ends) - 1 > _LONG

    @property
    def if_eof(self) -> ProtocolError:
        """The error to answer if the input ends now."""
        code, what = self.what
        return ProtocolError(code, f"MPUB failed to read {what}")

    def scan(self, buffer: bytes | bytearray, start: int, max_count: int = _NEVER) -> Bodies | None:
        """Return the bodies, or None if more input is needed or ``max_count`` messages were walked.

        In the second case the buffer has `need` bytes already.

        Raises:
            ProtocolError: E_BAD_BODY or E_BAD_MESSAGE, as soon as the fault has arrived.
        """
        there = len(buffer) - start
        if there < self.need:
            return None
        if not self._count and not self._read_header(buffer, start, there):
            return None
        if len(self._ends) == 1 or there >= self._size:
            if there >= self._size:
                self._size = _NEVER  # try once only: the body size may be wrong
            bodies = self._read_at_once(buffer, start, there)
            if bodies is not None:
                return bodies
        return self._walk(buffer, start, there, max_count)

    def _read_header(self, buffer: bytes | bytearray, start: int, there: int) -> bool:
        (body_size,) = _INT32.unpack_from(buffer, start)
        if body_size <= 0:
            raise ProtocolError("E_BAD_BODY", f"MPUB invalid body size {body_size}")
        if body_size > self._max_body_size:
            text = f"MPUB body too big {body_size} > {self._max_body_size}"
            raise ProtocolError("E_BAD_BODY", text)
        self._size = _FIELD + body_size
        self.need = _FIRST
        self.what = ("E_BAD_BODY", "message count")
        if there < self.need:
            return False
        (count,) = _INT32.unpack_from(buffer, start + _FIELD)
        if count <= 0 or count > (self._max_body_size - _FIELD) // (_FIELD + 1):
            raise ProtocolError("E_BAD_BODY", f"MPUB invalid message count {count}")
        self._count = count
        return True

    def _read_at_once(
        self, buffer: bytes | bytearray, start: int, there: int
    ) -> StridedBodies | None:
        if there < _FIRST + _FIELD:
            return None
        (size,) = _INT32.unpack_from(buffer, start + _FIRST)
        if not 0 < size <= self._max_msg_size:
            return None
        stride = _FIELD + size
        whole = min(self._count, (there - _FIRST) // stride)
        if not whole or not same_size_prefix(buffer, start + _FIRST, whole):
            return None
        self.end = _FIRST + whole * stride
        if whole < self._count:
            self._ends = list(range(_FIRST, self.end + 1, stride))
            return None
        records = buffer[start + _FIRST : start + self.end]
        return StridedBodies(bytes(records), _FIELD, size)

    def _walk(
        self, buffer: bytes | bytearray, start: int, there: int, max_count: int
    ) -> PackedBodies | None:
        ends = self._ends
        max_msg_size = self._max_msg_size
        unpack = _INT32.unpack_from
        at = ends[-1]
        try:
            for _ in range(min(max_count, self._count + 1 - len(ends))):
                size: int = unpack(buffer, start + at)[0]
                if size <= 0 or size > max_msg_size:
                    raise self._bad_size(len(ends) - 1, size)
                at += _FIELD + size
                ends.append(at)
        except StructError:
            pass  # the next size field has not arrived
        if at > there:
            self.need = ends.pop()
            self.what = ("E_BAD_MESSAGE", "message body")
            return None
        if len(ends) <= self._count:
            self.need = at + _FIELD
            self.what = ("E_BAD_MESSAGE", f"message({len(ends) - 1}) body size")
            return None
        self.end = at
        return PackedBodies(bytes(buffer[start : start + at]), ends, _FIELD)

    def _bad_size(self, index: int, size: int) -> ProtocolError:
        if size <= 0:
            text = f"MPUB invalid message({index}) body size {size}"
        else:
            text = f"MPUB message too big {size} > {self._max_msg_size}"
        return ProtocolError("E_BAD_MESSAGE", text)


def parse_counted(
    body: bytes, max_msg_size: int, max_body_size: int
) -> Generator[None, None, Bodies]:
    """Read the messages of ``[count]([size][body])*``, the body of HTTP /mpub?binary, in steps.

    Each step is short, however large the body. Bytes after the last message are ignored.

    Raises:
        ProtocolError: E_BAD_BODY or E_BAD_MESSAGE, also for a body that is too short.
    """
    scan = MpubScan(max_msg_size, max_body_size)
    buffer = _INT32.pack(max_body_size) + body
    while (bodies := scan.scan(buffer, 0, _MAX_STEP_MESSAGES)) is None:
        if scan.need > len(buffer):
            raise scan.if_eof
        yield
    return bodies
