"""A user's program: a stream from nsqd to Parquet, until it is killed.

``python -m tests.pipelines.source.driver NSQD FOLDER``
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelines.session import spark_session
from tests.pipelines.settings import MASTER, SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def begin(
    spark: SparkSession,
    nsqd_address: str,
    folder: str,
    options: Mapping[str, str],
    *,
    now: bool = False,
) -> StreamingQuery:
    """Start the stream; log, checkpoint and table are below the folder.

    Without an address it reads the logs that receivers write to ``logs`` there.
    """
    stream = spark.readStream.format("nsq").options(**options)
    if nsqd_address:
        stream = (
            stream.option("topic", "t")
            .option("channel", "c")
            .option("nsqd.tcp.addresses", nsqd_address)
            .option("walPath", f"{folder}/wal")
            .option("availableNowIdle", "1s")
            .option("msgTimeoutMs", "5000")
        )
    else:
        stream = stream.option("walPath", f"{folder}/logs/*")
    frame = stream.load()
    writer = frame.writeStream.format("parquet").option("path", f"{folder}/table")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(availableNow=True) if now else writer).start()


if __name__ == "__main__":
    session = spark_session("driver", MASTER, **SETTINGS)
    begin(session, sys.argv[1], sys.argv[2], {"maxMessagesPerTrigger": "2000"}).awaitTermination()
