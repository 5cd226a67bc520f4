"""The Spark pipelines whole: a session in ``local[2]``, warm, then one query.

    python -m benchmarks.clients.spark KIND TCP HTTP topic channel messages

KIND: ``through`` from nsqd to a noop sink, ``log-N`` the same with mode=log and N partitions,
``sink`` a batch write to nsqd, ``latency`` and ``latency-1s`` from publishing to foreachBatch with
the default trigger and one of a second. Logs and checkpoints are where TMPDIR says.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SIZE: Final = 100
PUBLISH_S: Final = 0.01
# So many are not counted, as batches begin to follow each other.
WARM: Final = 500
WARM_TOPIC: Final = "warm"
LOG: Final = "log-"
"""The kind ``log-4`` has four partitions."""
LIMIT_S: Final = 150.0


def main(kind: str, tcp: str, http: str, topic: str, channel: str, messages: int) -> None:
    """Print the figures of one run."""
    reports = {"spark.sql.streaming.noDataProgressEventInterval": "100"}
    settings = {"spark.sql.shuffle.partitions": "2", **reports}
    cores = max(2, int(kind.removeprefix(LOG))) if kind.startswith(LOG) else 2
    spark = spark_session("benchmark", f"local[{cores}]", **settings)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        sink(spark, tcp, WARM_TOPIC, 10_000)
        if kind == "sink":
            figures = sink(spark, tcp, topic, messages)
        else:
            warm = _noop(_stream(spark, tcp, WARM_TOPIC, channel, f"{folder}/warm"), folder)
            warm.trigger(availableNow=True).start().awaitTermination()
            frame = _stream(spark, tcp, topic, channel, f"{folder}/wal")
            if kind.startswith(LOG):
                figures = from_log(spark, (http, topic, channel), kind, folder)
            elif kind == "through":
                figures = through(frame, f"{folder}/through", (http, topic, channel), messages)
            else:
                every = "1 second" if kind == "latency-1s" else "0 seconds"
                figures = latency(frame, folder, (http, topic), messages, every)
        spark.stop()
    whole = {"seconds": figures["timed_seconds"], "generator_cpu_seconds": time.process_time()}
    print(json.dumps({"messages": messages} | whole | figures), flush=True)


def _stream(spark: SparkSession, tcp: str, topic: str, channel: str, log: str) -> DataFrame:
    reader = spark.readStream.format("nsq").option("topic", topic).option("channel", channel)
    return reader.option("nsqd.tcp.addresses", tcp).option("walPath", log).load()


def _noop(frame: DataFrame, folder: str) -> DataStreamWriter:
    writer = frame.writeStream.format("noop")
    return writer.option("checkpointLocation", f"{folder}/checkpoint")


def sink(spark: SparkSession, tcp: str, topic: str, messages: int) -> dict[str, Any]:
    """From the call to its return, when nsqd has confirmed all."""
    frame = spark.range(0, messages, numPartitions=2).selectExpr(
        f"cast(lpad(cast(id AS STRING), {SIZE}, '0') AS BINARY) AS body"
    )
    began_s = time.perf_counter()
    frame.write.format("nsq").mode("append").option("nsqd.tcp.addresses", tcp).option(
        "topic", topic
    ).save()
    return {"timed_messages": messages, "timed_seconds": time.perf_counter() - began_s}


def through(
    frame: DataFrame, folder: str, where: tuple[str, str, str], messages: int
) -> dict[str, Any]:
    """The channel is paused until the receiver is connected; from then to the last batch's end."""
    _pause(where, "pause")
    query = _noop(frame, folder).start()
    reports: dict[int, Any] = {}
    deadline_s = time.monotonic() + LIMIT_S
    try:
        while not _connections(query):
            _check(query, deadline_s)
            time.sleep(0.05)
        began_s = time.time()
        began_cpu_s = cpu_s()
        _pause(where, "unpause")
        while sum(one.numInputRows for one in reports.values()) < messages:
            _check(query, deadline_s)
            reports |= {one.batchId: one for one in query.recentProgress if one.numInputRows}
            time.sleep(0.05)
        took_cpu_s = cpu_s() - began_cpu_s
    finally:
        query.stop()
    rows = sum(one.numInputRows for one in reports.values())
    if rows != messages:
        raise SystemExit(f"{rows} rows instead of {messages}")
    last = reports[max(reports)]
    seconds = _start_s(last) + last.batchDuration / 1000 - began_s
    return {"timed_messages": rows, "timed_seconds": seconds, "spark_cpu_seconds": took_cpu_s}


def from_log(
    spark: SparkSession, where: tuple[str, str, str], kind: str, folder: str
) -> dict[str, Any]:
    """All messages that there are, in one microbatch from the log of nsqd, with its channel."""
    http, topic, channel = where
    options = {
        "mode": "log",
        "topic": topic,
        "channel": channel,
        "nsqd.http.addresses": http,
        "startingOffsets": "earliest",
        "minPartitions": kind.removeprefix(LOG),
        "maxRecordsPerPartition": "1000000000",
    }
    frame = spark.readStream.format("nsq").options(**options).load()
    began_cpu_s = cpu_s()
    query = _noop(frame, f"{folder}/log").trigger(availableNow=True).start()
    query.awaitTermination()
    took_cpu_s = cpu_s() - began_cpu_s
    reports = [one for one in query.recentProgress if one.numInputRows]
    return {
        "timed_messages": sum(one.numInputRows for one in reports),
        "timed_seconds": sum(one.batchDuration for one in reports) / 1000,
        "spark_cpu_seconds": took_cpu_s,
    }


def cpu_s() -> float:
    """CPU seconds of this process and all below it: Java, and Spark's Python processes."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        # user, system, and those of children that have ended
        ticks[number] = sum(map(int, fields[11:15]))
    total, below = 0, [os.getpid()]
    while below:
        number = below.pop()
        total += ticks[number]
        below += [child for child, parent in parents.items() if parent == number]
    return total / os.sysconf("SC_CLK_TCK")


def _pause(where: tuple[str, str, str], command: str) -> None:
    http, topic, channel = where
    url = f"http://{http}/channel/{command}?topic={topic}&channel={channel}"
    urllib.request.urlopen(url, b"", timeout=10).close()


def _connections(query: StreamingQuery) -> int:
    progress = query.lastProgress
    told = progress.sources[0].latestOffset if progress else None
    figures = json.loads(told) if told else None
    return int(figures.get("connections", 0)) if figures else 0


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
    query = writer.option("checkpointLocation", f"{folder}/latency").start()
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
    told_kind, told_tcp, told_http, told_topic, told_channel, told_messages = sys.argv[1:]
    main(told_kind, told_tcp, told_http, told_topic, told_channel, int(told_messages))
