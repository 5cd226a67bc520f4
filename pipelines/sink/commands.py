"""Rows as commands: checks columns and values, then frames an Arrow column of bodies in bulk.

Rows of one topic become MPUBs, bounded by count and bytes. A row with a delay becomes a DPUB: nsqd
has no command for several deferred messages.

Spec: tcp-protocol, section 12 (PUB, MPUB, DPUB).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pipelines.errors import ColumnsError, RowsError
from pipelines.sink.options import CommandLimits
from trionsq.wire import commands
from trionsq.wire.names import is_valid_name

__all__ = ["VALID_COLUMNS", "CommandBatch", "check_batch", "check_schema", "command_batches"]

# Columns, in Spark's and in Arrow's types

VALID_COLUMNS: Final = (
    "valid are body (binary or string), topic (string; needed without the option topic) and "
    "defer_ms (byte, short, int or long)"
)

_SPARK_TYPES: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "defer_ms": ("tinyint", "smallint", "int", "bigint"),
}


def check_schema(schema: StructType, topic: str | None) -> None:
    """Check columns in Spark's types.

    Raises:
        ColumnsError: rows of these columns can't be messages; one line with all problems.
    """
    problems = []
    for field in schema.fields:
        type_name = field.dataType.simpleString()
        valid = _SPARK_TYPES.get(field.name)
        if valid is None:
            problems.append(f"{field.name} is unknown")
        elif type_name.partition(" ")[0] not in valid:
            problems.append(f"{field.name} is {type_name}")
    _raise_problems(problems, schema.fieldNames(), topic)


def check_batch(schema: pa.Schema, topic: str | None) -> None:
    """Check columns in Arrow's types, as `check_schema`."""
    is_valid = {
        "body": lambda type_: _is_text(type_) or pa.types.is_binary(type_) or _is_large(type_),
        "topic": _is_text,
        "defer_ms": pa.types.is_signed_integer,
    }
    problems = []
    for field in schema:
        if field.name not in is_valid:
            problems.append(f"{field.name} is unknown")
        elif not is_valid[field.name](field.type):
            problems.append(f"{field.name} is {field.type}")
    _raise_problems(problems, schema.names, topic)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_large(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(type_))


def _raise_problems(problems: list[str], names: list[str], topic: str | None) -> None:
    problems += [f"{name} occurs twice" for name in _SPARK_TYPES if names.count(name) > 1]
    if "body" not in names:
        problems.append("body is missing")
    if topic is None and "topic" not in names:
        problems.append("topic is missing")
    if problems:
        raise ColumnsError(f"columns of the nsq sink: {', '.join(problems)}; {VALID_COLUMNS}")


# Commands of a record batch

_SIZE_BYTES: Final = 4
_pack_head: Final = struct.Struct(">ii").pack
# nsqd answers each DPUB; this bounds the answers that are awaited together.
_MAX_DPUBS: Final = 200
# The offsets of Arrow's binary columns end at 2 GiB.
_MAX_FRAMED_BYTES: Final = 1 << 30


class CommandBatch(NamedTuple):
    """Commands that are sent, confirmed and retried as a whole: one MPUB, or several DPUBs.

    `rows`: the number of messages. `commands`: nsqd answers each.
    """

    topic: str
    rows: int
    commands: list[bytes]


def command_batches(
    batch: pa.RecordBatch, topic: str | None, limits: CommandLimits
) -> Iterator[CommandBatch]:
    """The commands for all rows of a record batch whose columns were checked.

    Args:
        batch: with the column ``body`` and optionally ``topic`` and ``defer_ms``.
        topic: of all rows; it overrides the column.
        limits: of a command, and of a message.

    Raises:
        RowsError: a row can't be a message. Nothing was yielded.
    """
    if not batch.num_rows:
        return
    bodies = batch.column("body")
    _check_bodies(bodies, limits)
    topics = None if topic is not None else batch.column("topic")
    if topics is not None:
        _check_topics(topics)
    delays = _delays_of(batch)
    if delays is not None:
        is_deferred = pc.greater(delays, 0)
        yield from _dpubs(
            bodies.filter(is_deferred),
            None if topics is None else topics.filter(is_deferred),
            topic,
            delays.filter(is_deferred),
            limits,
        )
        is_immediate = pc.invert(is_deferred)
        bodies = bodies.filter(is_immediate)
        topics = None if topics is None else topics.filter(is_immediate)
    for name, topic_bodies in _by_topic(bodies, topics, topic):
        yield from _mpubs(name, topic_bodies, limits)


def _check_bodies(bodies: pa.Array, limits: CommandLimits) -> None:
    if bodies.null_count:
        raise RowsError(f"body is null in {bodies.null_count} rows: a message needs a body")
    sizes = pc.min_max(pc.binary_length(bodies)).as_py()
    if not sizes["min"]:
        raise RowsError("body is empty in some rows: nsqd accepts no empty message")
    if sizes["max"] > limits.max_message_bytes:
        raise RowsError(
            f"a body has {sizes['max']} bytes, maxMessageBytes is {limits.max_message_bytes}: "
            "raise it, and nsqd's --max-msg-size"
        )


def _check_topics(topics: pa.Array) -> None:
    if topics.null_count:
        raise RowsError(f"topic is null in {topics.null_count} rows, and the option topic is unset")
    for name in pc.unique(topics).to_pylist():
        if not is_valid_name(name.encode("utf-8", "surrogatepass")):
            raise RowsError(
                f"{name!r} is not a valid topic name: 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', "
                "optionally followed by #ephemeral"
            )


def _delays_of(batch: pa.RecordBatch) -> pa.Array | None:
    """Milliseconds, 0 for null; None if no row is deferred."""
    if "defer_ms" not in batch.schema.names:
        return None
    delays = pc.fill_null(batch.column("defer_ms").cast(pa.int64()), 0)
    bounds = pc.min_max(delays).as_py()
    if bounds["min"] < 0 or bounds["max"] > commands.MAX_DELAY_MS:
        invalid = bounds["min"] if bounds["min"] < 0 else bounds["max"]
        raise RowsError(f"defer_ms must be 0 to {commands.MAX_DELAY_MS}, not {invalid}")
    return delays if bounds["max"] else None


def _by_topic(
    bodies: pa.Array, topics: pa.Array | None, topic: str | None
) -> Iterator[tuple[str, pa.Array]]:
    """The bodies of each topic."""
    if not len(bodies):
        return
    if topic is not None or topics is None:
        yield topic or "", bodies
        return
    if len(pc.unique(topics)) == 1:
        yield topics[0].as_py(), bodies
        return
    order = pc.sort_indices(topics)
    bodies = bodies.take(order)
    runs = pc.run_end_encode(topics.take(order))
    start = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, bodies.slice(start, end - start)
        start = end


def _mpubs(topic: str, bodies: pa.Array, limits: CommandLimits) -> Iterator[CommandBatch]:
    if len(bodies) > 1 and bodies.nbytes + _SIZE_BYTES * len(bodies) > _MAX_FRAMED_BYTES:
        half = len(bodies) // 2
        yield from _mpubs(topic, bodies.slice(0, half), limits)
        yield from _mpubs(topic, bodies.slice(half), limits)
        return
    framed = _framed(bodies)
    _, ends_buffer, data_buffer = framed.buffers()
    ends = memoryview(ends_buffer).cast("i")
    data = memoryview(data_buffer)
    line = b"MPUB %b\n" % topic.encode()
    count, first = len(bodies), 0
    while first < count:
        # The body of an MPUB begins with the number of its messages.
        max_end = ends[first] + limits.max_bytes - _SIZE_BYTES
        high = min(first + limits.max_messages, count)
        # At least one message, even if it alone exceeds the limit.
        last = max(bisect_right(ends, max_end, first + 1, high + 1) - 1, first + 1)
        messages = data[ends[first] : ends[last]]
        head = _pack_head(len(messages) + _SIZE_BYTES, last - first)
        yield CommandBatch(topic, last - first, [b"".join((line, head, messages))])
        first = last


def _framed(bodies: pa.Array) -> pa.Array:
    """Each body after its size, four bytes big-endian: an MPUB is a slice of the buffer.

    The result starts at the beginning of its buffers.
    """
    bodies = bodies.cast(pa.binary())
    sizes = pc.binary_length(bodies)
    numbers = array("i")
    start = sizes.offset * numbers.itemsize
    numbers.frombytes(memoryview(sizes.buffers()[1])[start:][: len(sizes) * numbers.itemsize])
    numbers.byteswap()
    prefixes = pa.Array.from_buffers(
        pa.binary(_SIZE_BYTES), len(bodies), [None, pa.py_buffer(numbers)]
    ).cast(pa.binary())
    framed = pc.binary_join_element_wise(prefixes, bodies, pa.scalar(b"", pa.binary()))
    assert not framed.offset
    return framed


def _dpubs(
    bodies: pa.Array,
    topics: pa.Array | None,
    topic: str | None,
    delays: pa.Array,
    limits: CommandLimits,
) -> Iterator[CommandBatch]:
    for name, rows in _by_topic(pa.array(range(len(bodies)), pa.int64()), topics, topic):
        dpubs: list[bytes] = []
        nbytes = 0
        topic_bodies = bodies.take(rows).cast(pa.binary()).to_pylist()
        for body, delay_ms in zip(topic_bodies, delays.take(rows).to_pylist(), strict=True):
            if dpubs and (len(dpubs) == _MAX_DPUBS or nbytes + len(body) > limits.max_bytes):
                yield CommandBatch(name, len(dpubs), dpubs)
                dpubs, nbytes = [], 0
            dpubs.append(commands.publish_deferred(name, delay_ms, body))
            nbytes += len(body)
        yield CommandBatch(name, len(dpubs), dpubs)
