"""A stream reader's process as Spark has it: the main thread waits for the next question.

``python -m tests.pipelines.source.reader_process NSQD WAL MESSAGES``: says ``ready`` when so many
messages are in the log.
"""

from __future__ import annotations

import sys
import time

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipelines.source.options import StreamOptions
from pipelines.source.stream import NsqStreamReader

if __name__ == "__main__":
    reader = NsqStreamReader(
        StreamOptions.read(
            {
                "topic": "t",
                "channel": "c",
                "nsqd.tcp.addresses": sys.argv[1],
                "walPath": sys.argv[2],
            }
        )
    )
    start = reader.initialOffset()
    while reader.latestOffset(start, ReadAllAvailable())["lsn"] < int(sys.argv[3]):
        time.sleep(0.02)
    print("ready", flush=True)
    try:
        sys.stdin.read()
    finally:
        reader.stop()
