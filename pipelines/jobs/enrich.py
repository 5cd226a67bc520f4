"""enrich: messages joined with a static table, by SQL."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.errors import FolderError, UsageError
from pipelines.jobs.arguments import (
    add_destination,
    add_session,
    add_source,
    pairs,
    sink_options,
    source_options,
)
from pipelines.jobs.delta import DELTA_URLS, DeltaTable
from pipelines.jobs.job import Job, persisted, publish_rows, read_messages, run_query
from pipelines.jobs.table import add_output, existing_table, output_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "enrich"
HELP: Final = "messages joined with a static table, by SQL"
EXAMPLE: Final = """\
mkdir -p run/enrich
printf 'user,country\\nanna,IT\\nbert,DE\\n' > run/enrich/users.csv
python -m pipelines enrich --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --table=run/enrich/users.csv --checkpoint=run/enrich/state \\
    --destination-topic=orders_by_country --once \\
    --sql="SELECT m.id, m.timestamp, t.country, CAST(m.body AS STRING) AS message
           FROM messages m LEFT JOIN static t
           ON t.user = get_json_object(CAST(m.body AS STRING), '$.user')"
"""
_FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_source(parser, NAME, "1s")
    group = parser.add_argument_group("join")
    group.add_argument(
        "--table",
        metavar="PATH",
        required=True,
        help="the static table, a file or folder: .csv (with a header), .json, .orc, else Delta or "
        "Parquet",
    )
    group.add_argument(
        "--table-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a Spark option for it",
    )
    group.add_argument(
        "--sql",
        metavar="QUERY",
        required=True,
        help="query of the views messages and static; rows without a column body become JSON",
    )
    add_output(group, "folder of a table for the result")
    add_destination(
        parser, topic_help="topic for the result", addresses_help=" (default: the source's)"
    )
    add_session(parser)


def run(job: Job) -> None:
    """Run until stopped. Raises UsageError, FolderError, and Spark's exceptions."""
    arguments = job.arguments
    if not arguments.output and not arguments.destination_topic:
        raise UsageError("--output or --destination-topic (or both) is required")
    options = source_options(arguments, job.checkpoint())
    sink = None
    if arguments.destination_topic:
        sink = sink_options(arguments, arguments.destination_topic)
    table = output_table(arguments)
    spark = job.spark()
    _static_table(spark, arguments).createOrReplaceTempView("static")
    read_messages(spark, options).createOrReplaceTempView("messages")

    def write(frame: DataFrame, batch: int) -> None:
        with persisted(frame):
            if table is not None:
                table.write(frame, batch)
            if sink is not None:
                publish_rows(as_messages(frame), sink)

    run_query(
        job,
        spark.sql(arguments.sql).writeStream.foreachBatch(write),
        table=table,
    )


def as_messages(frame: DataFrame) -> DataFrame:
    """The columns ``body`` and ``defer_ms``, if present; else each row as a JSON object."""
    from pyspark.sql import functions as f

    if "body" in frame.columns:
        return frame.select([name for name in ("body", "defer_ms") if name in frame.columns])
    return frame.select(f.to_json(f.struct("*")).alias("body"))


def _static_table(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    from pipelines.jobs.deltasource import read_table

    text = arguments.table
    format_ = _FORMATS.get(Path(text).suffix, "parquet")
    is_url = "://" in text
    if format_ == "parquet" and (not is_url or text.startswith(DELTA_URLS)):
        table = existing_table(arguments, "--table", text)
        if isinstance(table, DeltaTable):
            return read_table(spark, table)
    if not is_url and not Path(text).exists():
        raise FolderError(f"--table: {text} does not exist")
    options = {"header": "true"} if format_ == "csv" else {}
    options |= pairs("--table-option", arguments.table_option)
    location = text if is_url else str(Path(text).absolute())
    return spark.read.format(format_).options(**options).load(location)
