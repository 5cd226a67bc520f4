"""deadletter: messages with too many attempts, to a table and a topic.

nsqd counts attempts for each channel. So the job takes the place of the failing consumers on their
channel. It receives all messages of the channel, and the others need a topic of their own.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from pipelines.errors import UsageError
from pipelines.jobs.archive import PARTITION_BY, with_date
from pipelines.jobs.arguments import (
    add_destination,
    add_session,
    add_source,
    sink_options,
    source_options,
)
from pipelines.jobs.job import Job, persisted, publish_rows, read_messages, run_query
from pipelines.jobs.table import add_output, output_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "deadletter"
HELP: Final = "messages with too many attempts, to a table and a topic"
EXAMPLE: Final = """\
python -m pipelines deadletter --topic=orders --channel=billing --attempts=5 \\
    --nsqd-tcp-address=127.0.0.1:4150 --checkpoint=run/dead/state --output=run/dead/table \\
    --rest-topic=orders_again --once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, "", "1s")
    group = parser.add_argument_group("dead messages, and the others")
    group.add_argument(
        "--attempts",
        type=int,
        default=5,
        help="a message with more attempts on the channel is dead (default: %(default)s)",
    )
    add_output(group, "folder of a table for dead messages")
    group.add_argument("--rest-topic", metavar="TOPIC", help="topic for the other messages")
    group.add_argument("--drop-rest", action="store_true", help="discard the other messages")
    add_destination(
        parser, topic_help="topic for dead messages", addresses_help=" (default: the source's)"
    )
    add_session(parser)


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and Spark's exceptions."""
    from pyspark.sql import functions as f

    from pipelines.topiclog.options import is_log_mode

    arguments = job.arguments
    _check(arguments)
    options = source_options(arguments, job.checkpoint())
    if is_log_mode(options):
        raise UsageError("mode=log has no attempts: the log has each message once")
    dead_sink, rest_sink = (
        sink_options(arguments, topic) if topic else None
        for topic in (arguments.destination_topic, arguments.rest_topic)
    )
    table = output_table(arguments, PARTITION_BY)

    def write(frame: DataFrame, batch: int) -> None:
        is_dead = f.col("attempts") > arguments.attempts
        with persisted(frame):
            dead = frame.where(is_dead)
            if table is not None:
                table.write(with_date(dead), batch)
            if dead_sink is not None:
                publish_rows(dead.select("body"), dead_sink)
            if rest_sink is not None:
                publish_rows(frame.where(~is_dead).select("body"), rest_sink)

    run_query(
        job,
        read_messages(job.spark(), options).writeStream.foreachBatch(write),
        table=table,
    )


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.channel:
        raise UsageError("--channel is required: the channel of the failing consumers")
    if arguments.attempts < 1:
        raise UsageError("--attempts must be at least 1")
    if not arguments.output and not arguments.destination_topic:
        raise UsageError("--output or --destination-topic (or both) is required")
    if bool(arguments.rest_topic) == arguments.drop_rest:
        raise UsageError(
            "either --rest-topic or --drop-rest is required: the job gets all messages"
        )
