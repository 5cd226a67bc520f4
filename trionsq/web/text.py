"""The bytes of answers: JSON as nsqd writes it, and the reason phrases of HTTP.

Spec: nsqd-http, section 1.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus

import msgspec

__all__ = ["json_bytes", "reason"]

# These can be part of a string only; nsqd writes them so that JSON may stand inside HTML.
_ESCAPED = tuple((each.encode(), f"\\u{ord(each):04x}".encode()) for each in "<>&\u2028\u2029")
_SURROGATES = re.compile("[\ud800-\udfff]")
_REASONS = {int(status): status.phrase.encode() for status in HTTPStatus}


def json_bytes(value: object) -> bytes:
    """``value`` as compact JSON, keys in the order that they have."""
    try:
        document = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # Lone surrogates, which no UTF-8 has.
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        document = _SURROGATES.sub("\ufffd", text).encode()
    for raw, escaped in _ESCAPED:
        if raw in document:
            document = document.replace(raw, escaped)
    return document


def reason(status: int) -> bytes:
    """What follows a status in its line: ``Not Found``."""
    return _REASONS.get(status, b"")
