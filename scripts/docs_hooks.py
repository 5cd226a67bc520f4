"""Hooks of mkdocs: what the pages of docs/ link to in the rest of the checkout.

On a site without the source there is nothing to link to, so such a link becomes its text. Its
target has to exist all the same.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(((?!\w+:|#)[^)#\s]*)(#[^)\s]*)?\)")

log = logging.getLogger("mkdocs.hooks.docs")


def on_page_markdown(markdown: str, *, page: Any, **_rest: Any) -> str:
    """Replace links out of docs/."""
    folder = posixpath.dirname("docs/" + page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/") and not (ROOT / path).is_dir():
            return match[0]
        if not (ROOT / path).exists():
            log.warning("%s: the link to %s leads nowhere", page.file.src_uri, target)
        return text

    return _LINK.sub(replace, markdown)
