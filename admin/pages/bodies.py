"""Message bodies for people (text, indented JSON, hex), and bodies that people typed. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "FORMATS",
    "VIEWS",
    "BadBodyError",
    "DisplayedBody",
    "body_bytes",
    "display_body",
    "parse_body",
]

VIEWS: Final = (("pretty", "Pretty"), ("raw", "Raw"), ("hex", "Hex"))
FORMATS: Final = (("text", "Text"), ("hex", "Hex"), ("base64", "Base64"))

_MAX_SHOWN: Final = 64 * 1024
_MAX_HEX_BYTES: Final = 4096
_MAX_PRETTY: Final = 256 * 1024
_MAX_INDENTS: Final = 40
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class BadBodyError(ValueError):
    """The typed body is not valid in its format; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class DisplayedBody:
    """``kind`` is ``JSON``, ``text``, ``binary`` or ``empty``; ``cut`` says which part is shown."""

    kind: str
    text: str
    cut: str = ""


def body_bytes(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message from nsqd's /topic/peek; what is no base64 is taken as text."""
    body = message.get("body")
    body = body if isinstance(body, str) else ""
    if message.get("body_encoding") == "base64":
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            pass
    return body.encode(errors="replace")


def display_body(message: Mapping[str, Any], view: str = "pretty") -> DisplayedBody:
    """The body of a message from nsqd's /topic/peek, in one of `VIEWS`.

    A node may answer anything.
    """
    body = message.get("body")
    size = message.get("body_size")
    body = body if isinstance(body, str) else ""
    whole = f"of {size:,} bytes" if isinstance(size, int) else "of a longer body"
    cut = f"these are the first bytes {whole}." if message.get("body_cut") is True else ""
    if message.get("body_encoding") == "base64":
        try:
            raw = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            return DisplayedBody("text", body[:_MAX_SHOWN], "the node did not answer base64.")
        if len(raw) > _MAX_HEX_BYTES:
            cut = f"the first {_MAX_HEX_BYTES:,} bytes {whole}."
        return DisplayedBody("binary", _hex_dump(raw[:_MAX_HEX_BYTES]), cut)
    if not body:
        return DisplayedBody("empty", "(empty)", cut)
    if view == "hex":
        raw = body_bytes(message)
        if len(raw) > _MAX_HEX_BYTES:
            cut = f"the first {_MAX_HEX_BYTES:,} bytes {whole}."
        return DisplayedBody("binary", _hex_dump(raw[:_MAX_HEX_BYTES]), cut)
    kind, text = "text", body
    if view != "raw" and not cut and (pretty := _pretty(body)) is not None:
        kind, text = "JSON", pretty
    if len(text) > _MAX_SHOWN:
        return DisplayedBody(
            kind, text[:_MAX_SHOWN], f"the first {_MAX_SHOWN:,} characters {whole}."
        )
    return DisplayedBody(kind, text, cut)


def parse_body(typed: str, form: str) -> bytes:
    """The bytes of a message that was typed in the format ``form``, one of `FORMATS`.

    Raises:
        BadBodyError: it is not valid in this format.
    """
    if form == "hex":
        digits = "".join(part.removeprefix("0x") for part in typed.lower().split())
        try:
            return bytes.fromhex(digits)
        except ValueError:
            raise BadBodyError("Not valid hex: each byte needs two digits, 0-9 or a-f.") from None
    if form == "base64":
        try:
            return base64.b64decode("".join(typed.split()), validate=True)
        except (binascii.Error, ValueError):
            raise BadBodyError("Not valid base64.") from None
    # Browsers send the lines of a form with CRLF.
    return typed.replace("\r\n", "\n").encode(errors="replace")


def _pretty(text: str) -> str | None:
    """Indented objects and arrays, each value as it was written; None: not JSON."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > _MAX_PRETTY:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    # Dumping again would lose digits of long numbers, and duplicate keys.
    parts, depth, before = list[str](), 0, ""
    for token in _TOKENS.findall(text):
        if token in "}]":
            depth -= 1
        if before and (before in "{[," or token in "}]") and before + token not in ("{}", "[]"):
            parts.append("\n" + "  " * min(depth, _MAX_INDENTS))
        parts.append(": " if token == ":" else token)
        if token in "{[":
            depth += 1
        before = token
    return "".join(parts)


def _hex_dump(raw: bytes) -> str:
    lines = []
    for start in range(0, len(raw), 16):
        part = raw[start : start + 16]
        left, right = part[:8].hex(" "), part[8:].hex(" ")
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {left:<23}  {right:<23}  |{plain}|")
    return "\n".join(lines)
