"""Texts of others for a reader: errors of nodes, and characters that can't be seen. Pure."""

from __future__ import annotations

import json
import re
from typing import Final

from admin.upstream import NodeWarning

__all__ = ["plain_error", "plural", "visible"]

# Control characters but for tab and newline; marks that reorder or hide text; tags; halves of
# pairs. ZWJ and ZWNJ stay: scripts and emojis need them.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_REQUEST: Final = re.compile(
    r'\b(?:Get|Post|Put|Delete|Head) "?https?://([^/"\s]+)[^"\s]*?"?: (?:\1: )?'
)
_RESPONSE: Final = re.compile(r'got response (\d{3})(?: [A-Za-z -]+?)?(?: ("(?:[^"\\]|\\.)*"))?$')
_NOBODY: Final = re.compile(r"^failed to query any (\w+): ")
_DOUBT: Final = " - it is not known whether the node did it"
_CODES: Final = {
    "TOPIC_NOT_FOUND": "it has no such topic",
    "CHANNEL_NOT_FOUND": "it has no such channel",
    "FORBIDDEN": "it does not allow nsqadmin to do this",
    "UNAUTHORIZED": "it requires a token (--http-client-token-file)",
    "EXITING": "it is stopping",
}


def visible(text: str) -> str:
    r"""``text`` with characters that can't be seen, or reorder others, as ``\u202e``."""
    return text if text.isprintable() else _UNSEEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain_error(text: str) -> str:
    """An error of NSQ 1.3's wording as a person says it; other texts as they are."""
    node = text.node if isinstance(text, NodeWarning) else ""
    doubt = _DOUBT in text
    plain = _NOBODY.sub(r"No \1 answered. ", text.replace(_DOUBT, ""))
    plain = "\n".join(_plain_line(line) for line in plain.split("\n"))
    if node and not plain.startswith(node):
        plain = f"{node}: {plain}"
    return f"{plain}. It is not known whether the node did it." if doubt else plain


def _plain_line(line: str) -> str:
    return _RESPONSE.sub(_plain_response, _REQUEST.sub(r"\1: ", line))


def _plain_response(match: re.Match[str]) -> str:
    said = ""
    try:
        said = json.loads(match[2] or '""')
        said = json.loads(said)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass  # not an error of NSQ: its text says it
    said = str(said).strip()[:200]
    return _CODES.get(said) or (f"{said} ({match[1]})" if said else f"status {match[1]}")


def plural(count: float | None, noun: str, many: str = "") -> str:
    """``1 topic``, ``1,234 topics``; ``many`` is the plural if it takes more than an s."""
    if count is None:
        return f"\N{EN DASH} {many or noun + 's'}"
    return f"{round(count):,} {noun if count == 1 else many or noun + 's'}"
