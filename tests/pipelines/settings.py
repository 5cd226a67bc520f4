"""Spark's settings for tests: small, and quick to start."""

from typing import Final

MASTER: Final = "local[2,3]"
"""Two cores; three attempts for a task, as a cluster has and ``local[2]`` has not."""

SETTINGS: Final = {
    "spark.driver.memory": "1g",
    # A third less of processor time for what runs so shortly.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
