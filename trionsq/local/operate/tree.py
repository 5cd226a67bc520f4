"""The root of the command ``trionsq``, and shell completion of all below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from trionsq.local.operate.channels import channel_group
from trionsq.local.operate.deadletters import dead_letter_group
from trionsq.local.operate.flags import example, table_flags
from trionsq.local.operate.logs import log_group
from trionsq.local.operate.nodes import node_group
from trionsq.local.operate.topics import topic_group
from trionsq.local.up.options import UpOptions
from trionsq.options import table

__all__ = ["cli"]


@click.group(
    "trionsq",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Runs a local cluster, and operates clusters.

    Exit codes: 0 done; 1 a node failed, the others are done; 2 a usage error, or a question that
    nobody could answer; 130 after Ctrl-C.
    """


class _WithOwnFlags(click.Command):
    """A command that reads its flags itself; the parameters are for help, completion and man."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as they are."""
        ctx.args = args
        return args

    def invoke(self, ctx: click.Context) -> int:
        """Run with these words."""
        assert self.callback is not None
        return int(self.callback(ctx.args))


@cli.command("up", cls=_WithOwnFlags, epilog=example("trionsq up --nsqd=3"))
@table_flags(UpOptions, [name for name, _ in table(UpOptions)])
def up(words: list[str]) -> int:
    """Run a local cluster: nsqlookupd, any number of nsqd, and their dashboard."""
    from trionsq.local.up.command import up as work

    return work(words)


@cli.command("completion", epilog=example('eval "$(trionsq completion bash)"  # in ~/.bashrc'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str, **_: Any) -> int:
    """Print what makes a shell complete the commands and flags of trionsq."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "trionsq", "_TRIONSQ_COMPLETE").source())
    return 0


@cli.command("manual", epilog=example("trionsq manual ~/.local/share/man/man1"))
@click.argument("folder", type=click.Path(file_okay=False))
def manual(folder: str, **_: Any) -> int:
    """Write a manual page for each command of trionsq to a folder."""
    from trionsq.local.operate.manual import write_pages

    try:
        pages = write_pages(cli, Path(folder))
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    click.echo(f"{len(pages)} pages in {folder}")
    return 0


for group in (topic_group, channel_group, dead_letter_group, node_group, log_group):
    cli.add_command(group)
