"""Manual pages of all commands, in the macros of man(7), from their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from trionsq import __version__

__all__ = ["write_pages"]


def write_pages(cli: click.Command, folder: Path) -> list[Path]:
    """Write ``trionsq.1``, ``trionsq-topic.1``, ``trionsq-topic-list.1`` ...; their paths.

    Raises:
        OSError: a page can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ctx in _contexts(cli, None):
        path = folder / f"{_page(ctx)}.1"
        path.write_text("\n".join([*_lines(ctx), ""]), encoding="utf-8")
        paths.append(path)
    return paths


def _contexts(command: click.Command, parent: click.Context | None) -> Iterator[click.Context]:
    """The context of the command and of each below it."""
    ctx = click.Context(command, parent, info_name=command.name, **command.context_settings)
    yield ctx
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _contexts(child, ctx)


def _page(ctx: click.Context) -> str:
    return ctx.command_path.replace(" ", "-")


def _lines(ctx: click.Context) -> Iterator[str]:
    command = ctx.command
    first, _, rest = (command.help or "").partition("\n\n")
    yield f'.TH "{_escaped(_page(ctx).upper())}" 1 "" "trionsq {__version__}" "trionsq"'
    yield ".SH NAME"
    yield _text(f"{_page(ctx)} - {first}")
    yield ".SH SYNOPSIS"
    yield f".B {_escaped(ctx.command_path)}"
    yield _text(" ".join(command.collect_usage_pieces(ctx)))
    if rest:
        yield ".SH DESCRIPTION"
        yield "\n.PP\n".join(_text(each) for each in rest.split("\n\n"))
    yield ".SH OPTIONS"
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            yield f".TP\n\\fB{_escaped(record[0])}\\fP\n{_text(record[1])}"
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for name, child in command.commands.items():
            text = _text((child.help or "").partition("\n\n")[0])
            yield f".TP\n\\fB{_escaped(_page(ctx))}-{name}\\fP(1)\n{text}"
    examples = [line.strip() for line in (command.epilog or "").splitlines() if "trionsq" in line]
    if examples:
        yield ".SH EXAMPLES"
        yield "\n".join([".nf", *map(_text, examples), ".fi"])


def _text(text: str) -> str:
    """Words on one line, none of which is taken for a macro."""
    line = _escaped(" ".join(text.split()))
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")
