"""The flags of a daemon, read by the rules that operators' scripts for NSQ rely on.

``-name`` and ``--name`` are equal; a value follows after ``=`` or as the next word; a boolean
takes its value by ``=`` only. Reading stops at the first word that is not a flag, or at ``--``.
The flags are defined by the options dataclass (see `trionsq.options`).
"""

import dataclasses
from collections.abc import Iterator, Sequence

from trionsq.options import FatalValueError, Option, Value, default_of, table


class UsageError(Exception):
    """An unknown flag or a bad value; the command shows it with the usage and exits with 2."""


class HelpRequested(Exception):
    """``-h`` or ``--help`` was given where no flag of that name exists."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flags:
    """The content of a command line.

    *values* are by field name, only those that it sets; *rest* are the arguments after the flags;
    *warnings* name deprecated flags.
    """

    values: dict[str, Value]
    rest: tuple[str, ...]
    warnings: tuple[str, ...]


def parse(options: type, words: Sequence[str]) -> Flags:
    """Read *words* (without the program's name) by the table of the dataclass *options*.

    Raises:
        HelpRequested: the usage is asked for.
        UsageError: an unknown flag, a missing or a bad value.
        FatalValueError: a value so bad that it ends the start.
    """
    by_flag = {
        flag: (name, spec) for name, spec in table(options) for flag in (spec.flag, *spec.aliases)
    }
    values: dict[str, Value] = {}
    warnings: list[str] = []
    left = list(reversed(words))
    while left and _is_flag(left[-1]):
        word = left.pop()
        if word == "--":
            break
        flag, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
        if not flag or flag.startswith("-"):
            raise UsageError(f"bad flag syntax: {word}")
        if flag not in by_flag:
            if flag in ("h", "help"):
                raise HelpRequested
            raise UsageError(f"flag provided but not defined: -{flag}")
        name, spec = by_flag[flag]
        if not equals:
            text = _value_without_equals(flag, spec, left)
        value = _read(flag, spec, text)
        if spec.kind.join is not None and name in values:
            value = spec.kind.join(values[name], value)
        values[name] = value
        warnings.extend(_remarks(flag, spec))
    return Flags(values, tuple(reversed(left)), tuple(warnings))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-")


def _value_without_equals(flag: str, spec: Option, left: list[str]) -> str:
    if spec.kind.bare is not None:
        return spec.kind.bare
    if not left:
        raise UsageError(f"flag needs an argument: -{flag}")
    return left.pop()


def _read(flag: str, spec: Option, text: str) -> Value:
    try:
        return spec.kind.parse(text)
    except FatalValueError:
        raise
    except ValueError as error:
        kind = "boolean value" if spec.kind.bare is not None else "value"
        raise UsageError(f'invalid {kind} "{text}" for flag -{flag}: {error}') from None


def _remarks(flag: str, spec: Option) -> Iterator[str]:
    if spec.deprecated:
        yield f"--{flag} is deprecated and has no effect: {spec.deprecated}"
    elif flag != spec.flag:
        yield f"--{flag} is an older name: use --{spec.flag}"


def usage(options: type, command: str) -> str:
    """Return the help text of *command*: each flag with its type, meaning and default."""
    lines = [f"Usage of {command}:"]
    for name, spec in sorted(table(options), key=lambda row: row[1].flag):
        kind = "" if spec.kind.bare is not None else f" <{spec.kind.name}>"
        default = spec.kind.show(default_of(options, name))
        default_text = f" (default {default.strip()})" if default not in ("", "false", "0") else ""
        note = f" ({spec.note})" if spec.note else ""
        deprecated = f" (deprecated: {spec.deprecated})" if spec.deprecated else ""
        lines.append(f"  --{spec.flag}{kind}")
        lines.append(f"        {spec.help}{default_text}{note}{deprecated}")
    return "\n".join(lines) + "\n"
