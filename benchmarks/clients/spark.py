"""The Spark pipelines whole: a session in ``local[2]``, warm, then one query.

    python -m benchmarks.clients.spark KIND TCP HTTP topic channel messages

KIND: ``through`` from nsqd to a noop sink, ``sink`` a batch write to nsqd, ``latency`` and
``latency-1s`` from publishing to foreachBatch with the default trigger and one of a second. Logs
and checkpoints are where TMPDIR says.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pipelines.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SIZE: Final = 100
PUBLISH_S: Final = 0.01
# Before this many messages are there, Spark compiles what it does.
WARM: Final = 500
LIMIT_S: Final = 150.0


def main(kind: str, tcp: str, http: str, topic: str, channel: str, messages: int) -> None:
    """Print the figures of one run."""
    spark = spark_session("benchmark", "local[2]", **{"spark.sql.shuffle.partitions": "2"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if kind == "sink":
            figures = sink(spark, tcp, topic, messages)
        else:
            frame = (
                spark.readStream.format("nsq")
                .option("topic", topic)
                .option("channel", channel)
                .option("nsqd.tcp.addresses", tcp)
                .option("walPath", f"{folder}/wal")
                .load()
            )
            if kind == "through":
                figures = through(frame, folder, messages)
            else:
                every = "1 second" if kind == "latency-1s" else "0 seconds"
                figures = latency(frame, folder, (http, topic), messages, every)
        spark.stop()
    whole = {"seconds": figures["timed_seconds"], "generator_cpu_seconds": time.process_time()}
    print(json.dumps({"messages": messages} | whole | figures), flush=True)


def sink(spark: SparkSession, tcp: str, topic: str, messages: int) -> dict[str, Any]:
    """From the call to its return, when nsqd has confirmed all; Python's workers run already."""
    frame = spark.range(0, messages, numPartitions=2).selectExpr(
        f"cast(lpad(cast(id AS STRING), {SIZE}, '0') AS BINARY) AS body"
    )
    frame.limit(1000).mapInArrow(lambda batches: batches, frame.schema).collect()
    began_s = time.perf_counter()
    frame.write.format("nsq").mode("append").option("nsqd.tcp.addresses", tcp).option(
        "topic", topic
    ).save()
    return {"timed_messages": messages, "timed_seconds": time.perf_counter() - began_s}


def through(frame: DataFrame, folder: str, messages: int) -> dict[str, Any]:
    """From the start of the first batch that has rows to the end of the last.

    The rows of the first came before, so they do not count; the rest was received meanwhile, too.
    """
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    reports: dict[int, Any] = {}
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while sum(one.numInputRows for one in reports.values()) < messages:
            _check(query, deadline_s)
            reports |= {one.batchId: one for one in query.recentProgress if one.numInputRows}
            time.sleep(0.05)
    finally:
        query.stop()
    first, last = reports[min(reports)], reports[max(reports)]
    rows = sum(one.numInputRows for one in reports.values())
    if rows != messages:
        raise SystemExit(f"{rows} rows instead of {messages}")
    seconds = _start_s(last) + last.batchDuration / 1000 - _start_s(first)
    return {"timed_messages": rows - first.numInputRows, "timed_seconds": seconds}


def latency(
    frame: DataFrame, folder: str, where: tuple[str, str], messages: int, every: str
) -> dict[str, Any]:
    """100 messages a second, each with its time; when foreachBatch has it, it has arrived."""
    late_s: list[float] = []

    def arrive(batch: DataFrame, _number: int) -> None:
        bodies = [bytes(row.body) for row in batch.select("body").collect()]
        now_s = time.time()
        late_s.extend(now_s - float(body) for body in bodies)

    writer = frame.writeStream.foreachBatch(arrive).trigger(processingTime=every)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    total = WARM + messages
    threading.Thread(target=_publish, args=(*where, total), daemon=True).start()
    began_s = time.monotonic()
    try:
        while len(late_s) < total:
            _check(query, began_s + LIMIT_S)
            time.sleep(0.05)
    finally:
        query.stop()
    cuts = statistics.quantiles(late_s[WARM:], n=100)
    points = {"p50": cuts[49] * 1e6, "p95": cuts[94] * 1e6}
    seconds = time.monotonic() - began_s
    return {"timed_messages": messages, "timed_seconds": seconds, "latency_us": points}


def _publish(http: str, topic: str, count: int) -> None:
    began_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_s + number * PUBLISH_S - time.monotonic()))
        body = f"{time.time():.6f}".encode()
        urllib.request.urlopen(f"http://{http}/pub?topic={topic}", body, timeout=10).close()


def _check(query: StreamingQuery, deadline_s: float) -> None:
    if not query.isActive:
        raise SystemExit(str(query.exception()))
    if time.monotonic() > deadline_s:
        raise SystemExit("it takes too long")


def _start_s(progress: Any) -> float:
    return datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    main(*sys.argv[1:6], int(sys.argv[6]))
