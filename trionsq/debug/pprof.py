"""A profile in the form of ``go tool pprof``: a gzipped protocol buffer.

The messages and the numbers of their fields are those of its ``profile.proto``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from types import CodeType

from trionsq.debug.profile import Line, Profile

__all__ = ["pprof_bytes"]

_BYTES_FIELD = 2


def pprof_bytes(profile: Profile) -> bytes:
    """Samples and processor nanoseconds by stack, gzipped."""
    return gzip.compress(_Message(profile).encode(), mtime=0)


class _Message:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        # Numbers of strings begin at 0, which is the empty one; the others begin at 1.
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[CodeType, int] = {}
        self._locations: dict[Line, int] = {}

    def encode(self) -> bytes:
        profile = self._profile
        interval_ns = round(profile.interval_s * 1e9)
        cpu_type = self._value_type("cpu", "nanoseconds")
        parts = [
            _message(1, self._value_type("samples", "count")),
            _message(1, cpu_type),
        ]
        for thread, stack, count in profile.counted():
            label = _number(1, self._string("thread")) + _number(2, self._string(thread.name))
            sample = _numbers(1, [self._location(line) for line in stack])
            sample += _numbers(2, [count, count * interval_ns]) + _message(3, label)
            parts.append(_message(2, sample))
        # Each kind adds strings, and locations add functions.
        parts += [
            _message(4, _number(1, number) + _message(4, self._line(line)))
            for line, number in self._locations.items()
        ]
        parts += [_message(5, self._function(code, n)) for code, n in self._functions.items()]
        parts += [_message(6, text.encode(errors="replace")) for text in self._strings]
        parts += [
            _number(9, profile.began_ns),
            _number(10, round(profile.seconds * 1e9)),
            _message(11, cpu_type),
            _number(12, interval_ns),
        ]
        return b"".join(parts)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, line: Line) -> int:
        return self._locations.setdefault(line, len(self._locations) + 1)

    def _value_type(self, kind: str, unit: str) -> bytes:
        return _number(1, self._string(kind)) + _number(2, self._string(unit))

    def _line(self, line: Line) -> bytes:
        code, number = line
        function = self._functions.setdefault(code, len(self._functions) + 1)
        return _number(1, function) + _number(2, number)

    def _function(self, code: CodeType, number: int) -> bytes:
        name = self._string(code.co_qualname)
        return b"".join(
            [
                _number(1, number),
                _number(2, name),
                _number(3, name),
                _number(4, self._string(code.co_filename)),
                _number(5, code.co_firstlineno),
            ]
        )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES_FIELD) + _varint(len(content)) + content


def _numbers(field: int, numbers: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, numbers)))
