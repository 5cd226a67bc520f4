"""mirror: topics of one cluster into another."""

from __future__ import annotations

import argparse
from typing import Final

from pipelines.jobs.arguments import UsageError, add_destination, add_session, add_source, split
from pipelines.jobs.running import Job, run_query

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
        parser, topic_help="default: a message's own topic", addresses_help=" of the other cluster"
    )
    parser.add_argument(
        "--mode",
        choices=("direct", "staged"),
        default="direct",
        help="staged: a batch is published once, when it is complete (default: %(default)s)",
    )
    add_session(parser)


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and what Spark raises."""
    from pipelines.jobs.frames import messages, sink_options, source_options

    arguments = job.arguments
    _check(arguments)
    checkpoint = job.checkpoint()
    source = source_options(arguments, checkpoint)
    if arguments.mode == "staged":
        arguments.sink_option += ["mode=staged", f"stagePath={checkpoint / 'stage'}"]
    sink = sink_options(arguments, arguments.destination_topic)
    frame = messages(job.spark(), source)
    columns = ["body"] if arguments.destination_topic else ["topic", "body"]
    writer = frame.select(*columns).writeStream.format("nsq").options(**sink)
    run_query(job, writer)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.destination_nsqd_tcp_address or arguments.destination_lookupd_http_address:
        return
    if not arguments.destination_topic:
        raise UsageError("--destination-nsqd-tcp-address or -lookupd-http-address is required")
    if arguments.destination_topic in split(arguments.topic).split(","):
        raise UsageError(f"{arguments.destination_topic} would be mirrored into itself, for ever")
