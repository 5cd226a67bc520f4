"""Tables of options: flag, config key, default and meaning of each option in one place.

The options of a daemon, a tool or the client library are a frozen dataclass whose fields are made
by `option`. The flag parser, the config file reader, the usage text, ``/config/:opt`` and the
client's ``Config`` all read this table.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from trionsq import durations

T = TypeVar("T")
Items = tuple[str, ...] | tuple[float, ...]
Value = str | bool | int | float | Items

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_OCTAL = re.compile(r"([+-]?)0_?([0-7][0-7_]*)")
_INT64 = range(-(2**63), 2**63)


class FatalValueError(ValueError):
    """A bad value that ends the program with a FATAL line and exit 1, without the usage."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A type of option: how to read it from text and from a config file, and how to show it.

    *parse* and *from_config* raise ValueError with a short reason. *bare* is the meaning of the
    flag without a value (None: a value is required). *join* combines the values of a repeated flag
    (None: the last one counts). *choices* are the allowed values (empty: any).
    """

    name: str
    parse: Callable[[str], Value]
    from_config: Callable[[object], Value]
    show: Callable[[Any], str] = str
    bare: str | None = None
    join: Callable[[Any, Any], Items] | None = None
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """The description of one field of an options dataclass.

    *key* is None if the config file cannot set the option. *note* is a short remark for the usage
    text, *aliases* are older flag names, *deprecated* is the warning when it is used. *low* and
    *high* are the smallest and the largest value (None: no limit).
    """

    flag: str
    key: str | None
    kind: Kind
    help: str
    note: str = ""
    aliases: tuple[str, ...] = ()
    deprecated: str = ""
    low: float | None = None
    high: float | None = None

    def check(self, value: object) -> None:
        """Check that *value* is finite, in range and one of the choices.

        Raises:
            ValueError: it is not. The text is meant to follow the option's name.
        """
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be finite")
        if self.low is not None:
            high = math.inf if self.high is None else self.high
            if not self.low <= value <= high:  # type: ignore[operator]
                upper = "" if self.high is None else f" and at most {high:g}"
                raise ValueError(f"must be at least {self.low:g}{upper}, not {value}")
        if self.kind.choices and value not in self.kind.choices:
            raise ValueError(f"must be one of {', '.join(self.kind.choices)}, not {value}")


def parse_bool(text: str) -> bool:
    """Read ``1 t T true TRUE True`` and their opposites; raises ValueError on anything else."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("parse error")


def parse_int(text: str) -> int:
    """Read a 64-bit integer: decimal, or with 0x, 0o, 0b, or a leading zero for octal.

    Raises:
        ValueError: not a number, or out of range.
    """
    octal = _OCTAL.fullmatch(text)
    if octal:
        text = f"{octal[1]}0o{octal[2]}"
    if not text or len(text) > 100 or not text.isascii() or text != text.strip():
        raise ValueError("parse error")
    try:
        value = int(text, 0)
    except ValueError:
        raise ValueError("parse error") from None
    if value not in _INT64:
        raise ValueError("value out of range")
    return value


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("parse error") from None


def _parse_seconds(text: str) -> float:
    try:
        ms = int(text)
    except ValueError:
        return durations.parse(text) / durations.SECOND_NS
    return -1.0 if ms == -1 else ms / 1000


def _parse_percentiles(text: str) -> tuple[float, ...]:
    items = []
    for item in text.split(","):
        try:
            items.append(float(item))
        except ValueError:
            raise FatalValueError(f"Could not parse: {item}") from None
    return _descending(items)


def _descending(items: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted(items, reverse=True))


def _string_from_config(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError("must be a string")


def _bool_from_config(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return parse_bool(value)
    # A number is ambiguous: the original reads 0 as true.
    raise ValueError("must be true or false")


def _int_from_config(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return parse_int(str(value))
    if isinstance(value, str):
        return parse_int(value)
    raise ValueError("must be an integer")


def _float_from_config(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return _parse_float(value)
    raise ValueError("must be a number")


def _duration_from_config(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        duration_ns = value * durations.MILLISECOND_NS
        if durations.MIN_NS <= duration_ns <= durations.MAX_NS:
            return duration_ns
        raise ValueError("value out of range")
    if isinstance(value, str):
        return durations.parse(value)
    raise ValueError('must be a duration such as "60s", or an integer of milliseconds')


def _seconds_from_config(value: object) -> float:
    return -1.0 if value == -1 else _duration_from_config(value) / durations.SECOND_NS


def _list_from_config(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split(",") if value else []
    if isinstance(value, list):
        return [_string_from_config(item) for item in value]
    raise ValueError("must be a list of strings, or one string with commas")


def _percentiles_from_config(value: object) -> tuple[float, ...]:
    return _descending(
        item for text in _list_from_config(value) for item in _parse_percentiles(text)
    )


def _show_list(value: tuple[object, ...]) -> str:
    return ",".join(str(item) for item in value)


def choice(name: str, *choices: str, default: str = "", boolean: bool = False) -> Kind:
    """Return a kind that accepts one of *choices*, in upper or lower case.

    An empty text means *default* if there is one. With *boolean*, the bare flag means ``true``, and
    the notations of a boolean are accepted too.
    """

    def parse(text: str) -> str:
        value = text.lower() or default
        if boolean and text in _TRUE | _FALSE:
            value = "true" if text in _TRUE else "false"
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    def from_config(value: object) -> str:
        if boolean and isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str):
            raise ValueError(f"must be one of {', '.join(choices)}")
        return parse(value)

    return Kind(name, parse, from_config, bare="true" if boolean else None, choices=choices)


STRING = Kind("string", str, _string_from_config)
BOOL = Kind(
    "bool", parse_bool, _bool_from_config, show=lambda value: str(value).lower(), bare="true"
)
INT = Kind("int", parse_int, _int_from_config)
FLOAT = Kind("float", _parse_float, _float_from_config)
DURATION = Kind("duration", durations.parse, _duration_from_config, show=durations.render)
# A duration in seconds, as a float. A bare number is milliseconds; -1 stays -1.
SECONDS = Kind("duration", _parse_seconds, _seconds_from_config)
STRINGS = Kind(
    "string, repeatable",
    lambda text: (text,),
    lambda value: tuple(_list_from_config(value)),
    show=_show_list,
    join=operator.add,
)
PERCENTILES = Kind(
    "numbers, repeatable",
    _parse_percentiles,
    _percentiles_from_config,
    show=_show_list,
    join=lambda earlier, later: _descending(earlier + later),
)
DEBUG_FROM = choice("whom", "loopback", "any", "none")
LOG_FORMAT = choice("form", "classic", "json")
LOG_LEVEL = choice("level", "debug", "info", "warn", "error", "fatal")


def option(
    flag: str,
    default: T,
    kind: Kind,
    help: str,
    *,
    key: str | None = "",
    factory: Callable[[], T] | None = None,
    note: str = "",
    aliases: tuple[str, ...] = (),
    deprecated: str = "",
    low: float | None = None,
    high: float | None = None,
    secret: bool = False,
) -> T:
    """Return a dataclass field that carries its `Option`.

    A *factory* replaces *default* and is called at each construction. The config *key* is the flag
    with underscores by default; None: the config file cannot set it. `Option.check` uses *low* and
    *high*. A *secret* is left out of the repr.
    """
    if key == "":
        key = flag.replace("-", "_")
    spec = Option(flag, key, kind, help, note, aliases, deprecated, low, high)
    metadata = {"option": spec}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """The options that every daemon has; each has its own default of --log-prefix."""

    version: bool = option("version", False, BOOL, "print the version and exit", key=None)
    config: str = option("config", "", STRING, "path of the config file", key=None)
    log_level: str = option("log-level", "info", LOG_LEVEL, "debug, info, warn, error or fatal")
    log_prefix: str = option("log-prefix", "", STRING, "prefix of each log line")
    verbose: bool = option(
        "verbose", False, BOOL, "no effect", key=None, deprecated="use --log-level"
    )


def prefix_option(name: str) -> str:
    """The option --log-prefix of the daemon *name*."""
    return option("log-prefix", f"[{name}] ", STRING, "prefix of each log line")


# The HTTP servers of all daemons have the next three options.
def allow_origin_option() -> tuple[str, ...]:
    """The option --http-allow-origin."""
    return option(
        "http-allow-origin",
        (),
        STRINGS,
        "origin (https://host:port) whose pages may use the HTTP API from a browser; *: any origin",
        key="http_allow_origins",
    )


def allow_host_option() -> tuple[str, ...]:
    """The option --http-allow-host."""
    return option(
        "http-allow-host",
        (),
        STRINGS,
        "further name of this machine to accept in the Host header, as sent by a proxy; *: any",
        key="http_allow_hosts",
    )


def max_http_connections_option() -> int:
    """The option --max-http-connections."""
    return option(
        "max-http-connections",
        10_000,
        INT,
        "maximum HTTP connections; more are answered 503 (0: no limit)",
    )


def table(options: object) -> Iterator[tuple[str, Option]]:
    """Yield (field name, description) of an options dataclass or instance, in table order."""
    for field in dataclasses.fields(cast(Any, options)):
        yield field.name, field.metadata["option"]


def default_of(options: type, name: str) -> Any:
    """Return the default of field *name*, from its factory if it has one."""
    for field in dataclasses.fields(options):
        if field.name == name:
            if field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
            return field.default
    raise KeyError(name)
