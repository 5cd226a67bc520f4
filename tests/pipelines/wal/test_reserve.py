"""The log leaves room on its disk for Spark's checkpoint."""

from pathlib import Path

import pytest

from pipelines.errors import WalFullError
from pipelines.wal import Wal
from tests.pipelines.wal.logs import block
from trionsq.disk import RealDisk


def test_a_reserve_stays_free_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed segments are removed for it; then the log counts as full while the disk is not."""
    free = 1 << 30
    monkeypatch.setattr(RealDisk, "free_bytes", lambda _disk: free)
    with Wal.open(tmp_path / "wal") as log:
        log.append([block(1)])
        log.append([block(2)])
        log.commit(2)
        free = 1000
        with pytest.raises(WalFullError, match="would leave less than"):
            log.append([block(3)])
        # The newest segment stays, committed or not.
        assert (log.first, log.end) == (1, 2)
        with pytest.raises(WalFullError):
            log.probe(1000)
        free = 1 << 30
        log.append([block(3)])
        assert log.end == 3
