"""File names: from the flags' formats to paths. Pure functions, but for the host's name as default.

Spec: tools, nsq_to_file (datetime-format, filename-format, host-identifier).
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Final

__all__ = ["DATETIME", "REV", "MissingRevisionError", "format_datetime", "host_identifier"]
__all__ += ["leftover_pattern", "name_format", "path_of", "with_revision"]

DATETIME: Final = "<DATETIME>"
REV: Final = "<REV>"
PID: Final = "<PID>"

_DIRECTIVES: Final = re.compile(r"%([BbmAadHIMSYypZz%])")
_DIGITS: Final = "mdHIMSYy"


class MissingRevisionError(ValueError):
    """Files may need one revision after another, but the format has no place for it."""


def format_datetime(text: str, now: datetime) -> str:
    """The format's text at that time; what is no directive of ours stands for itself."""

    def replace(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        # Four digits of a year on every platform.
        return f"{now.year:04d}" if found[1] == "Y" else now.strftime(found[0])

    return _DIRECTIVES.sub(replace, text)


def _datetime_pattern(text: str) -> str:
    parts = _DIRECTIVES.split(text)
    parts[::2] = map(re.escape, parts[::2])
    for index in range(1, len(parts), 2):
        directive = parts[index]
        other = "%" if directive == "%" else "[^/]*?"
        parts[index] = r"\d+" if directive in _DIGITS else other
    return "".join(parts)


def host_identifier(text: str, hostname: str) -> str:
    """What stands for ``<HOST>``; an empty text means the short host name."""
    short = hostname.partition(".")[0]
    return text.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) if text else short


def name_format(
    text: str, topic: str, host: str, pid: int | str, *, gzip: bool, needs_revision: bool
) -> str:
    """The format with all filled in but ``<DATETIME>`` and, where needed, ``<REV>``.

    Raises:
        MissingRevisionError: there is no ``<REV>`` in it, but it is needed.
    """
    if not needs_revision:
        text = text.replace(REV, "")
    elif REV not in text:
        raise MissingRevisionError(
            "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
        )
    filled = text.replace("<TOPIC>", topic).replace("<HOST>", host).replace(PID, str(pid))
    return f"{filled}.gz" if gzip and not filled.endswith(".gz") else filled


def with_revision(name: str, revision: int) -> str:
    """The name of one revision: ``-000001`` for 1."""
    return name.replace(REV, f"-{revision:06d}")


def path_of(folder: str, name: str) -> str:
    """The path of a name, which may have folders in it, below a folder."""
    return os.path.normpath(os.path.join(folder, name.lstrip("/")))


def leftover_pattern(name: str, datetime_format: str) -> re.Pattern[str]:
    """What matches the names of all times, revisions and processes, relative to their folder.

    Args:
        name: as `name_format` gives it for the process `PID`, with ``<REV>``.
        datetime_format: see `format_datetime`.
    """
    parts = re.split(f"({DATETIME}|{REV}|{PID})", os.path.normpath(name.lstrip("/")))
    has_revision = False
    for index, part in enumerate(parts):
        if part == REV:
            parts[index] = "(?P=rev)" if has_revision else r"(?P<rev>-\d{6,})"
            has_revision = True
        elif part == DATETIME:
            parts[index] = _datetime_pattern(datetime_format)
        else:
            parts[index] = r"\d+" if part == PID else re.escape(part)
    return re.compile("".join(parts))
