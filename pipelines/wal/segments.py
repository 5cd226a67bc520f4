"""Segments: immutable Arrow IPC files ``<first>-<end>.arrow``.

A segment has a record batch for each (topic, channel, nsqd). The schema's metadata has these names
once, the version of the format and the positions, so a renamed or swapped file is detected.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipelines.errors import WalDamagedError, WalError, WalRangeError
from pipelines.schema import ARROW_SCHEMA, STORED_SCHEMA, stored_columns
from pipelines.wal.objects import Objects

__all__ = [
    "FORMAT_VERSION",
    "META",
    "Block",
    "IdScope",
    "ScopeIds",
    "SegmentHead",
    "SegmentRef",
    "check_segment",
    "encode_segment",
    "head_of",
    "ids_of_segment",
    "positions_of",
    "read_segment",
    "segment_name",
    "written_ns_of",
]

FORMAT_VERSION: Final = 1
META: Final = "META.json"
"""The file that every log has."""

_KEY: Final = b"trionsq.segment"
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.arrow")


class Block(NamedTuple):
    """Messages of one topic and channel from one nsqd, as lists of equal length.

    `ids`: 16 hex digits each. `timestamps_ns`: time of publishing, nanoseconds since the epoch.
    """

    topic: str
    channel: str
    nsqd: str
    ids: Sequence[bytes]
    timestamps_ns: Sequence[int]
    attempts: Sequence[int]
    bodies: Sequence[bytes]


class IdScope(NamedTuple):
    """The scope in which ids are unique."""

    topic: str
    nsqd: str


class ScopeIds(NamedTuple):
    """The ids of one scope in one segment."""

    scope: IdScope
    ids: list[bytes]


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment, for any process that can read the folder or the store. Picklable.

    Attributes:
        path: of the file, or its URL without secrets.
        first, end: its positions; ``end`` is the first one after it.
    """

    path: str
    first: int
    end: int


def segment_name(first: int, end: int) -> str:
    """The file's name. Names sort like positions."""
    return f"{first:020}-{end:020}.arrow"


def positions_of(name: str) -> tuple[int, int] | None:
    """First and end of the segment with this name; None if it is not a segment's name."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return int(match[1]), int(match[2])


# Writing


def encode_segment(
    first: int, wal_id: str, blocks: Sequence[Block], written_ns: int, owner: str = ""
) -> bytes:
    """The file's content. ``written_ns`` increases with each append, failed ones included.

    ``owner`` makes segments of several writers differ. Without blocks the segment is empty.
    """
    streams = [[block.topic, block.channel, block.nsqd, len(block.ids)] for block in blocks]
    header = {
        "version": FORMAT_VERSION,
        "wal": wal_id,
        "written_ns": written_ns,
        "first": first,
        "end": first + sum(len(block.ids) for block in blocks),
        "streams": streams,
    }
    if oldest_ns := [min(block.timestamps_ns) for block in blocks if block.timestamps_ns]:
        header["oldest_ns"] = min(oldest_ns)
    if owner:
        header["owner"] = owner
    schema = STORED_SCHEMA.with_metadata({_KEY: json.dumps(header).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for block in blocks:
            writer.write_batch(_batch_of(block, schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _batch_of(block: Block, schema: pa.Schema) -> pa.RecordBatch:
    columns = stored_columns(block.ids, block.timestamps_ns, block.attempts, block.bodies)
    return pa.record_batch(columns, schema=schema)


# Reading


def read_segment(ref: SegmentRef, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The messages of ``ref`` from ``start`` to before ``end``, with all columns of the schema.

    Works in any process. A file is memory-mapped, not copied; an object is read as a whole.

    Raises:
        WalRangeError: the file was trimmed.
        WalDamagedError: the file is not this segment.
        WalError: the file can't be read or is of a newer version, or this machine can't see the
            log.
    """
    try:
        with _source_of(ref.path) as source, _opened(source, ref.path) as reader:
            position = ref.first
            for index, (topic, channel, nsqd, count) in enumerate(_header(reader, ref)["streams"]):
                low, high = max(start - position, 0), min(end - position, count)
                position += count
                if low < high:
                    batch = reader.get_batch(index)
                    batch.validate()
                    names = [pa.repeat(name, high - low) for name in (topic, channel, nsqd)]
                    columns = names + batch.slice(low, high - low).columns
                    yield pa.record_batch(columns, schema=ARROW_SCHEMA)
    except FileNotFoundError as error:
        _check_sees_log(ref.path, error)
        raise WalRangeError(f"{ref.path} is gone: it was committed and trimmed") from error
    except pa.ArrowException as error:
        raise damaged(ref.path, error) from error
    except OSError as error:
        raise WalError(f"{ref.path} can't be read: {error}") from error


def check_segment(data: bytes, ref: SegmentRef, wal_id: str) -> None:
    """Raise WalDamagedError or WalError unless ``data`` is this segment, complete."""
    try:
        with _opened(pa.BufferReader(data), ref.path) as reader:
            header = _header(reader, ref)
            if header["wal"] != wal_id:
                raise damaged(ref.path, f"it belongs to another log, {header['wal']}")
            for index, (*_, count) in enumerate(header["streams"]):
                batch = reader.get_batch(index)
                batch.validate(full=True)
                if batch.num_rows != count:
                    raise damaged(ref.path, f"{batch.num_rows} messages instead of {count}")
    except pa.ArrowException as error:
        raise damaged(ref.path, error) from error


def written_ns_of(data: bytes, ref: SegmentRef) -> int:
    """When the segment was written. Raises as `check_segment`."""
    try:
        with _opened(pa.BufferReader(data), ref.path) as reader:
            return int(_header(reader, ref)["written_ns"])
    except pa.ArrowException as error:
        raise damaged(ref.path, error) from error


def ids_of_segment(data: bytes, ref: SegmentRef) -> list[ScopeIds]:
    """The ids of each scope in it. Raises as `check_segment`."""
    try:
        with _opened(pa.BufferReader(data), ref.path) as reader:
            return [
                ScopeIds(
                    IdScope(topic, nsqd),
                    reader.get_batch(index).column("id").cast(pa.binary()).to_pylist(),
                )
                for index, (topic, _, nsqd, _) in enumerate(_header(reader, ref)["streams"])
            ]
    except pa.ArrowException as error:
        raise damaged(ref.path, error) from error


def damaged(path: str, reason: object) -> WalDamagedError:
    """The error for a file that can't be parsed."""
    return WalDamagedError(
        f"{path} is damaged: {reason}. Nothing was changed. Bring the file back from a copy; or, "
        "to continue without its messages, use another walPath and checkpoint: nsqd delivers "
        "unfinished messages again, the others are in the remaining segments"
    )


class SegmentHead(NamedTuple):
    """What the head of a segment says. ``oldest_ns``: when its oldest message was published."""

    first: int
    end: int
    oldest_ns: int


def head_of(data: bytes, path: str) -> SegmentHead:
    """The head of a segment, of which there may be no more. Raises WalDamagedError."""
    try:
        # An Arrow file begins with eight bytes of its own; then comes the schema.
        schema = pa.ipc.read_schema(pa.py_buffer(data[8:]))
        header = json.loads((schema.metadata or {})[_KEY])
        # Segments of older versions, and empty ones, know only when they were written.
        oldest_ns = int(header.get("oldest_ns", header["written_ns"]))
        return SegmentHead(int(header["first"]), int(header["end"]), oldest_ns)
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError) as error:
        raise damaged(path, f"no header: {error!r}") from error


def _source_of(path: str) -> pa.NativeFile:
    if "://" in path:
        url, _, name = path.rpartition("/")
        return pa.BufferReader(Objects(url).read(name))
    return pa.memory_map(path)


def _check_sees_log(path: str, error: Exception) -> None:
    """Raise WalError unless this machine has the log of a segment that is gone."""
    host = socket.gethostname()
    if "://" in path:
        url = path.rpartition("/")[0].rpartition("/")[0]
        if not Objects(url).exists(META):
            raise WalError(
                f"{host} does not find the log {url}: executors need the same addresses and "
                "credentials as the driver, in their environment"
            ) from error
        return
    folder = os.path.dirname(path)
    if not os.path.exists(os.path.join(folder, META)):
        raise WalError(
            f"{host} does not see the log in {folder}: walPath must be a folder that the driver "
            "and all executors see by the same path"
        ) from error


def _opened(source: pa.NativeFile, path: str) -> Any:
    try:
        return pa.ipc.open_file(source)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error


def _header(reader: Any, ref: SegmentRef) -> dict[str, Any]:
    """The header in the segment's metadata, checked against its name."""
    try:
        header: dict[str, Any] = json.loads((reader.schema.metadata or {})[_KEY])
        version = int(header["version"])
        if version > FORMAT_VERSION:
            raise WalError(
                f"{ref.path} has version {version} of the format; this trionsq knows up to "
                f"{FORMAT_VERSION}: use a newer one"
            )
        total = sum(count for *_, count in header["streams"])
        if (header["first"], header["end"]) != (ref.first, ref.end):
            raise damaged(ref.path, f"it is {header['first']} to {header['end']}")
        if total != ref.end - ref.first or len(header["streams"]) != reader.num_record_batches:
            raise damaged(ref.path, "its parts do not add up")
    except (KeyError, ValueError, TypeError) as error:
        raise damaged(ref.path, f"no header: {error!r}") from error
    return header
