"""A user's program whose session is a Connect server's: sources and sink. Prints what it found.

python -m tests.pipelines.connect.program REMOTE TCP HTTP FOLDER MESSAGES
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.errors import SetupError
from pipelines.metrics import serve_metrics
from pipelines.session import spark_session
from tests.pipelines.source.publishing import wait_until
from tests.processes import free_address, split_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LIMIT_S = 180


def main(remote: str, tcp: str, http: str, folder: str, messages: int) -> None:
    """Each part of what docs/pipelines.md says of Connect."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    log = {"mode": "log", "topic": "t", "nsqd.http.addresses": http, "startingOffsets": "earliest"}
    receiver = {
        "topic": "t",
        "channel": "received",
        "nsqd.tcp.addresses": tcp,
        "walPath": f"{folder}/wal",
    }
    found: dict[str, Any] = {"kind": type(spark).__module__}

    rows = spark.range(messages).selectExpr("cast(id AS STRING) AS body")
    sink = rows.write.format("nsq").mode("append").option("topic", "t")
    sink.option("nsqd.tcp.addresses", tcp).save()

    def history() -> int:
        return spark.read.format("nsq").options(**log).load().count()

    wait_until(lambda: history() == messages)
    found["history"] = history()

    _, port = split_address(free_address())
    with serve_metrics(spark, port):
        for name, options in (("log", log | {"channel": "followed"}), ("receiver", receiver)):
            writer = stream(spark, options, f"{folder}/{name}")
            run(writer.format("parquet").option("path", f"{folder}/{name}/table").queryName(name))
            table = spark.read.parquet(f"{folder}/{name}/table")
            bodies = table.selectExpr("cast(body AS STRING) AS body").collect()
            found[name] = sorted(int(row.body) for row in bodies)
        found["metrics"] = metrics(port, "log", messages)

    def store(frame: DataFrame, number: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/batches/{number}")

    run(stream(spark, log, f"{folder}/foreach").foreachBatch(store))
    found["batches"] = spark.read.parquet(f"{folder}/batches/*").count()

    try:
        spark.read.format("nsq").options(**log, startingTimestam="5").load().count()
    except PySparkException as error:
        found["wrong option"] = str(error)
    try:
        spark_session("mine")
    except SetupError as error:
        found["spark_session"] = str(error)
    spark.stop()
    print(json.dumps(found))


def stream(spark: SparkSession, options: Mapping[str, str], folder: str) -> DataStreamWriter:
    """A stream of what there is."""
    writer = spark.readStream.format("nsq").options(**options).load().writeStream
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(availableNow=True)


def run(writer: DataStreamWriter) -> None:
    """To its end."""
    query = writer.start()
    assert query.awaitTermination(LIMIT_S), "the query does not end"


def metrics(port: int, query: str, messages: int) -> bool:
    """Whether the listener, which is called a little later, has counted the rows of a query."""
    wanted = f'nsq_query_rows_total{{query="{query}"}} {float(messages)}'

    def has_counted() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return wanted in answer.read().decode().splitlines()

    wait_until(has_counted)
    return True


if __name__ == "__main__":
    told_remote, told_tcp, told_http, told_folder, told_messages = sys.argv[1:]
    main(told_remote, told_tcp, told_http, told_folder, int(told_messages))
