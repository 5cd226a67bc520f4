"""The commands ``trionsq log ...``: those of the tool nsq_log."""

from __future__ import annotations

from typing import Any

import click

from trionsq.local.operate.flags import example, table_flags
from trionsq.tools.nsq_log_output import NsqLogOptions

__all__ = ["log_group"]

_DATA_PATH = click.argument("data_path", type=click.Path(file_okay=False))


@click.group("log")
def log_group() -> None:
    """Check, count, print, adopt, back up and restore logs, as nsq_log does.

    Exit codes: 0; 1 after damage; 2 if something cannot be read.
    """


def _run(command: str, *paths: str, **flags: Any) -> int:
    from trionsq.tools.nsq_log import run

    return run(command, paths, NsqLogOptions(**flags), "trionsq log")


@log_group.command("verify", epilog=example("trionsq log verify /var/lib/nsqd"))
@_DATA_PATH
@table_flags(NsqLogOptions, ["topic", "json"], cut="; ")
def verify(data_path: str, **flags: Any) -> int:
    """Check every CRC in a data path, and the order of records and segments."""
    return _run("verify", data_path, **flags)


@log_group.command("stat", epilog=example("trionsq log stat --topic=orders /var/lib/nsqd"))
@_DATA_PATH
@table_flags(NsqLogOptions, ["topic", "json"], cut="; ")
def stat(data_path: str, **flags: Any) -> int:
    """Print segments, messages and times of each topic, and the places of its channels."""
    return _run("stat", data_path, **flags)


@log_group.command(
    "cat",
    epilog=example(
        "trionsq log cat --topic=orders --from-sequence=1200000 --count=10 /var/lib/nsqd"
    ),
)
@_DATA_PATH
@click.option("--topic", required=True, help="The topic.")
@table_flags(NsqLogOptions, ["incarnation", "from_sequence", "count", "format"], hint="cat: ")
def cat(data_path: str, **flags: Any) -> int:
    """Print the messages of one topic, as JSON lines or raw; goes on behind damage."""
    for name in ("incarnation", "from_sequence", "count"):
        if flags[name] < 0:
            raise click.UsageError(f"--{name.replace('_', '-')} should not be negative")
    return _run("cat", data_path, **flags)


@log_group.command("adopt", epilog=example("trionsq log adopt /var/lib/nsqd"))
@_DATA_PATH
@table_flags(NsqLogOptions, ["topic", "json"], cut="; ")
def adopt(data_path: str, **flags: Any) -> int:
    """Make topics of logs that the state does not name: it was lost, say."""
    return _run("adopt", data_path, **flags)


@log_group.command(
    "backup", epilog=example("trionsq log backup --nsqd-http-address=127.0.0.1:4151 monday")
)
@click.argument("name")
@click.option(
    "--nsqd-http-address", required=True, metavar="HOST:PORT", help="The nsqd that makes it."
)
@table_flags(NsqLogOptions, ["json"], cut="; ")
def backup(name: str, **flags: Any) -> int:
    """Have a running nsqd make a backup of this name, and print where it is."""
    return _run("backup", name, **flags)


@log_group.command(
    "restore", epilog=example("trionsq log restore /backups/backup.monday /var/lib/nsqd-new")
)
@click.argument("backup", type=click.Path(file_okay=False))
@_DATA_PATH
@table_flags(NsqLogOptions, ["json"], cut="; ")
def restore(backup: str, data_path: str, **flags: Any) -> int:
    """Copy a backup to a folder that is empty or new."""
    return _run("restore", backup, data_path, **flags)
