"""The Arrow file that a task stages: a record batch for each command batch.

Arrow reads and writes it through file objects on a `trionsq.disk.Disk`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pipelines.sink.commands import CommandBatch
from trionsq.disk import DiskFile

__all__ = [
    "StagedFile",
    "open_commands",
    "read_command_batch",
    "write_commands",
]

_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("commands", pa.list_(pa.large_binary()), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The name of a staged file, and the numbers of its command batches and rows."""

    name: str
    batches: int
    rows: int


def write_commands(file: DiskFile, groups: Iterable[Iterable[CommandBatch]]) -> tuple[int, int]:
    """Write command batches; their number, and that of their rows. Raises OSError."""
    batches = rows = 0
    with pa.ipc.new_file(pa.PythonFile(DiskWriter(file), "w"), _SCHEMA) as writer:
        for group in groups:
            for batch in group:
                writer.write_batch(_record_batch_of(batch))
                batches, rows = batches + 1, rows + batch.rows
    return batches, rows


def _record_batch_of(batch: CommandBatch) -> pa.RecordBatch:
    columns = [
        pa.array([batch.topic], pa.string()),
        pa.array([batch.rows], pa.int32()),
        pa.array([batch.commands], pa.list_(pa.large_binary())),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def open_commands(file: DiskFile) -> Any:
    """Arrow's reader of a staged file. Raises pa.ArrowException, OSError."""
    return pa.ipc.open_file(pa.PythonFile(DiskReader(file), "r"))


def read_command_batch(reader: Any, index: int) -> CommandBatch:
    """Read one command batch. Raises pa.ArrowException, OSError."""
    record_batch = reader.get_batch(index)
    record_batch.validate(full=True)
    row = record_batch.to_pylist()[0]
    return CommandBatch(row["topic"], row["rows"], row["commands"])


class DiskWriter:
    """A file object that appends. Closing it leaves the file open."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._position = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it. Raises OSError."""
        self._file.write(bytes(data), self._position)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written."""
        return self._position

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Refuse further writes."""
        self.closed = True


class DiskReader:
    """A file object that reads and seeks. Closing it leaves the file open."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._position = 0
        self.closed = False

    def read(self, nbytes: int = -1) -> bytes:
        """Up to ``nbytes`` bytes, or all the rest. Raises OSError."""
        data = self._file.read(self._file.size() if nbytes < 0 else nbytes, self._position)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset; the new position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size()}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seekable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Refuse further reads."""
        self.closed = True
