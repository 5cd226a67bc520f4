"""Options as Spark gives them: texts by name, the names in any case.

All that is wrong is told at once, with the options that there are; an unknown one is never
ignored, for a misspelt limit is no limit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from trionsq import durations
from trionsq.client.discovery import lookup_url
from trionsq.hostport import parse_address
from trionsq.options import parse_bool as _parse_bool

__all__ = [
    "Option",
    "OptionsError",
    "boolean",
    "choice",
    "duration_s",
    "folder",
    "integer",
    "lookupd_addresses",
    "nbytes",
    "nsqd_addresses",
    "read_options",
    "text",
    "texts",
]

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# RFC 3986 has a scheme of one letter; nobody uses one, and C: is a drive.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_NBYTES: Final = re.compile(r"([0-9]+)\s*([bkmgt]?)b?", re.IGNORECASE)


class OptionsError(ValueError):
    """Options are unknown, wrong or missing. The text has a line for each, then the valid ones."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a source, sink or job.

    Attributes:
        name: as users write it; ``client.*`` stands for every name that begins so.
        parse: makes a value of the text, or raises ValueError with the reason.
        default: what it is when it is not given, as a value.
        help: a line.
        required: it has to be given.
    """

    name: str
    parse: Callable[[str], Any]
    help: str
    default: Any = None
    required: bool = False


def read_options(table: Sequence[Option], given: Mapping[str, str], what: str) -> dict[str, Any]:
    """The value of every option of the table, by its name; those of a ``x.*`` as a dict.

    Args:
        table: all there are.
        given: as they came.
        what: whose options they are, for the error's text.

    Raises:
        OptionsError: any of them is wrong.
    """
    problems: list[str] = []
    exact = {option.name.lower(): option for option in table if not option.name.endswith("*")}
    prefixes = [option for option in table if option.name.endswith("*")]
    values: dict[str, Any] = {option.name: option.default for option in exact.values()}
    values |= {option.name: {} for option in prefixes}
    for key, told in given.items():
        name = key.lower()
        prefix = next((one for one in prefixes if name.startswith(one.name[:-1].lower())), None)
        option = exact.get(name, prefix)
        if option is None:
            problems.append(f"there is no option {key!r}{_meant(name, table)}")
            continue
        try:
            value = option.parse(told)
        except ValueError as error:
            problems.append(f"{key if option is prefix else option.name}: {error}")
            continue
        if option is prefix:
            values[option.name][name[len(option.name) - 1 :]] = value
        else:
            values[option.name] = value
    present = {key.lower() for key in given}
    problems += [
        f"{option.name} is required: {option.help}"
        for option in exact.values()
        if option.required and option.name.lower() not in present
    ]
    if problems:
        raise OptionsError(told_of(problems, table, what))
    return values


def told_of(problems: Sequence[str], table: Sequence[Option], what: str) -> str:
    """The text of an OptionsError."""
    lines = [f"options of {what}:", *(f"  {problem}" for problem in problems), "valid options:"]
    width = max(len(option.name) for option in table)
    lines += [f"  {option.name:{width}}  {option.help}{_note(option)}" for option in table]
    return "\n".join(lines)


def _note(option: Option) -> str:
    if option.required:
        return " (required)"
    if option.default in (None, "", ()):
        return ""
    return f" (default {_as_written(option.default, option.parse)})"


def _as_written(value: Any, parse: Callable[[str], Any]) -> str:
    if parse is duration_s:
        return durations.render(round(value * durations.SECOND_NS))
    if parse is boolean:
        return str(value).lower()
    if parse is nbytes:
        unit = next(unit for unit in "tgmkb" if value % _UNITS[unit] == 0)
        return f"{value // _UNITS[unit]}{unit}"
    return str(value)


def _meant(name: str, table: Sequence[Option]) -> str:
    names = {option.name.lower(): option.name for option in table}
    close = difflib.get_close_matches(name, names, n=1)
    return f"; is {names[close[0]]} meant?" if close else ""


# Values


def text(told: str) -> str:
    """As it is, but not empty."""
    if not told.strip():
        raise ValueError("is empty")
    return told.strip()


def folder(told: str) -> str:
    """The path of a folder: a plain one as it is, or that of ``file:///absolute/path``.

    Any other URL is refused. Opened as a path, ``s3a://bucket/wal`` would be a new folder in the
    working directory, which is gone with the machine or the container.
    """
    told = text(told)
    scheme = _SCHEME.match(told)
    if scheme is None:
        return told
    if scheme[0].lower() != "file:":
        raise ValueError(
            f"{told} is a URL; it must be a folder in a file system that is mounted here. For a "
            f"folder of this name write ./{told}"
        )
    path = told[scheme.end() :]
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/"):
            raise ValueError(f"{told} names a host or a relative path; write file:///absolute/path")
    elif not path.startswith("/"):
        raise ValueError(f"{told} is relative; write file:///absolute/path")
    if re.search(r"[?#]", path) or _BROKEN_ESCAPE.search(path):
        raise ValueError(
            f"{told} is no valid URL of a folder; write ?, # and % as %3F, %23 and %25"
        )
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{told} has escapes that are not UTF-8") from None


def texts(told: str) -> tuple[str, ...]:
    """Several, with commas between them."""
    parts = tuple(part.strip() for part in told.split(","))
    if not all(parts):
        raise ValueError(f"{told!r} has an empty part")
    return parts


def nsqd_addresses(told: str) -> tuple[str, ...]:
    """``host:port``, several with commas between them."""
    found = texts(told)
    for address in found:
        if "/" in address:
            raise ValueError(f"{address!r} is not host:port")
        parse_address(address)
    return found


def lookupd_addresses(told: str) -> tuple[str, ...]:
    """``host:port`` or ``http(s)://host:port``, several with commas between them."""
    found = texts(told)
    for address in found:
        lookup_url(address, "topic")
    return found


def boolean(told: str) -> bool:
    """``true`` or ``false``."""
    try:
        return _parse_bool(told)
    except ValueError:
        raise ValueError(f"{told!r} is neither true nor false") from None


def integer(low: int = 1, high: int = 2**63 - 1) -> Callable[[str], int]:
    """A number in a range, both ends included."""

    def parse(told: str) -> int:
        try:
            value = int(told)
        except ValueError:
            raise ValueError(f"{told!r} is no whole number") from None
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high}"
            raise ValueError(f"must be {limit}, not {value}")
        return value

    return parse


def choice(*choices: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(told: str) -> str:
        if told.lower() not in choices:
            raise ValueError(f"{told!r} is none of {', '.join(choices)}")
        return told.lower()

    return parse


def duration_s(told: str) -> float:
    """``1m30s``, ``250ms``; a bare number is milliseconds."""
    try:
        seconds = (
            int(told) / 1000 if told.isdecimal() else durations.parse(told) / durations.SECOND_NS
        )
    except ValueError:
        raise ValueError(f"{told!r} is no duration such as 30s or 250ms") from None
    if seconds < 0:
        raise ValueError(f"must be at least 0, not {told}")
    return seconds


def nbytes(told: str) -> int:
    """A number of bytes, ``512m`` or ``4g``; at least 1."""
    found = _NBYTES.fullmatch(told.strip())
    if found is None or not int(found[1]):
        raise ValueError(f"{told!r} is no size such as 512m or 4g")
    return int(found[1]) * _UNITS[found[2].lower()]
