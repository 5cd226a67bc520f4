"""receive: topics into a log, by receivers of their own that queries elsewhere read."""

from __future__ import annotations

import argparse
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.errors import UsageError
from pipelines.jobs.arguments import (
    add_addresses,
    add_session,
    duration,
    source_options,
)
from pipelines.jobs.job import Job

if TYPE_CHECKING:
    from pipelines.receiver.detached import DetachedConfig
    from pipelines.source.options import StreamOptions

NAME: Final = "receive"
HELP: Final = "topics into logs that queries elsewhere read (walPath=.../*)"
EXAMPLE: Final = """\
python -m pipelines receive --topic=orders --channel=archive \\
    --nsqd-tcp-address=127.0.0.1:4150 --wal=run/receive/logs --name=first
"""
NOTES: Final = """\
SIGTERM and Ctrl-C store received messages, requeue the others, and exit with 0. Let systemd,
Kubernetes or the like start it again when it exits with 1 (a failure, printed in one line).
Exit code 2: wrong flags.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("source")
    group.add_argument(
        "--topic",
        metavar="TOPIC",
        action="append",
        required=True,
        help="one, several, or a regular expression (with --lookupd-http-address)",
    )
    group.add_argument("--channel", required=True, help="the same for all receivers of a query")
    add_addresses(group, "")
    group.add_argument(
        "--consumer-opt",
        metavar="NAME,VALUE",
        action="append",
        default=[],
        help="an option of the client library: tls_v1, auth_secret,...",
    )
    group.add_argument(
        "--source-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the stream's receiver or log: maxInFlight, wal.maxBytes,...",
    )
    group = parser.add_argument_group("log")
    group.add_argument(
        "--wal",
        metavar="PATH",
        required=True,
        help="folder of all logs, or its URL; a query reads them as walPath=PATH/*",
    )
    group.add_argument(
        "--name",
        dest="log_name",
        metavar="NAME",
        default=socket.gethostname().partition(".")[0],
        help="of the log below --wal; one receiver at a time has it (default: this host's name)",
    )
    group.add_argument(
        "--take-over-after",
        metavar="TIME",
        type=duration(),
        default="30s",
        help="a log whose receiver hangs is taken over after this time (default: %(default)s)",
    )
    group = parser.add_argument_group("several receivers")
    group.add_argument(
        "--receivers",
        metavar="N",
        type=int,
        help="run N receivers as tasks of Spark, with the logs NAME-0 to NAME-(N-1); without it "
        "one receiver runs in this process, and Spark is not needed",
    )
    group.add_argument(
        "--exclusive",
        metavar="I/N",
        nargs="?",
        const="",
        help="receive from each nsqd by only one of N receivers (this is number I, from 0; with "
        "--receivers give no value): then no message is in two logs",
    )
    add_session(parser)


def run(job: Job) -> None:
    """Receive until stopped. Raises UsageError, WalError, ReceiverError, and Spark's exceptions."""
    from pipelines.receiver.detached import run_receiver
    from pipelines.receiver.loglines import limit_repeated_lines

    limit_repeated_lines()
    for name in ("pipelines.receiver", "pipelines.wal"):
        logging.getLogger(name).setLevel(logging.INFO)
    arguments = job.arguments
    if arguments.receivers is None:
        run_receiver(config_of(arguments), job.stopping.wait)
        return
    if arguments.receivers < 1:
        raise UsageError("--receivers must be at least 1")
    if arguments.exclusive:
        raise UsageError("--exclusive: give no value with --receivers")
    from pipelines.jobs.tasks import run_tasks

    configs = [config_of(arguments, number) for number in range(arguments.receivers)]
    run_tasks(job, configs)


def config_of(arguments: argparse.Namespace, number: int | None = None) -> DetachedConfig:
    """What a receiver needs; with ``number`` that of a task. Raises UsageError."""
    from pipelines.receiver.config import Share
    from pipelines.receiver.detached import DetachedConfig

    options = _checked_options(arguments)
    share = Share()
    if number is not None:
        if arguments.exclusive is not None:
            share = Share(number, arguments.receivers)
    elif arguments.exclusive is not None:
        try:
            share = Share.parse(arguments.exclusive)
        except ValueError as error:
            raise UsageError(f"--exclusive: {error}") from error
    try:
        return DetachedConfig(
            root=options.wal_path,
            name=arguments.log_name if number is None else f"{arguments.log_name}-{number}",
            receiver=replace(options.receiver, nsqd_share=share),
            limits=options.limits,
            take_over_s=arguments.take_over_after,
            lock_timeout_s=max(60.0, options.lock_timeout_s),
        )
    except ValueError as error:
        raise UsageError(f"--name: {error}") from error


def _checked_options(arguments: argparse.Namespace) -> StreamOptions:
    from pipelines.source.options import LOGS, StreamOptions

    if arguments.wal.rstrip().endswith("*"):
        raise UsageError("--wal is the folder of all logs; only a query's walPath ends with /*")
    texts = source_options(arguments, Path())
    of_query = {option.name.lower() for option in LOGS} - {"walpath", "wal.locktimeout"}
    for name in texts:
        if name.lower() in of_query:
            raise UsageError(f"--source-option: {name} is an option of the query that reads")
    return StreamOptions.read(texts)
