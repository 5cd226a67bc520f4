"""A log in the store that TRIONSQ_TEST_STORE names, ``az://container/prefix``, with the environment
that leads there; without it these tests are skipped."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from pipelines.errors import WalFencedError
from pipelines.wal import LogView, Wal, WalLimits, open_logs, read_segment
from pipelines.wal.notes import read_note, write_note
from tests.pipelines.wal.logs import block

OPENERS = 8
STORE = os.environ.get("TRIONSQ_TEST_STORE", "")

pytestmark = pytest.mark.skipif(not STORE, reason="TRIONSQ_TEST_STORE names no store")


@pytest.fixture
def root() -> str:
    return f"{STORE.rstrip('/')}/{uuid4().hex}"


def test_a_log_is_written_read_and_trimmed(root: str) -> None:
    """A reader follows it and commits; a restart goes on with it."""
    limits = WalLimits(retention_s=0)
    assert open_logs(root) == {}
    with Wal.open(f"{root}/a", limits=limits) as log:
        for number in range(10):
            log.append([block(number)])
        view = LogView.open(f"{root}/a")
        view.commit(5)
    with Wal.open(f"{root}/a", limits=limits) as log:
        assert (log.first, log.end, log.committed) == (0, 10, 5)
        log.commit(6)
        assert log.first == 6
        log.append([block(10)])
    assert view.refresh()
    bodies = [
        int(body)
        for ref in view.segments(6, 11)
        for batch in read_segment(ref, ref.first, ref.end)
        for body in batch["body"].to_pylist()
    ]
    assert bodies == list(range(6, 11))
    for content in (b"1", b"2"):
        write_note(f"{root}/a", "NOTE", content)
    assert (read_note(f"{root}/a", "NOTE"), read_note(f"{root}/a", "OTHER")) == (b"2", None)
    assert list(open_logs(root)) == ["a"]


def test_of_many_that_open_a_log_at_once_one_writes(root: str) -> None:
    """The store lets one of them create the next segment."""
    Wal.open(f"{root}/a").close()
    barrier = threading.Barrier(OPENERS)

    def write(number: int) -> bool:
        with Wal.open(f"{root}/a") as log:
            barrier.wait()
            try:
                log.append([block(number)])
            except WalFencedError:
                return False
            return True

    with ThreadPoolExecutor(OPENERS) as pool:
        assert sum(pool.map(write, range(OPENERS))) == 1
    assert LogView.open(f"{root}/a").end == 1
