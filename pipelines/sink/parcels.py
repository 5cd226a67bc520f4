"""Rows become commands, in bulk: an Arrow column of bodies is framed by Arrow, not row by row.

Rows of one topic go into MPUBs, bounded by count and bytes; a row with a delay is a DPUB, for nsqd
has no command for many of them.

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

from pipelines.sink.errors import RowsError
from pipelines.sink.options import Limits
from trionsq.wire import commands
from trionsq.wire.names import is_valid_name

__all__ = ["Parcel", "parcels_of"]

_SIZE_NBYTES: Final = 4
_pack_head: Final = struct.Struct(">ii").pack
# nsqd takes any number, but answers each; so many are sent together.
_DEFERRED_MAX: Final = 200
# Arrow's binary columns end at 2 GiB.
_FRAMED_NBYTES_MAX: Final = 1 << 30


class Parcel(NamedTuple):
    """What is sent, confirmed and repeated as a whole: one MPUB, or several DPUBs.

    `rows`: the messages in it. `commands`: each has one answer.
    """

    topic: str
    rows: int
    commands: list[bytes]


def parcels_of(batch: pa.RecordBatch, topic: str | None, limits: Limits) -> Iterator[Parcel]:
    """The commands for all rows of a batch; its columns were checked.

    Args:
        batch: columns ``body`` and, maybe, ``topic`` and ``defer_ms``.
        topic: of all rows, whatever the column says.
        limits: of a parcel, and of a message.

    Raises:
        RowsError: a row that can be no message. Nothing of the batch was yielded.
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
        later = pc.greater(delays, 0)
        some = None if topics is None else topics.filter(later)
        yield from _deferred(bodies.filter(later), some, topic, delays.filter(later), limits)
        at_once = pc.invert(later)
        bodies = bodies.filter(at_once)
        topics = None if topics is None else topics.filter(at_once)
    for name, some in _by_topic(bodies, topics, topic):
        yield from _published(name, some, limits)


# Checks


def _check_bodies(bodies: pa.Array, limits: Limits) -> None:
    if bodies.null_count:
        raise RowsError(f"body is null in {bodies.null_count} rows: a message has a body")
    sizes = pc.min_max(pc.binary_length(bodies)).as_py()
    if not sizes["min"]:
        raise RowsError("body is empty in some rows: nsqd takes no empty message")
    if sizes["max"] > limits.message_nbytes:
        raise RowsError(
            f"a body has {sizes['max']} bytes, maxMessageBytes is {limits.message_nbytes}: "
            "raise it, and nsqd's --max-msg-size"
        )


def _check_topics(topics: pa.Array) -> None:
    if topics.null_count:
        raise RowsError(f"topic is null in {topics.null_count} rows, and there is no option topic")
    for name in pc.unique(topics).to_pylist():
        if not is_valid_name(name.encode("utf-8", "surrogatepass")):
            raise RowsError(
                f"{name!r} is no name of a topic: 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', "
                "and maybe #ephemeral"
            )


def _delays_of(batch: pa.RecordBatch) -> pa.Array | None:
    """In milliseconds, null is 0; None if nothing is deferred."""
    if "defer_ms" not in batch.schema.names:
        return None
    delays = pc.fill_null(batch.column("defer_ms").cast(pa.int64()), 0)
    found = pc.min_max(delays).as_py()
    if found["min"] < 0 or found["max"] > commands.MAX_DELAY_MS:
        wrong = found["min"] if found["min"] < 0 else found["max"]
        raise RowsError(f"defer_ms must be 0 to {commands.MAX_DELAY_MS}, not {wrong}")
    return delays if found["max"] else None


# Commands


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


def _published(topic: str, bodies: pa.Array, limits: Limits) -> Iterator[Parcel]:
    """MPUBs."""
    if len(bodies) > 1 and bodies.nbytes + _SIZE_NBYTES * len(bodies) > _FRAMED_NBYTES_MAX:
        half = len(bodies) // 2
        yield from _published(topic, bodies.slice(0, half), limits)
        yield from _published(topic, bodies.slice(half), limits)
        return
    framed = _framed(bodies)
    _, ends_buffer, data_buffer = framed.buffers()
    ends = memoryview(ends_buffer).cast("i")
    data = memoryview(data_buffer)
    line = b"MPUB %b\n" % topic.encode()
    count, first = len(bodies), 0
    while first < count:
        # The body of an MPUB begins with the number of its messages.
        most = ends[first] + limits.nbytes - _SIZE_NBYTES
        high = min(first + limits.messages, count)
        # At least one, also when it is too large for company.
        last = max(bisect_right(ends, most, first + 1, high + 1) - 1, first + 1)
        messages = data[ends[first] : ends[last]]
        head = _pack_head(len(messages) + _SIZE_NBYTES, last - first)
        yield Parcel(topic, last - first, [b"".join((line, head, messages))])
        first = last


def _framed(bodies: pa.Array) -> pa.Array:
    """Each body with its size before it, four bytes big-endian: an MPUB is a slice of the buffer.

    The result begins at the start of its buffers.
    """
    bodies = bodies.cast(pa.binary())
    sizes = pc.binary_length(bodies)
    numbers = array("i")
    start = sizes.offset * numbers.itemsize
    numbers.frombytes(memoryview(sizes.buffers()[1])[start:][: len(sizes) * numbers.itemsize])
    numbers.byteswap()
    prefixes = pa.Array.from_buffers(
        pa.binary(_SIZE_NBYTES), len(bodies), [None, pa.py_buffer(numbers)]
    ).cast(pa.binary())
    framed = pc.binary_join_element_wise(prefixes, bodies, pa.scalar(b"", pa.binary()))
    assert not framed.offset
    return framed


def _deferred(
    bodies: pa.Array, topics: pa.Array | None, topic: str | None, delays: pa.Array, limits: Limits
) -> Iterator[Parcel]:
    """DPUBs."""
    for name, rows in _by_topic(pa.array(range(len(bodies)), pa.int64()), topics, topic):
        written: list[bytes] = []
        nbytes = 0
        some = bodies.take(rows).cast(pa.binary()).to_pylist()
        for body, delay_ms in zip(some, delays.take(rows).to_pylist(), strict=True):
            if written and (len(written) == _DEFERRED_MAX or nbytes + len(body) > limits.nbytes):
                yield Parcel(name, len(written), written)
                written, nbytes = [], 0
            written.append(commands.publish_deferred(name, delay_ms, body))
            nbytes += len(body)
        yield Parcel(name, len(written), written)
