"""An extension of griffe: docstrings as Markdown has them.

In ours a code block comes after ``::``, as pydoc's readers know it; Markdown needs the indentation
only.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ALONE = re.compile(r"^ *::\n", re.MULTILINE)
_AT_END = re.compile(r"::$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes each docstring when its object is read."""

    def on_object(self, *, obj: griffe.Object, **_rest: Any) -> None:
        """Take the colons away."""
        if obj.docstring is not None:
            text = _ALONE.sub("", obj.docstring.value)
            obj.docstring.value = _AT_END.sub(":", text)
