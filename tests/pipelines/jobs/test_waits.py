"""Which failures start a query again, and how often."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.errors import StoreError
from pipelines.jobs import restarts
from pipelines.jobs.restarts import MAX_RESTARTS, Restarts

STORE = "Traceback\n  ...\npipelines.errors.StoreError: s3://b/t: refused\n at org"
FULL = "java.io.IOException: No space left on device"


class Stopping(threading.Event):
    """Counts the waits, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return self.is_set()


@pytest.fixture
def stopping() -> Stopping:
    return Stopping()


def test_other_failures_are_raised(stopping: Stopping, tmp_path: Path) -> None:
    """A failure that a restart does not mend is the job's."""
    failure = Exception("[FOREACH] pipelines.errors.FolderError: other columns")
    with pytest.raises(Exception, match="other columns") as raised:
        Restarts("archive", {"--checkpoint": str(tmp_path)}, stopping).wait(failure, 0)
    assert raised.value is failure
    assert stopping.pauses == []


def test_a_store_that_stays_away_ends_the_job(
    stopping: Stopping, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pauses grow; a finished microbatch between two failures begins the count anew."""
    waits = Restarts("archive", {"--checkpoint": str(tmp_path)}, stopping)
    for _ in range(MAX_RESTARTS):
        waits.wait(Exception(STORE), 5)
    assert stopping.pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "archive: s3://b/t: refused; the query starts again soon"
    with pytest.raises(StoreError):
        waits.wait(StoreError("away"), 5)
    waits.wait(StoreError("away"), 6)
    assert stopping.pauses[-1] == 1
    waits.wait(
        Exception("org.apache.spark.SparkException: Python worker failed to connect back."), 6
    )
    assert stopping.pauses[-1] == 2
    waits.wait(Exception("Traceback\n ...\npipelines.errors.NsqdAwayError: no answer within"), 7)
    assert stopping.pauses[-1] == 1


def test_a_full_disk_is_named_and_waited_for(
    stopping: Stopping,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder and its flag are in the line; it waits until there is room, or for a stop."""
    free = iter([0, 0, 0, 100])

    def statvfs(path: str) -> SimpleNamespace:
        blocks = 100 if path == "/other" else next(free)
        return SimpleNamespace(f_blocks=100, f_frsize=1 << 20, f_bavail=blocks)

    monkeypatch.setattr("pipelines.jobs.restarts.os.statvfs", statvfs)
    waits = Restarts("archive", {"--checkpoint": str(tmp_path), "--output": "/other"}, stopping)
    waits.wait(Exception(FULL), 0)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"archive: no space left on device: {tmp_path} (--checkpoint); ")
    assert second == "archive: there is room again, the query goes on"
    assert stopping.pauses == [1, 1, 1]

    monkeypatch.setattr(restarts, "_is_full", lambda _path: True)
    stopping.set()
    waits.wait(Exception(FULL), 0)
    assert "room again" not in capsys.readouterr().err
