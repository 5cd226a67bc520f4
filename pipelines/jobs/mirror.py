"""mirror: topics of one cluster into another."""

from __future__ import annotations

import argparse
from typing import Final

from pipelines.errors import UsageError
from pipelines.jobs.arguments import (
    add_destination,
    add_session,
    add_source,
    sink_options,
    source_options,
    split,
)
from pipelines.jobs.job import Job, read_messages, run_query

NAME: Final = "mirror"
HELP: Final = "topics of one cluster into another"
EXAMPLE: Final = """\
python -m pipelines mirror --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --destination-nsqd-tcp-address=127.0.0.1:5150 --checkpoint=run/mirror/state --once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, NAME, "0")
    add_destination(
        parser,
        topic_help="default: each message's own topic",
        addresses_help=" of the other cluster",
    )
    parser.add_argument(
        "--mode",
        choices=("direct", "staged"),
        default="direct",
        help="direct: tasks publish; staged: a microbatch is published once, when it is complete "
        "(default: %(default)s)",
    )
    add_session(parser)


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and Spark's exceptions."""
    arguments = job.arguments
    _check(arguments)
    checkpoint = job.checkpoint()
    source = source_options(arguments, checkpoint)
    if arguments.mode == "staged":
        arguments.sink_option += ["mode=staged", f"stagePath={checkpoint / 'stage'}"]
    sink = sink_options(arguments, arguments.destination_topic)
    frame = read_messages(job.spark(), source)
    columns = ["body"] if arguments.destination_topic else ["topic", "body"]
    writer = frame.select(*columns).writeStream.format("nsq").options(**sink)
    run_query(job, writer)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.destination_nsqd_tcp_address or arguments.destination_lookupd_http_address:
        return
    if not arguments.destination_topic:
        raise UsageError("--destination-nsqd-tcp-address or -lookupd-http-address is required")
    if arguments.destination_topic in split(arguments.topic).split(","):
        raise UsageError(f"{arguments.destination_topic} would be mirrored into itself without end")
