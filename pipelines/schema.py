"""The columns of a message, for Arrow and for Spark.

The two schemas are equal. Spark does not cast Arrow batches, so the types match exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ARROW_SCHEMA", "COLUMNS", "SPARK_SCHEMA", "STORED_SCHEMA", "stored_columns"]

STORED_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""The columns of a segment; it has the other ones once for many messages."""

ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("channel", pa.string(), nullable=False),
        # host:port of the nsqd; together with the topic and the id it identifies a message
        pa.field("nsqd", pa.string(), nullable=False),
        *STORED_SCHEMA,
    ]
)
"""``timestamp``: time of publishing, microseconds. ``attempts``: 1 at the first delivery."""

SPARK_SCHEMA: Final = (
    "topic STRING NOT NULL, channel STRING NOT NULL, nsqd STRING NOT NULL, id STRING NOT NULL, "
    "timestamp TIMESTAMP NOT NULL, attempts INT NOT NULL, body BINARY NOT NULL"
)
"""The same schema in SQL."""

COLUMNS: Final = tuple(ARROW_SCHEMA.names)


def stored_columns(
    ids: Sequence[bytes],
    timestamps_ns: Sequence[int],
    attempts: Sequence[int],
    bodies: Sequence[bytes],
) -> list[pa.Array]:
    """The columns of `STORED_SCHEMA`, from lists of equal length."""
    timestamps_us = pc.divide(pa.array(timestamps_ns, pa.int64()), 1000)
    return [
        pa.array(_texts(ids), pa.string()),
        timestamps_us.cast(pa.timestamp("us", tz="UTC")),
        pa.array(attempts, pa.int32()),
        pa.array(bodies, pa.binary()),
    ]


def _texts(ids: Sequence[bytes]) -> Sequence[bytes | str]:
    """ASCII bytes, which Arrow accepts as strings; ids that no nsqd would send are escaped."""
    if b"".join(ids).isascii():
        return ids
    return [id_.decode("ascii", "backslashreplace") for id_ in ids]
