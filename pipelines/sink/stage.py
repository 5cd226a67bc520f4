"""The folder of staged mode: commands wait there until their microbatch is published, once.

- ``<random>.arrow``: the command batches of one task, durable before the task succeeds (written as
  ``.tmp``, fsync, rename, fsync of the folder)
- ``batch-<n>.journal``: the files of microbatch n, and a mark for each command batch that nsqd has
  confirmed; it exists from the decision to publish until everything is published
- ``PUBLISHED.json``: the last published microbatch, and the id of its query
- ``LOCK``: held by the one process that publishes

A microbatch that is repeated finds its journal and continues with the files named there, whatever
its tasks have staged this time; or it finds that everything is published. The journal has room for
the marks from the start, so that a full disk can't come between a confirmation and its mark.

One case is left: the process or nsqd's connection may end between sending a command batch and
marking it. That command batch is published again, and nsqd may then have it twice. There is at most
one such command batch at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from pipelines.errors import StageError
from pipelines.sink.commands import CommandBatch
from pipelines.sink.stagedfile import (
    StagedFile,
    open_commands,
    read_command_batch,
    write_commands,
)
from trionsq.disk import Disk, DiskFile, read_file, replace_file

__all__ = ["PUBLISHED", "Stage"]

PUBLISHED: Final = "PUBLISHED.json"
_VERSION: Final = 1
_JOURNAL: Final = re.compile(r"batch-([0-9]{1,19})\.journal")
_OWN_FILE: Final = re.compile(r"[0-9a-f]{32}\.(arrow|tmp)|batch-[0-9]{1,19}\.tmp|PUBLISHED\.tmp")
_UNCONFIRMED, _CONFIRMED = b"0", b"1"
# The journal's key for the number of command batches in a file
_BATCHES: Final = "parcels"


class Stage:
    """The folder. Tasks call `write`; the driver calls the rest, one process at a time.

    Every method raises StageError when the disk fails or the folder belongs to another query.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    # Tasks

    def write(self, query: str, groups: Iterable[Iterable[CommandBatch]]) -> StagedFile | None:
        """Stage command batches, durably; None for none. A failure leaves at most a draft."""
        self._last_published(query)
        name = uuid4().hex
        draft = f"{name}.tmp"
        with self._stage_errors("staging rows failed"):
            file = self._disk.create(draft)
            try:
                batches, rows = write_commands(file, groups)
                file.sync()
            except BaseException:
                with suppress(OSError):
                    self._disk.unlink(draft)
                raise
            finally:
                file.close()
            if not batches:
                self._disk.unlink(draft)
                return None
            self._disk.rename(draft, f"{name}.arrow")
            self._disk.sync_folder()
        return StagedFile(f"{name}.arrow", batches, rows)

    # The driver

    async def commit(
        self,
        query: str,
        batch: int,
        files: Sequence[StagedFile],
        publish: Callable[[CommandBatch], Awaitable[None]],
    ) -> int:
        """Publish a microbatch, or the rest of it; the number of rows that this call published.

        Args:
            query: Spark's id of the query, which the checkpoint keeps.
            batch: number of the microbatch.
            files: staged by its tasks.
            publish: returns when nsqd has confirmed the command batch; its exceptions pass through.
        """
        last = self._last_published(query)
        journal = self._find_journal(query, batch, last)
        if journal is None and batch > last:
            journal = self._create_journal(query, batch, files)
        rows = 0
        if journal is not None:
            rows = await self._publish(journal, publish)
            self._write_json(PUBLISHED, {"query": query, "batch": batch})
        self.sweep()
        return rows

    def sweep(self) -> None:
        """Remove files that no unfinished microbatch needs, while no task of this query runs."""
        with self._stage_errors("removing old files failed"):
            last = self._read_published()["batch"]
            needed: set[str] = set()
            for name, batch in self._journals():
                if batch <= last:
                    self._disk.unlink(name)
                else:
                    needed.update(file["name"] for file in self._head_of(name)["files"])
            for name in self._disk.names():
                if _OWN_FILE.fullmatch(name) and name not in needed:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(name)

    def abandon(self, query: str, files: Sequence[StagedFile]) -> None:
        """Remove the files of a failed microbatch, unless its publishing has begun.

        In the folder of another query only these files are removed.
        """
        owner = self._owner()
        if owner is None or owner == query:
            self.sweep()
            return
        for file in files:
            with self._stage_errors("removing a file failed"), suppress(FileNotFoundError):
                self._disk.unlink(file.name)

    def _create_journal(self, query: str, batch: int, files: Sequence[StagedFile]) -> str:
        """Write the journal: from now on the microbatch consists of these files."""
        names = set(self._disk.names())
        if missing := [file.name for file in files if file.name not in names]:
            raise StageError(
                f"{self._disk.path} lacks {', '.join(missing)}: all machines must see the same "
                "folder, and no other query may use it"
            )
        head = {
            "version": _VERSION,
            "query": query,
            "batch": batch,
            "files": [
                {"name": file.name, _BATCHES: file.batches, "rows": file.rows} for file in files
            ],
        }
        marks = _UNCONFIRMED * sum(file.batches for file in files)
        name = f"batch-{batch}.journal"
        with self._stage_errors("writing the journal failed"):
            data = json.dumps(head).encode() + b"\n" + marks
            replace_file(self._disk, name, data, draft=f"batch-{batch}.tmp")
        return name

    async def _publish(
        self, journal: str, publish: Callable[[CommandBatch], Awaitable[None]]
    ) -> int:
        head = self._head_of(journal)
        rows = 0
        with self._opened(journal) as file:
            data = file.read(file.size(), 0)
            start = data.index(b"\n") + 1
            marks = data[start:]
            if len(marks) != sum(entry[_BATCHES] for entry in head["files"]):
                raise self._damaged(journal, "the number of its marks is wrong")
            for entry in head["files"]:
                count = entry[_BATCHES]
                with self._command_batches(entry) as read_batch:
                    for index in range(count):
                        if marks[index : index + 1] == _CONFIRMED:
                            continue
                        batch = read_batch(index)
                        await publish(batch)
                        with self._stage_errors("marking a command batch failed"):
                            file.write(_CONFIRMED, start + index)
                            file.sync()
                        rows += batch.rows
                start, marks = start + count, marks[count:]
        return rows

    # Files

    @contextmanager
    def _command_batches(self, entry: dict[str, Any]) -> Iterator[Callable[[int], CommandBatch]]:
        """A function that reads one command batch of a staged file."""
        name = entry["name"]
        with self._opened(name) as file:
            try:
                reader = open_commands(file)
                if reader.num_record_batches != entry[_BATCHES]:
                    raise self._damaged(name, f"{reader.num_record_batches} command batches")
            except pa.ArrowException as error:
                raise self._damaged(name, error) from error

            def read_batch(index: int) -> CommandBatch:
                try:
                    return read_command_batch(reader, index)
                except pa.ArrowException as error:
                    raise self._damaged(name, error) from error

            yield read_batch

    @contextmanager
    def _opened(self, name: str) -> Iterator[DiskFile]:
        with self._stage_errors(f"{name} can't be read"):
            file = self._disk.open(name)
        try:
            yield file
        except OSError as error:
            raise StageError(f"{self._disk.path}: {name} can't be read: {error}") from error
        finally:
            file.close()

    def _last_published(self, query: str) -> int:
        """The last published microbatch, or -1."""
        with self._stage_errors(f"{PUBLISHED} can't be read"):
            content = self._read_published()
        self._check_query(content["query"], query)
        return int(content["batch"])

    def _read_published(self) -> dict[str, Any]:
        try:
            data = read_file(self._disk, PUBLISHED)
        except FileNotFoundError:
            return {"query": None, "batch": -1}
        return self._parsed(PUBLISHED, data, ("query", "batch"))

    def _owner(self) -> str | None:
        """The id of the query that has published from here, or has begun to."""
        with self._stage_errors("the folder can't be read"):
            owner: str | None = self._read_published()["query"]
            for name, _ in self._journals() if owner is None else ():
                owner = self._head_of(name)["query"]
        return owner

    def _journals(self) -> list[tuple[str, int]]:
        """The journals: their names, and the numbers of their microbatches. Raises OSError."""
        matches = ((name, _JOURNAL.fullmatch(name)) for name in self._disk.names())
        return [(name, int(match[1])) for name, match in matches if match]

    def _find_journal(self, query: str, batch: int, last: int) -> str | None:
        """The journal of a microbatch, if its publishing has begun and is not complete."""
        with self._stage_errors("the folder can't be read"):
            numbers = [
                int(match[1]) for name in self._disk.names() if (match := _JOURNAL.match(name))
            ]
        unfinished = [number for number in numbers if number > last]
        newest = max([last, *unfinished])
        if batch < newest or any(number != batch for number in unfinished):
            raise StageError(
                f"{self._disk.path} is at batch {newest}, and the query at batch {batch}: its "
                "checkpoint was reset or replaced; to publish again, use another stagePath"
            )
        if not unfinished:
            return None
        name = f"batch-{batch}.journal"
        self._check_query(self._head_of(name)["query"], query)
        return name

    def _check_query(self, owner: str | None, query: str) -> None:
        if owner is not None and owner != query:
            raise StageError(
                f"{self._disk.path} belongs to query {owner}, not to {query}: use another "
                "stagePath for each checkpoint"
            )

    def _head_of(self, journal: str) -> dict[str, Any]:
        with self._stage_errors(f"{journal} can't be read"):
            data = read_file(self._disk, journal)
        return self._parsed(journal, data.partition(b"\n")[0], ("query", "batch", "files"))

    def _parsed(self, name: str, data: bytes, keys: Sequence[str]) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(data)
            if content["version"] > _VERSION:
                raise StageError(f"{self._disk.path}: {name} was written by a newer trionsq")
            for key in keys:
                content[key]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(name, error) from error
        return content

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        data = json.dumps({"version": _VERSION, **content}).encode()
        with self._stage_errors(f"{name} can't be written"):
            replace_file(self._disk, name, data, draft=name.replace(".json", ".tmp"))

    def _damaged(self, name: str, reason: object) -> StageError:
        return StageError(
            f"{self._disk.path}: {name} is damaged: {reason}. Nothing was changed. Without it "
            "the published part of the batch is unknown"
        )

    @contextmanager
    def _stage_errors(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StageError(f"{self._disk.path}: {problem}: {error}") from error
