"""Options as Spark passes them: texts by name, in upper or lower case.

An error lists all problems and the valid options. An unknown option is an error: a misspelt limit
would otherwise have no effect.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pipelines.errors import OptionsError
from trionsq import durations
from trionsq.client.discovery import lookup_url
from trionsq.hostport import parse_address
from trionsq.options import parse_bool as _parse_bool

__all__ = [
    "Option",
    "boolean",
    "byte_size",
    "choice",
    "duration_s",
    "folder",
    "integer",
    "log_place",
    "lookupd_addresses",
    "nsqd_addresses",
    "options_error_text",
    "read_options",
    "text",
    "texts",
    "timestamp",
]

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# At least two letters: RFC 3986 allows a scheme of one letter, but C: is a drive.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
# datetime.fromisoformat takes other forms, too.
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BYTE_SIZE: Final = re.compile(r"([0-9]+)\s*([bkmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a source, sink or job.

    Attributes:
        name: as documented; ``client.*`` stands for every name with this prefix.
        parse: converts the text to the value; raises ValueError with the reason.
        default: the value without the option.
        help: one line.
        required: whether the option must be set.
    """

    name: str
    parse: Callable[[str], Any]
    help: str
    default: Any = None
    required: bool = False


def read_options(table: Sequence[Option], options: Mapping[str, str], owner: str) -> dict[str, Any]:
    """The values of all options of the table by name; those of a ``x.*`` as a dict.

    Args:
        table: the valid options.
        options: texts by name, as Spark passes them.
        owner: of the options, for the text of the error.

    Raises:
        OptionsError: an option is unknown, invalid or missing.
    """
    problems: list[str] = []
    exact = {option.name.lower(): option for option in table if not option.name.endswith("*")}
    prefixes = [option for option in table if option.name.endswith("*")]
    values: dict[str, Any] = {option.name: option.default for option in exact.values()}
    values |= {option.name: {} for option in prefixes}
    for key, text in options.items():
        name = key.lower()
        prefix = next((item for item in prefixes if name.startswith(item.name[:-1].lower())), None)
        option = exact.get(name, prefix)
        if option is None:
            problems.append(f"there is no option {key!r}{_suggestion(name, table)}")
            continue
        try:
            value = option.parse(text)
        except ValueError as error:
            problems.append(f"{key if option is prefix else option.name}: {error}")
            continue
        if option is prefix:
            values[option.name][name[len(option.name) - 1 :]] = value
        else:
            values[option.name] = value
    present = {key.lower() for key in options}
    problems += [
        f"{option.name} is required: {option.help}"
        for option in exact.values()
        if option.required and option.name.lower() not in present
    ]
    if problems:
        raise OptionsError(options_error_text(problems, table, owner))
    return values


def options_error_text(problems: Sequence[str], table: Sequence[Option], owner: str) -> str:
    """The text of an OptionsError."""
    lines = [f"options of {owner}:", *(f"  {problem}" for problem in problems), "valid options:"]
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
    if parse is byte_size:
        unit = next(unit for unit in "tgmkb" if value % _UNITS[unit] == 0)
        return f"{value // _UNITS[unit]}{unit}"
    return str(value)


def _suggestion(name: str, table: Sequence[Option]) -> str:
    names = {option.name.lower(): option.name for option in table}
    close = difflib.get_close_matches(name, names, n=1)
    return f"; is {names[close[0]]} meant?" if close else ""


# Values


def text(value: str) -> str:
    """A text that is not empty."""
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def folder(value: str) -> str:
    """The path of a folder: a plain path, or the path of ``file:///absolute/path``.

    Any other URL is refused. Used as a path, ``s3a://bucket/wal`` would be a new folder in the
    working directory, which is lost with the machine or the container.
    """
    value = text(value)
    scheme = _SCHEME.match(value)
    if scheme is None:
        return value
    if scheme[0].lower() != "file:":
        raise ValueError(
            f"{value} is a URL; it must be a folder in a mounted file system. For a folder of this "
            f"name write ./{value}"
        )
    path = value[scheme.end() :]
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/"):
            raise ValueError(
                f"{value} names a host or a relative path; write file:///absolute/path"
            )
    elif not path.startswith("/"):
        raise ValueError(f"{value} is relative; write file:///absolute/path")
    if re.search(r"[?#]", path) or _BROKEN_ESCAPE.search(path):
        raise ValueError(
            f"{value} is not a valid URL of a folder; write ?, # and % as %3F, %23 and %25"
        )
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{value} has escapes that are not UTF-8") from None


def log_place(value: str) -> str:
    """The place of a log: a folder as for `folder`, or ``s3://bucket/prefix``, ``gs://``, ``az://``.

    A URL is sent to executors and shown in logs, so it may have no credentials.
    """
    # Imports pyarrow, which whoever asks for --help need not wait for.
    from pipelines.wal.objects import SCHEMES

    value = text(value)
    scheme = _SCHEME.match(value)
    if scheme is None or scheme[0].lower() == "file:":
        return folder(value)
    stores = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    name = scheme[0][:-1].lower().replace("s3a", "s3")
    if name == "hdfs":
        raise ValueError(
            f"{value}: a log can't be in HDFS, which can't keep out a second writer; use a mounted "
            f"folder or an object store ({stores})"
        )
    if name not in SCHEMES:
        raise ValueError(
            f"{value} is a URL of another kind; a log is in a folder of a mounted file system, or "
            f"in an object store ({stores}). For a folder of this name write ./{value}"
        )
    url = urlsplit(value)
    if "@" in url.netloc or url.query or url.fragment:
        raise ValueError(
            f"the URL of {url.hostname} has credentials, ? or #: write {name}://bucket/prefix; "
            "credentials come from the environment"
        )
    if not url.netloc or not url.path.strip("/"):
        raise ValueError(f"{value} lacks a bucket or a prefix: write {name}://bucket/prefix")
    return f"{name}://{url.netloc}/{url.path.strip('/')}"


def texts(value: str) -> tuple[str, ...]:
    """Several texts, separated by commas."""
    parts = tuple(part.strip() for part in value.split(","))
    if not all(parts):
        raise ValueError(f"{value!r} has an empty part")
    return parts


def nsqd_addresses(value: str) -> tuple[str, ...]:
    """One or several ``host:port``, separated by commas."""
    addresses = texts(value)
    for address in addresses:
        if "/" in address:
            raise ValueError(f"{address!r} is not host:port")
        parse_address(address)
    return addresses


def lookupd_addresses(value: str) -> tuple[str, ...]:
    """One or several ``host:port`` or ``http(s)://host:port``, separated by commas."""
    addresses = texts(value)
    for address in addresses:
        lookup_url(address, "topic")
    return addresses


def boolean(value: str) -> bool:
    """``true`` or ``false``."""
    try:
        return _parse_bool(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither true nor false") from None


def integer(low: int = 1, high: int = 2**63 - 1) -> Callable[[str], int]:
    """A whole number from ``low`` to ``high``."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a whole number") from None
        if not low <= number <= high:
            limit = f"at least {low}" if number < low else f"at most {high}"
            raise ValueError(f"must be {limit}, not {number}")
        return number

    return parse


def choice(*choices: str) -> Callable[[str], str]:
    """One of the words, in upper or lower case."""

    def parse(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return value.lower()

    return parse


def duration_s(value: str) -> float:
    """``1m30s`` or ``250ms``, in seconds; a bare number is milliseconds."""
    try:
        seconds = (
            int(value) / 1000 if value.isdecimal() else durations.parse(value) / durations.SECOND_NS
        )
    except ValueError:
        raise ValueError(f"{value!r} is not a duration such as 30s or 250ms") from None
    if seconds < 0:
        raise ValueError(f"must be at least 0, not {value}")
    return seconds


def timestamp(value: str) -> datetime:
    """A time as RFC 3339 writes it, or milliseconds since 1970; in UTC."""
    value = value.strip()
    try:
        if value.isascii() and value.isdecimal():
            return _EPOCH + timedelta(milliseconds=int(value))
        if _RFC3339.fullmatch(value):
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{value!r} is neither a time such as 2026-01-31T12:00:00Z nor milliseconds since 1970"
    )


def byte_size(value: str) -> int:
    """``512m``, ``4g`` or a number of bytes; at least 1."""
    match = _BYTE_SIZE.fullmatch(value.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"{value!r} is not a size such as 512m or 4g")
    return int(match[1]) * _UNITS[match[2].lower()]
