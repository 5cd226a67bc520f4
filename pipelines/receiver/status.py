"""What a detached receiver says of itself: a small file beside its log, replaced every few seconds.

A change of the file is its sign of life, whatever the clocks of the machines say. Who waits for the
log of a receiver that gives no sign takes it over. The queries that read the log show the counters.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from uuid import uuid4

from pipelines.wal.notes import read_note, write_note

__all__ = ["ReceiverNote", "read_receiver_note", "write_receiver_note"]

_NAME: Final = "RECEIVER.json"


@dataclass(slots=True)
class ReceiverNote:
    """A receiver's note.

    Attributes:
        run: identifies the run of the receiver; beat: counts its notes.
        host, pid: where it runs.
        is_running: false after an orderly end.
        statistics: of `Receiver.statistics`.
    """

    run: str = field(default_factory=lambda: uuid4().hex)
    beat: int = 0
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    is_running: bool = True
    statistics: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where it runs, for a person."""
        return f"process {self.pid} on {self.host}"

    @property
    def sign(self) -> tuple[str, int]:
        """Changes as long as the receiver lives."""
        return self.run, self.beat


def write_receiver_note(path: str, note: ReceiverNote) -> None:
    """Replace the note beside the log at ``path``. Raises WalError."""
    note.beat += 1
    write_note(path, _NAME, json.dumps(asdict(note)).encode())


def read_receiver_note(path: str) -> ReceiverNote | None:
    """The note beside a log; None without one that can be read. Raises WalError."""
    text = read_note(path, _NAME)
    try:
        content: dict[str, Any] = json.loads(text or b"")
        return ReceiverNote(**content)
    except (ValueError, TypeError):
        return None
