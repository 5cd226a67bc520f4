"""What a search means: words that must occur, ``-words`` that must not, ``/regular expressions/``.

Expressions are RE2's, whose time is linear in the text: a viewer's search can't hang the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import re2

__all__ = ["BadSearchError", "make_matcher"]

_MAX_TERMS: Final = 20
_MAX_BYTES: Final = 1024 * 1024


class BadSearchError(ValueError):
    """An expression is not valid; ``str()`` says which, and why."""


def make_matcher(q: str) -> Callable[[str], bool]:
    """A function that says whether a text has all terms of ``q``, in any case.

    Raises:
        BadSearchError: a term between slashes is no regular expression.
    """
    terms = [_make_term(term) for term in q.split()[:_MAX_TERMS]]

    def matches(text: str) -> bool:
        lowered = text.lower()
        return all(term(lowered) is wanted for term, wanted in terms)

    return matches


def _make_term(term: str) -> tuple[Callable[[str], bool], bool]:
    wanted = len(term) == 1 or not term.startswith("-")
    term = term if wanted else term[1:]
    if len(term) < 3 or not (term.startswith("/") and term.endswith("/")):
        word = term.lower()
        return lambda text: word in text, wanted
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    options.max_mem = _MAX_BYTES
    try:
        expression = re2.compile(term[1:-1], options)
    except re2.error as error:
        reason = error.args[0] if error.args else "invalid"
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise BadSearchError(f"{term} is not a regular expression: {reason}") from None
    return lambda text: expression.search(text) is not None, wanted
