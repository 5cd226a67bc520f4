"""A Delta table in which each microbatch of a query appears once, by the package deltalake.

Tasks write Parquet files and return their names. Then one transaction adds all of them to the
table, and records the query's id and the microbatch's number: a repeated microbatch is skipped.
Readers see the files of whole transactions only, also while small files are joined. Files of failed
tasks belong to no transaction; `DeltaTable.compact` removes them later.

The table may be in a mounted folder or on an object store (s3://, gs://, az://), for deltalake has
clients of those; Spark needs no jar.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pipelines.errors import FolderError, UsageError
from pipelines.jobs.compaction import CompactionResult, group_files
from pipelines.jobs.deltafiles import DeltaFile, as_text, explained, import_deltalake
from pipelines.jobs.parquet import sync
from pipelines.options import folder

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

__all__ = ["DELTA_URLS", "Condition", "DeltaTable", "is_delta", "parse_location"]

DELTA_URLS: Final = ("s3://", "gs://", "az://", "abfss://")
"""How URLs of the stores begin that deltalake has clients of."""
Condition = tuple[str, str, Any]
"""On a column of the partition: its name, ``in``, ``>=`` or ``<=``, and the texts or text."""

# What a table may demand of its readers, and `read_files` does not do.
_UNREADABLE: Final = frozenset({"deletionVectors", "columnMapping"})


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "in": lambda value, texts: value in texts,
    ">=": lambda value, text: value is not None and value >= text,
    "<=": lambda value, text: value is not None and value <= text,
}


def parse_location(text: str, flag: str) -> str:
    """The absolute path, or the URL of an object store, that is the value of a flag.

    Raises UsageError: it is neither.
    """
    if text.startswith(DELTA_URLS):
        return text.rstrip("/")
    try:
        return str(Path(folder(text)).absolute())
    except ValueError as error:
        urls = ", ".join(DELTA_URLS)
        raise UsageError(f"{flag}: {error}; a Delta table may be at {urls}") from error


def is_delta(location: str, options: Mapping[str, str]) -> bool:
    """Whether there is a Delta table; at a URL deltalake looks. Raises SetupError, StoreError."""
    if "://" not in location:
        return Path(location, "_delta_log").is_dir()
    with explained(location):
        return bool(import_deltalake().DeltaTable.is_deltatable(location, dict(options)))


class DeltaTable:
    """A table. The first microbatch with rows creates it.

    Attributes:
        location: an absolute path, or a URL.
        options: deltalake's, for the store.
        partition_by: columns whose values each file has in common; empty: as the table has them.
    """

    def __init__(
        self, location: str, options: Mapping[str, str], *, partition_by: Sequence[str] = ()
    ) -> None:
        """*options*: without them deltalake uses the environment's, AWS_ACCESS_KEY_ID and so on."""
        self.location = location
        self.options = dict(options)
        self.partition_by = tuple(partition_by)

    # Writing

    def check(self) -> None:
        """Check that jobs can write here, before the first microbatch.

        Raises:
            SetupError: deltalake is not installed.
            FolderError: there are files of another format, or a table with other partitions.
            StoreError: the store can't be reached.
        """
        self._checked(self._open())

    def has_batch(self, query_id: str, batch: int) -> bool:
        """Whether the table has a microbatch. Raises FolderError, StoreError."""
        return _has_batch(self._existing(), query_id, batch)

    def create(self, columns: pa.Schema) -> None:
        """Create the table unless it exists.

        Raises FolderError: the table has other columns; and as `check`.
        """
        module = import_deltalake()
        schema = module.Schema.from_arrow(columns)
        table = self._checked(self._open())
        if table is None:
            with explained(self.location):
                table = module.DeltaTable.create(
                    self.location,
                    schema,
                    mode="ignore",
                    partition_by=[*self.partition_by],
                    storage_options=self.options,
                )
        found: deltalake.DeltaTable = table
        if _types(found.schema()) != _types(schema):
            raise FolderError(
                f"{self.location} has the columns {_names(found.schema())}; the rows have "
                f"{_names(schema)}, or other types: write them to another table"
            )

    def add_files(self, files: Sequence[DeltaFile], query_id: str, batch: int) -> None:
        """Add the files of a microbatch in one transaction, unless the table has the microbatch.

        Raises FolderError, StoreError; after the latter they may have been added.
        """
        module = import_deltalake()
        from deltalake.transaction import AddAction, RemoveAction

        table = self._existing()
        if not files or _has_batch(table, query_id, batch):
            return
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.nbytes,
                partition_values=file.values,
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        with explained(self.location):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                [*self.partition_by],
                commit_properties=module.CommitProperties(
                    app_transactions=[module.Transaction(query_id, batch)]
                ),
            )
            if "://" not in self.location:
                log = Path(self.location, "_delta_log")
                sync(log / f"{table.version():020}.json")
                sync(log)

    # Joining and removing files

    def compact(
        self,
        target_bytes: int,
        retention_s: float,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> CompactionResult:
        """Join the small files of each partition in one transaction, then remove unused files.

        Args:
            target_bytes: size of a joined file.
            retention_s: how long files stay that the table no longer uses, in whole hours: for
                readers that began before, and for tasks whose transaction has not come yet.
            should_stop: called before each partition; true ends the run.

        Raises:
            FolderError: there is no table.
            StoreError: the store or disk failed, or another process joined the same files.
        """
        result = CompactionResult()
        table = self._existing()
        properties = import_deltalake().WriterProperties(compression="ZSTD")
        for values, sizes in self._small_files(table, target_bytes).items():
            if not group_files(sizes, target_bytes):
                continue
            if should_stop():
                return result
            with explained(self.location):
                table.update_incremental()
                metrics = table.optimize.compact(
                    partition_filters=[(name, "=", value or "") for name, value in values] or None,
                    target_size=target_bytes,
                    writer_properties=properties,
                )
            result.old_files += metrics["numFilesRemoved"]
            result.new_files += metrics["numFilesAdded"]
        if not should_stop():
            self._vacuum(table, retention_s)
        return result

    def _small_files(
        self, table: deltalake.DeltaTable, target_bytes: int
    ) -> dict[tuple[tuple[str, str | None], ...], list[tuple[str, int]]]:
        found: dict[tuple[tuple[str, str | None], ...], list[tuple[str, int]]] = {}
        for file in _files_of(table):
            if file.nbytes < target_bytes // 2:
                found.setdefault((*file.values.items(),), []).append((file.path, file.nbytes))
        return found

    def _vacuum(self, table: deltalake.DeltaTable, retention_s: float) -> None:
        hours = -(-int(retention_s) // 3600)
        vacuum = partial(
            table.vacuum, retention_hours=hours, enforce_retention_duration=False, full=True
        )
        with explained(self.location):
            table.update_incremental()
            # To remove nothing would be two transactions as well.
            if vacuum(dry_run=True):
                vacuum(dry_run=False)

    # Reading

    def schema(self) -> pa.Schema:
        """The columns.

        Raises:
            FolderError: there is no table, or it needs a reader that knows more.
            StoreError: the store or disk failed.
        """
        import pyarrow as pa

        table = self._existing()
        if unknown := _UNREADABLE & {*(table.protocol().reader_features or ())}:
            raise FolderError(f"{self.location} has {', '.join(unknown)}, which can't be read here")
        return pa.schema(table.schema().to_arrow())

    def files(self, only: Sequence[Condition] = ()) -> list[DeltaFile]:
        """The files as they are now, of the partitions to read. Raises as `schema`."""
        return [
            file
            for file in _files_of(self._existing())
            if all(_COMPARISONS[sign](file.values[name], value) for name, sign, value in only)
        ]

    # The table as it is now

    def _open(self) -> deltalake.DeltaTable | None:
        module = import_deltalake()
        table: deltalake.DeltaTable | None = None
        with explained(self.location), contextlib.suppress(module.exceptions.TableNotFoundError):
            table = module.DeltaTable(self.location, storage_options=self.options)
        return table

    def _existing(self) -> deltalake.DeltaTable:
        table = self._open()
        if table is None:
            raise FolderError(f"{self.location} has no Delta table")
        return table

    def _checked(self, table: deltalake.DeltaTable | None) -> deltalake.DeltaTable | None:
        if table is not None:
            found = tuple(table.metadata().partition_columns)
            if found != self.partition_by:
                raise FolderError(
                    f"{self.location} is partitioned by {', '.join(found) or 'nothing'}, not by "
                    f"{', '.join(self.partition_by) or 'nothing'}"
                )
        elif "://" not in self.location and any(Path(self.location).rglob("*.parquet")):
            raise FolderError(
                f"{self.location} has Parquet files and is no Delta table: use another folder, or "
                "convert it once with deltalake.convert_to_deltalake"
            )
        return table


def _files_of(table: deltalake.DeltaTable) -> list[DeltaFile]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    names = table.metadata().partition_columns
    return [
        DeltaFile(
            unquote(row["path"]),
            row["size_bytes"],
            row["num_records"],
            {name: as_text(row[f"partition.{name}"]) for name in names},
        )
        for row in rows
    ]


def _types(schema: deltalake.Schema) -> dict[str, object]:
    return {field.name: field.type for field in schema.fields}


def _has_batch(table: deltalake.DeltaTable, query_id: str, batch: int) -> bool:
    last = table.transaction_version(query_id)
    return last is not None and last >= batch


def _names(schema: deltalake.Schema) -> str:
    return ", ".join(field.name for field in schema.fields)
