"""The columns that the sink takes, in Spark's and in Arrow's types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pipelines.sink.errors import ColumnsError

__all__ = ["VALID", "check_batch", "check_schema"]

VALID: Final = (
    "valid are body (binary or string), topic (string; needed without the option topic) and "
    "defer_ms (byte, short, int or long)"
)

_TYPES: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "defer_ms": ("tinyint", "smallint", "int", "bigint"),
}


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise ColumnsError, one line with all that is wrong, unless rows can be messages."""
    problems = []
    for field in schema.fields:
        told = field.dataType.simpleString()
        wanted = _TYPES.get(field.name)
        if wanted is None:
            problems.append(f"{field.name} is unknown")
        elif told.partition(" ")[0] not in wanted:
            problems.append(f"{field.name} is {told}")
    _conclude(problems, schema.fieldNames(), topic)


def check_batch(schema: pa.Schema, topic: str | None) -> None:
    """The same for Arrow's types."""
    fits = {
        "body": lambda kind: _is_text(kind) or pa.types.is_binary(kind) or _is_large_binary(kind),
        "topic": _is_text,
        "defer_ms": pa.types.is_signed_integer,
    }
    problems = []
    for field in schema:
        if field.name not in fits:
            problems.append(f"{field.name} is unknown")
        elif not fits[field.name](field.type):
            problems.append(f"{field.name} is {field.type}")
    _conclude(problems, schema.names, topic)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_large_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind))


def _conclude(problems: list[str], names: list[str], topic: str | None) -> None:
    problems += [f"{name} is there twice" for name in _TYPES if names.count(name) > 1]
    if "body" not in names:
        problems.append("body is missing")
    if topic is None and "topic" not in names:
        problems.append("topic is missing")
    if problems:
        raise ColumnsError(f"columns of the nsq sink: {', '.join(problems)}; {VALID}")
