"""Flags of commands, made from tables of options (`trionsq.options`), and arguments they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from admin.options import NsqadminOptions
from trionsq.hostport import parse_address
from trionsq.options import BOOL, STRINGS, Kind, Option, default_of, table
from trionsq.wire.names import is_valid_name

__all__ = [
    "CHANNEL",
    "PLACE",
    "TOPIC",
    "TOPIC_NAME",
    "YES",
    "Call",
    "OrDefault",
    "call_of",
    "example",
    "for_nodes",
    "for_peeking",
    "peek_query",
    "table_flags",
]

F = TypeVar("F", bound=Callable[..., Any])

_SECTION: Final = "http_client_"
_ADDRESSES: Final = ("lookupd_http_address", "nsqd_http_address")


class _KindType(click.ParamType[Any]):
    """A value that a `Kind` reads."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text; others are values already."""
        if not isinstance(value, str):
            return value
        try:
            return self._kind.parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class _Name(click.ParamType[str]):
    """The name of a topic or channel."""

    def __init__(self, what: str) -> None:
        self.name = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name if it is valid."""
        if not is_valid_name(str(value).encode()):
            self.fail(f"{value!r} is not the name of a {self.name}", param, ctx)
        return str(value)


class _Place(click.ParamType[str]):
    """A place in a topic's log."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text if nsqd can read it."""
        from trionsq.storage.log.seeking import parse_position

        try:
            parse_position(value)
        except ValueError:
            self.fail(f"{value!r} is not beginning, end, a time or a sequence", param, ctx)
        return str(value)


class OrDefault(click.ParamType[str]):
    """A number that a `Kind` reads and that is not negative, or ``default``; as a text."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as nsqd reads it."""
        if value == "default":
            return "default"
        try:
            number = self._kind.parse(value)
        except ValueError:
            number = -1
        if not isinstance(number, int) or number < 0:
            self.fail(f"{value!r} is no {self.name} of 0 or more, nor default", param, ctx)
        return self._kind.show(number)


TOPIC_NAME: Final = _Name("topic")
TOPIC: Final = click.argument("topic", type=TOPIC_NAME)
CHANNEL: Final = click.argument("channel", type=_Name("channel"))
YES: Final = click.option("--yes", is_flag=True, help="Do not ask.")
PLACE: Final = _Place()


@dataclass(frozen=True, slots=True)
class Call:
    """How a command reaches nodes and prints.

    Attributes:
        options: addresses, limits and TLS of the requests to nodes.
        as_json: print one JSON document.
    """

    options: NsqadminOptions
    as_json: bool


def table_flags(
    options: type, names: Iterable[str], *, hint: str = "", cut: str = ""
) -> Callable[[F], F]:
    """Flags for fields of an options dataclass.

    Args:
        options: the dataclass.
        names: its fields.
        hint: a beginning of the help that is left out, because it names the command.
        cut: from here on the help is left out, because it is about other commands.
    """
    wanted = set(names)
    rows = [(name, spec) for name, spec in table(options) if name in wanted]

    def decorate(function: F) -> F:
        for name, spec in reversed(rows):
            text = spec.help.removeprefix(hint)
            text = text.partition(cut)[0] if cut else text
            function = _flag(options, name, spec, text)(function)
        return function

    return decorate


def _flag(options: type, name: str, spec: Option, text: str) -> Callable[[F], F]:
    kind, default = spec.kind, default_of(options, name)
    settings: dict[str, Any] = {"help": f"{text[:1].upper()}{text[1:]}.", "default": default}
    if kind is BOOL:
        settings |= {"is_flag": True}
    elif kind is STRINGS:
        settings |= {"multiple": True, "metavar": "HOST:PORT" if "address" in name else "TEXT"}
    elif kind.choices:
        settings |= {"type": click.Choice(kind.choices)}
    else:
        shown = kind.show(default)
        settings |= {"type": _KindType(kind), "metavar": kind.name.upper(), "default": shown}
        settings |= {"show_default": shown not in ("", "0")}
    return click.option(f"--{spec.flag}", name, **settings)


def for_nodes(function: F) -> F:
    """Flags of every command that reaches nodes; `call_of` reads them."""
    shared = [name for name, _ in table(NsqadminOptions) if name.startswith(_SECTION)]
    function = table_flags(NsqadminOptions, shared)(function)
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
        function
    )
    for name, text in zip(
        _ADDRESSES,
        (
            "An nsqlookupd: the command is for all nsqds that it knows. Repeatable.",
            "An nsqd: the command is for it alone. Repeatable.",
        ),
        strict=True,
    ):
        flag = f"--{name.replace('_', '-')}"
        function = click.option(
            flag, name, multiple=True, metavar="HOST:PORT", help=text, callback=_addresses
        )(function)
    return function


def _addresses(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> Any:
    for address in value:
        try:
            parse_address(address)
        except ValueError:
            raise click.BadParameter(f"{address!r} is not HOST:PORT", ctx, param) from None
    return tuple(dict.fromkeys(value))


def call_of(flags: dict[str, Any], *, both: bool = False) -> Call:
    """Take the flags of `for_nodes` out of ``flags``; ``both``: both kinds of address are allowed.

    Raises:
        click.UsageError: no address, or too many kinds of them.
    """
    as_json = flags.pop("as_json")
    names = [name for name in list(flags) if name in _ADDRESSES or name.startswith(_SECTION)]
    options = NsqadminOptions(**{name: flags.pop(name) for name in names})
    lookupds, nsqds = options.lookupd_http_address, options.nsqd_http_address
    if not lookupds and not nsqds:
        raise click.UsageError("--lookupd-http-address or --nsqd-http-address is required")
    if lookupds and nsqds and not both:
        raise click.UsageError("use --lookupd-http-address or --nsqd-http-address, not both")
    if options.http_client_max_requests < 1:
        raise click.UsageError("--http-client-max-requests must be at least 1")
    return Call(options, as_json)


def for_peeking(function: F) -> F:
    """Flags of commands that peek; `peek_query` reads them."""
    for flag, most, default, text in (
        ("--max-bytes", 4 * 2**20, 2**20, "Maximum bytes of all bodies of a node."),
        ("--offset", None, 0, "Messages to skip on each node."),
        ("--limit", 1000, 10, "Maximum messages of a node."),
    ):
        least = 0 if flag == "--offset" else 1
        function = click.option(
            flag,
            type=click.IntRange(least, most),
            default=default,
            show_default=True,
            help=text,
        )(function)
    return function


def peek_query(flags: dict[str, Any]) -> dict[str, str]:
    """Take the flags of `for_peeking` out of ``flags``, as parameters of a request."""
    return {name: str(flags.pop(name)) for name in ("limit", "offset", "max_bytes")}


def example(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)])
