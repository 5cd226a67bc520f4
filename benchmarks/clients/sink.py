"""The sink of the Spark pipelines, without Spark: Arrow batches go in, confirmed messages come out.

    python -m benchmarks.clients.sink host:port topic messages direct|staged

Staged, the time has both: the task's files, and their publication. They are where TMPDIR says.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator

import pyarrow as pa

from pipelines.sink.options import SinkOptions
from pipelines.sink.writers import NsqStagedWriter, NsqWriter

# Spark's own batches.
BATCH = 10_000
SIZE = 100


def batches(messages: int) -> Iterator[pa.RecordBatch]:
    """So many rows."""
    bodies = [b"%0*d" % (SIZE, number) for number in range(BATCH)]
    whole = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    for first in range(0, messages, BATCH):
        yield whole.slice(0, min(BATCH, messages - first))


def main(address: str, topic: str, messages: int, mode: str) -> None:
    """Publish, and print the figures."""
    told = {"nsqd.tcp.addresses": address, "topic": topic, "mode": mode}
    rows = list(batches(messages))
    began_s, cpu_s = time.perf_counter(), time.process_time()
    if mode == "staged":
        with tempfile.TemporaryDirectory() as folder:
            writer = NsqStagedWriter(SinkOptions.read(told | {"stagePath": folder}))
            writer.commit([writer.write(iter(rows))], 0)
            done = messages
    else:
        done = NsqWriter(SinkOptions.read(told)).write(iter(rows)).rows
    seconds = time.perf_counter() - began_s
    figures = {
        "messages": done,
        "timed_messages": done,
        "timed_seconds": seconds,
        "seconds": seconds,
        "generator_cpu_seconds": time.process_time() - cpu_s,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
