"""The logs below one folder, as a query's driver sees them."""

from __future__ import annotations

import time
from typing import Any, Final

from pipelines.errors import WalError, WalLockedError
from pipelines.receiver.status import ReceiverNote, read_receiver_note
from pipelines.wal import LogView, open_logs
from pipelines.wal.objects import is_store_url
from trionsq.disk import FolderLock, FolderLockError

__all__ = ["LogSet"]

_LOCK: Final = "READER.lock"
_LOCK_RETRY_S: Final = 0.1
_NOTES_S: Final = 5.0


class LogSet:
    """All logs below a folder. One query at a time reads them, for they are trimmed behind it.

    Attributes:
        root: the folder.
        logs: by name, as they were at the last `refresh`.
    """

    def __init__(self, root: str, *, lock_timeout_s: float) -> None:
        """Lock the folder against other queries, not against receivers.

        Waits for the previous process of the query, which may still be stopping.

        Raises:
            WalLockedError: another query reads the logs.
            WalError: there is no such folder.
        """
        self.root = root
        self.logs: dict[str, LogView] = {}
        self._notes: dict[str, ReceiverNote] = {}
        self._notes_due_s = 0.0
        # An object store has no locks.
        self._lock = None if is_store_url(root) else _locked(root, lock_timeout_s)

    def refresh(self) -> dict[str, LogView]:
        """Look at the logs again, and for new ones; all of them by name. Raises WalError."""
        self.logs = open_logs(self.root, self.logs)
        if time.monotonic() >= self._notes_due_s:
            self._notes_due_s = time.monotonic() + _NOTES_S
            self._notes = {
                name: note
                for name in self.logs
                if (note := read_receiver_note(self.logs[name].path)) is not None
            }
        return self.logs

    @property
    def is_any_full(self) -> bool:
        """Whether a receiver has said that its log has no room."""
        return any(note.statistics.get("is_paused") for note in self._notes.values())

    def metrics(self) -> dict[str, Any]:
        """What the receivers last said, summed up; their counters start with their processes."""

        def total(name: str) -> int:
            return sum(note.statistics.get(name, 0) for note in self._notes.values())

        return {
            "receivers": sum(note.is_running for note in self._notes.values()),
            "inFlight": total("pending"),
            "received": total("received"),
            "stored": total("stored"),
            "duplicatesDropped": total("duplicates_dropped"),
            "requeued": total("requeued"),
            "connections": total("connections"),
            "paused": self.is_any_full,
            "walBytes": total("wal_bytes"),
            "walSegments": total("wal_segments"),
        }

    def close(self) -> None:
        """Let another query read the logs. A second call does nothing."""
        if self._lock is not None:
            self._lock.release()


def _locked(root: str, timeout_s: float) -> FolderLock:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return FolderLock(root, _LOCK)
        except FolderLockError as error:
            if time.monotonic() >= deadline_s:
                raise WalLockedError(
                    f"the logs in {root} are read by another query; they can be read by one at a "
                    "time, because they are trimmed behind it"
                ) from error
        except OSError as error:
            raise WalError(f"{root} has no logs: {error}") from error
        time.sleep(_LOCK_RETRY_S)
