"""The folder of staged mode: rows wait there as commands until their batch is published, once.

- ``<random>.arrow``: the parcels of one task, durable (written as ``.tmp``, fsync, rename, fsync of
  the folder) before the task succeeds
- ``batch-<n>.journal``: what batch n is: its files, and a mark for each parcel that nsqd has
  confirmed; there from the decision to publish until all is published
- ``PUBLISHED.json``: the last batch that is published, and whose query it is
- ``LOCK``: held by the one process that publishes

A batch that is repeated finds its journal, and goes on with the files named there, whatever the
tasks have staged this time; or it finds that all is done. The marks have their place in the file
from the start, so that a full disk can't come between a confirmation and its mark.

What remains: a parcel that was sent, but not marked, when the process or nsqd's connection died. It
is published again, and may then be there twice. There is one such parcel at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from pipelines.sink.arrowfiles import DiskReader, DiskWriter
from pipelines.sink.errors import StageError
from pipelines.sink.parcels import Parcel
from trionsq.disk import Disk, DiskFile, read_file, replace_file

__all__ = ["PUBLISHED", "Stage", "StagedFile"]

PUBLISHED: Final = "PUBLISHED.json"
_VERSION: Final = 1
_JOURNAL: Final = re.compile(r"batch-([0-9]{1,19})\.journal")
_OURS: Final = re.compile(r"[0-9a-f]{32}\.(arrow|tmp)|batch-[0-9]{1,19}\.tmp|PUBLISHED\.tmp")
_WAITS, _DONE = b"0", b"1"

_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("commands", pa.list_(pa.large_binary()), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What a task has staged. ``parcels`` and ``rows`` are numbers."""

    name: str
    parcels: int
    rows: int


class Stage:
    """The folder. Tasks `write`; the driver does the rest, one process at a time.

    Every call raises StageError when the disk fails, or what is there does not fit.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    # Tasks

    def write(self, query: str, groups: Iterable[Iterable[Parcel]]) -> StagedFile | None:
        """Stage parcels, durably; None if there are none. A failure leaves at most a draft."""
        self._published(query)
        name = uuid4().hex
        draft = f"{name}.tmp"
        parcels = rows = 0
        with self._failing("staging rows failed"):
            file = self._disk.create(draft)
            try:
                with pa.ipc.new_file(pa.PythonFile(DiskWriter(file), "w"), _SCHEMA) as writer:
                    for group in groups:
                        for parcel in group:
                            writer.write_batch(_batch_of(parcel))
                            parcels, rows = parcels + 1, rows + parcel.rows
                file.sync()
            except BaseException:
                with suppress(OSError):
                    self._disk.unlink(draft)
                raise
            finally:
                file.close()
            if not parcels:
                self._disk.unlink(draft)
                return None
            self._disk.rename(draft, f"{name}.arrow")
            self._disk.sync_folder()
        return StagedFile(f"{name}.arrow", parcels, rows)

    # The driver

    async def commit(
        self,
        query: str,
        batch: int,
        files: Sequence[StagedFile],
        deliver: Callable[[Parcel], Awaitable[None]],
    ) -> int:
        """Publish a batch, or what is left of it; how many rows this call has published.

        Args:
            query: whose batch it is; Spark's id, which stays with the checkpoint.
            batch: its number.
            files: what its tasks have staged.
            deliver: returns when nsqd has confirmed the parcel; what it raises comes out.
        """
        last = self._published(query)
        journal = self._find_journal(query, batch, last)
        if journal is None and batch > last:
            journal = self._decide(query, batch, files)
        rows = 0
        if journal is not None:
            rows = await self._publish(journal, deliver)
            self._write_json(PUBLISHED, {"query": query, "batch": batch})
        self.sweep()
        return rows

    def sweep(self) -> None:
        """Remove files that no unfinished batch needs. For a moment without tasks of this query."""
        with self._failing("clearing the folder failed"):
            last = self._read_published()["batch"]
            needed: set[str] = set()
            for name, batch in self._journals():
                if batch <= last:
                    self._disk.unlink(name)
                else:
                    needed.update(file["name"] for file in self._head_of(name)["files"])
            for name in self._disk.names():
                if _OURS.fullmatch(name) and name not in needed:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(name)

    def abandon(self, query: str, files: Sequence[StagedFile]) -> None:
        """Remove what the tasks of a failed batch have staged, but for a batch that is begun.

        In the folder of another query only these files are touched.
        """
        owner = self._owner()
        if owner is None or owner == query:
            self.sweep()
            return
        for file in files:
            with self._failing("removing a file failed"), suppress(FileNotFoundError):
                self._disk.unlink(file.name)

    def _decide(self, query: str, batch: int, files: Sequence[StagedFile]) -> str:
        """Make the journal: from here on these files are the batch."""
        there = set(self._disk.names())
        if missing := [file.name for file in files if file.name not in there]:
            raise StageError(
                f"{self._disk.path} lacks {', '.join(missing)}: all machines have to see the same "
                "folder, and no other query may use it"
            )
        head = {
            "version": _VERSION,
            "query": query,
            "batch": batch,
            "files": [
                {"name": file.name, "parcels": file.parcels, "rows": file.rows} for file in files
            ],
        }
        marks = _WAITS * sum(file.parcels for file in files)
        name = f"batch-{batch}.journal"
        with self._failing("beginning a batch failed"):
            data = json.dumps(head).encode() + b"\n" + marks
            replace_file(self._disk, name, data, draft=f"batch-{batch}.tmp")
        return name

    async def _publish(self, journal: str, deliver: Callable[[Parcel], Awaitable[None]]) -> int:
        head = self._head_of(journal)
        rows = 0
        with self._opened(journal) as file:
            data = file.read(file.size(), 0)
            start = data.index(b"\n") + 1
            marks = data[start:]
            if len(marks) != sum(staged["parcels"] for staged in head["files"]):
                raise self._damaged(journal, "the number of its marks is wrong")
            at = 0
            for staged in head["files"]:
                with self._parcels_of(staged) as parcels:
                    for parcel in parcels(marks[at : at + staged["parcels"]]):
                        await deliver(parcel.content)
                        with self._failing("marking what was published failed"):
                            file.write(_DONE, start + at + parcel.number)
                            file.sync()
                        rows += parcel.content.rows
                at += staged["parcels"]
        return rows

    # Files

    @contextmanager
    def _parcels_of(
        self, staged: dict[str, Any]
    ) -> Iterator[Callable[[bytes], Iterator[_Numbered]]]:
        """A function that yields the parcels without a mark, read one by one."""
        name = staged["name"]
        with self._opened(name) as file:
            try:
                reader = pa.ipc.open_file(pa.PythonFile(DiskReader(file), "r"))
                if reader.num_record_batches != staged["parcels"]:
                    raise self._damaged(name, f"{reader.num_record_batches} parcels")
            except pa.ArrowException as error:
                raise self._damaged(name, error) from error

            def parcels(marks: bytes) -> Iterator[_Numbered]:
                for number in range(len(marks)):
                    if marks[number : number + 1] != _DONE:
                        yield _Numbered(number, self._parcel_of(reader, number, name))

            yield parcels

    def _parcel_of(self, reader: Any, number: int, name: str) -> Parcel:
        try:
            batch = reader.get_batch(number)
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise self._damaged(name, error) from error
        row = batch.to_pylist()[0]
        return Parcel(row["topic"], row["rows"], row["commands"])

    @contextmanager
    def _opened(self, name: str) -> Iterator[DiskFile]:
        with self._failing(f"{name} can't be read"):
            file = self._disk.open(name)
        try:
            yield file
        except OSError as error:
            raise StageError(f"{self._disk.path}: {name} can't be read: {error}") from error
        finally:
            file.close()

    def _published(self, query: str) -> int:
        """The last published batch; -1: none."""
        with self._failing(f"{PUBLISHED} can't be read"):
            found = self._read_published()
        self._check_query(found["query"], query)
        return int(found["batch"])

    def _read_published(self) -> dict[str, Any]:
        try:
            data = read_file(self._disk, PUBLISHED)
        except FileNotFoundError:
            return {"query": None, "batch": -1}
        return self._parsed(PUBLISHED, data, ("query", "batch"))

    def _owner(self) -> str | None:
        """The query that has published from here, or is about to."""
        with self._failing("the folder can't be read"):
            owner: str | None = self._read_published()["query"]
            for name, _ in self._journals() if owner is None else ():
                owner = self._head_of(name)["query"]
        return owner

    def _journals(self) -> list[tuple[str, int]]:
        """Names and numbers of the batches that were begun. Raises OSError."""
        found = ((name, _JOURNAL.fullmatch(name)) for name in self._disk.names())
        return [(name, int(match[1])) for name, match in found if match]

    def _find_journal(self, query: str, batch: int, last: int) -> str | None:
        """The journal of that batch, if it was begun and is not done."""
        with self._failing("the folder can't be read"):
            numbers = [
                int(found[1]) for name in self._disk.names() if (found := _JOURNAL.match(name))
            ]
        open_ = [number for number in numbers if number > last]
        newest = max([last, *open_])
        if batch < newest or any(number != batch for number in open_):
            raise StageError(
                f"{self._disk.path} is at batch {newest}, and the query at batch {batch}: its "
                "checkpoint was set back or replaced; to publish again, use another stagePath"
            )
        if not open_:
            return None
        name = f"batch-{batch}.journal"
        self._check_query(self._head_of(name)["query"], query)
        return name

    def _check_query(self, theirs: str | None, mine: str) -> None:
        if theirs is not None and theirs != mine:
            raise StageError(
                f"{self._disk.path} belongs to query {theirs}, this one is {mine}: use another "
                "stagePath for each checkpoint"
            )

    def _head_of(self, journal: str) -> dict[str, Any]:
        with self._failing(f"{journal} can't be read"):
            data = read_file(self._disk, journal)
        return self._parsed(journal, data.partition(b"\n")[0], ("query", "batch", "files"))

    def _parsed(self, name: str, data: bytes, keys: Sequence[str]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(data)
            if found["version"] > _VERSION:
                raise StageError(f"{self._disk.path}: {name} was written by a newer trionsq")
            for key in keys:
                found[key]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(name, error) from error
        return found

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        data = json.dumps({"version": _VERSION, **content}).encode()
        with self._failing(f"{name} can't be written"):
            replace_file(self._disk, name, data, draft=name.replace(".json", ".tmp"))

    def _damaged(self, name: str, reason: object) -> StageError:
        return StageError(
            f"{self._disk.path}: {name} is damaged: {reason}. Nothing was changed; without it "
            "nobody knows what of the batch is published"
        )

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StageError(f"{self._disk.path}: {what}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    content: Parcel


def _batch_of(parcel: Parcel) -> pa.RecordBatch:
    columns = [
        pa.array([parcel.topic], pa.string()),
        pa.array([parcel.rows], pa.int32()),
        pa.array([parcel.commands], pa.list_(pa.large_binary())),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)
