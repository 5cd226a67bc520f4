"""What a log line or a status page may show of foreign text, and of an error in a group."""

from __future__ import annotations

from typing import Final

__all__ = ["first_error", "printable"]

_MAX_CHARS: Final = 200


def printable(text: str, max_chars: int = _MAX_CHARS) -> str:
    r"""``text`` on one line: what a peer sent must neither fill the log nor forge lines in it.

    Text with an unprintable character (a line break, a terminal's escape sequence, half a
    surrogate) is written in ASCII with Python's escapes, as ``a\nb``. The result has at most
    ``max_chars`` characters, and then ``...`` if some were left out.
    """
    shown = text[: max_chars + 1]
    if not shown.isprintable():
        shown = shown.encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}..."


def first_error(error: BaseException) -> BaseException:
    """The first error of nested exception groups; ``error`` itself if it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
