"""Names of topics and channels, keys of publishes, reasons: what is valid; how errors quote names.

Spec: tcp-protocol, section 6 (names).
"""

from __future__ import annotations

import re

__all__ = [
    "EPHEMERAL_SUFFIX",
    "MAX_NAME_BYTES",
    "MAX_REASON",
    "is_ephemeral",
    "is_valid_key",
    "is_valid_name",
    "is_valid_reason",
    "quote",
]

EPHEMERAL_SUFFIX = "#ephemeral"
MAX_NAME_BYTES = 64
"""Includes the suffix of an ephemeral name."""

MAX_REASON = 200
"""Characters of the reason of a dead letter."""

# Used with fullmatch only: `$` would let a trailing newline pass.
_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?")
_KEY = re.compile(rb"[!#-\[\]-~]{1,64}")

_ESCAPES = {
    '"': b'\\"',
    "\\": b"\\\\",
    "\a": b"\\a",
    "\b": b"\\b",
    "\f": b"\\f",
    "\n": b"\\n",
    "\r": b"\\r",
    "\t": b"\\t",
    "\v": b"\\v",
}


def is_valid_name(name: bytes) -> bool:
    """Tell whether `name`, as it came over the wire, may name a topic or a channel.

    Spec: tcp-protocol, section 6. Both kinds of name obey one rule.
    """
    return len(name) <= MAX_NAME_BYTES and _NAME.fullmatch(name) is not None


def is_valid_key(key: bytes) -> bool:
    """Tell whether `key` may be the key of an idempotent publish.

    It has 1 to 64 visible characters of ASCII, without quotes and backslashes.
    """
    return _KEY.fullmatch(key) is not None


def is_valid_reason(reason: str) -> bool:
    """Tell whether `reason` may be that of a dead letter: 1 to 200 printable characters."""
    return 0 < len(reason) <= MAX_REASON and reason.isprintable()


def is_ephemeral(name: str) -> bool:
    """Tell whether a valid name asks for a topic or channel that is never kept on disk."""
    return name.endswith(EPHEMERAL_SUFFIX)


def quote(name: bytes) -> bytes:
    """Return `name` in double quotes, escaped like Go's ``%q``, for the text of an error.

    Printable characters stay as UTF-8; bytes that are not UTF-8 become ``\\xe9`` and the like.
    Spec: tcp-protocol, section 6 (last item).
    """
    # With surrogateescape each byte that is not UTF-8 is a character of its own.
    characters = name.decode("utf-8", "surrogateescape")
    return b'"%b"' % b"".join(map(_escape, characters))


def _escape(character: str) -> bytes:
    if escaped := _ESCAPES.get(character):
        return escaped
    if character.isprintable():
        return character.encode()
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return b"\\x%02x" % (code - 0xDC00)
    if code < 0x20 or code == 0x7F:
        return b"\\x%02x" % code
    return b"\\u%04x" % code if code < 0x10000 else b"\\U%08x" % code
