"""The columns of a message, for Arrow and for Spark.

Both say the same; Spark does not cast Arrow batches, so they are of exactly these types.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["ARROW_SCHEMA", "COLUMNS", "SPARK_SCHEMA", "STORED_SCHEMA"]

STORED_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""What a segment has for each message; the other columns are said once for many."""

ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("channel", pa.string(), nullable=False),
        # host:port of the nsqd; with the topic and the id it names a message
        pa.field("nsqd", pa.string(), nullable=False),
        *STORED_SCHEMA,
    ]
)
"""``timestamp``: of publishing, in microseconds. ``attempts``: 1 at the first delivery."""

SPARK_SCHEMA: Final = (
    "topic STRING NOT NULL, channel STRING NOT NULL, nsqd STRING NOT NULL, id STRING NOT NULL, "
    "timestamp TIMESTAMP NOT NULL, attempts INT NOT NULL, body BINARY NOT NULL"
)
"""The same in Spark's words."""

COLUMNS: Final = tuple(ARROW_SCHEMA.names)
