"""A program that has Spark tell all that it knows of a stream and a batch read: `test_secured`.

python -m tests.pipelines.topiclog.telling FOLDER < OPTIONS
"""

from __future__ import annotations

import json
import sys

from pipelines.session import spark_session
from tests.pipelines.settings import MASTER, SETTINGS


def main(folder: str, options: dict[str, str]) -> None:
    """Print plans and reports; Spark writes its log, events and a checkpoint."""
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{folder}/events"}
    spark = spark_session("telling", MASTER, **SETTINGS, **events, **{"spark.log.level": "INFO"})
    frame = spark.readStream.format("nsq").options(**options).load()
    print(frame._jdf.queryExecution().toString())
    frame.explain(mode="formatted")
    writer = frame.writeStream.format("parquet").option("path", f"{folder}/table")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    query.explain(extended=True)
    print(*(report.json for report in query.recentProgress))

    history = spark.read.format("nsq").options(**options).load()
    for mode in ("extended", "formatted", "cost", "codegen"):
        history.explain(mode=mode)
    print(history, history._jdf.queryExecution().toString(), history.inputFiles())
    print("rows", history.count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin))
