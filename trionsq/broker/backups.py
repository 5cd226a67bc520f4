"""Backups of the logs, and of the dead letters, while the broker runs."""

from __future__ import annotations

import trio

from trionsq.broker.dead_letters import DeadLetters
from trionsq.broker.logs import LogTopics
from trionsq.storage.folder import DataFolder, error_text
from trionsq.storage.letters import LetterError
from trionsq.storage.log.backup import BackupError, backup_path, write_backup
from trionsq.storage.log.rows import StateError

__all__ = ["make_backup"]


async def make_backup(
    logs: LogTopics, letters: DeadLetters, folder: DataFolder, name: str
) -> dict[str, int]:
    """Make a backup in the data path; return the names and sizes of its segments.

    All that was acknowledged before is in it, and what operators did and consumers finished.

    Raises:
        FileExistsError: there is a backup of that name, or one is being made.
        BackupError: it failed; the text says why.
        StateError: there is no state, and it cannot be made.
    """
    node = await logs.ensure_node()
    await logs.take_snapshots()
    node.commit([])  # what only a journal has goes to its segment
    if (error := await logs.commit()) is not None:
        raise BackupError(error)
    try:
        copy_letters = await letters.copier()
    except LetterError as unreadable:
        raise BackupError(str(unreadable)) from unreadable
    ended = trio.Event()
    made: list[dict[str, int]] = []
    failures: list[Exception] = []

    def ends() -> dict[str, int]:
        # The loop goes on meanwhile; each of these copies is made at once.
        newest = [segment for log in list(node.logs.values()) for segment in log.segments[-1:]]
        return {segment.name: segment.end for segment in newest}

    def job() -> None:
        try:
            made.append(write_backup(folder.disk, node.state, copy_letters, name, ends))
        except (OSError, StateError, LetterError) as failure:
            failures.append(failure)

    def done(defect: Exception | None) -> None:
        # Also if nobody waits any more.
        logs.backups.discard(name)
        node.release_files()
        failures.extend([] if defect is None else [defect])
        ended.set()

    if name in logs.backups:
        raise FileExistsError(backup_path(folder.disk, name))
    logs.backups.add(name)
    node.hold_files()
    folder.background.submit(job, done)
    await ended.wait()
    for failure in failures:
        if isinstance(failure, FileExistsError):
            raise failure
        is_told = isinstance(failure, StateError | LetterError)
        text = str(failure) if is_told else error_text(failure)
        raise BackupError(text) from failure
    return made[0]
