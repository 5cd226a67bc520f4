"""Detached receivers as processes, for tests: started, frozen, woken, stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from pipelines.wal import LogView, read_segment
from tests.pipelines.receiver.drive import until

__all__ = ["ReceiverProcess", "stored_below"]

_LIMIT_S: Final = 180


class ReceiverProcess:
    """``python -m pipelines receive``, with its lines in a file. A context manager: killed."""

    def __init__(self, root: Path, name: str, nsqd: str, *more: str) -> None:
        self.log = root.parent / f"{root.name}-{name}.log"
        self._offset = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pipelines", "receive", "--topic=t", "--channel=c"),
                    *(f"--nsqd-tcp-address={nsqd}", f"--wal={root}", f"--name={name}", *more),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> ReceiverProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def lines(self) -> str:
        """What this process has written."""
        return self.log.read_bytes()[self._offset :].decode()

    def await_line(self, text: str) -> None:
        """Wait until it has written this. AssertionError: it has ended without."""

        def has_come() -> bool:
            is_running = self.process.poll() is None
            assert text in self.lines or is_running, self.lines
            return text in self.lines

        until(has_come)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for its end."""
        return self.process.wait(_LIMIT_S)


def stored_below(root: Path) -> list[bytes]:
    """The bodies in all logs below the folder, log by log."""
    views = [LogView.open(path) for path in sorted(root.iterdir()) if path.is_dir()]
    return [
        body
        for view in views
        for ref in view.segments(view.first, view.end)
        for batch in read_segment(ref, ref.first, ref.end)
        for body in batch["body"].to_pylist()
    ]
