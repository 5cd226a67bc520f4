"""The user's program that is drilled: a stream from nsqd to Parquet, until it is killed.

``python -m tests.pipelines.drill.driver MASTER NSQD FOLDER MESSAGES_PER_BATCH``. The newest
progress of the source is always in the folder's ``figures.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.session import spark_session
from tests.pipelines.cluster.standalone import CLUSTER_SETTINGS
from tests.pipelines.settings import SETTINGS
from tests.pipelines.source.driver import begin

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.1


def main(master: str, nsqd_address: str, folder: str, messages: str) -> None:
    """Run until something kills it, or fail as the query does."""
    more = {} if master.startswith("local") else CLUSTER_SETTINGS
    # A report also when there is nothing to do: the receiver's figures are in it.
    reports = {"spark.sql.streaming.noDataProgressEventInterval": "200"}
    session = spark_session("drill", master, **SETTINGS, **more, **reports)
    options = {"maxMessagesPerTrigger": messages, "minPartitions": "2"}
    query = begin(session, nsqd_address, folder, options)
    while query.isActive:
        write_figures(query, Path(folder))
        time.sleep(POLL_S)
    query.awaitTermination()


def write_figures(query: StreamingQuery, folder: Path) -> None:
    """What the source said last, for who looks on; whole at any time."""
    progress = query.lastProgress
    told: Any = progress.sources[0].latestOffset if progress else None
    figures = json.loads(told) if told else None
    if figures:
        draft = folder / "figures.json.tmp"
        draft.write_text(json.dumps(figures), encoding="utf-8")
        os.replace(draft, folder / "figures.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
