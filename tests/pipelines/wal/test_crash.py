"""After any failure the log has all messages that it acknowledged, and no partial segment."""

import errno
import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import WalError, WalFullError
from pipelines.wal import LogView, Wal, WalLimits
from pipelines.wal.folder import FolderSource
from pipelines.wal.segments import segment_name
from tests.pipelines.wal.logs import LIMITS, block, numbers_on, open_log
from trionsq.testing.disk import Crashed, SimulatedDisk


class Story:
    """Appends and commits, and the guarantees of the log so far."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.durable = 0
        self.committing = 0
        self.committed = 0

    def tell(self, disk: SimulatedDisk) -> None:
        """Three segments of three messages, each committed after the next was written."""
        log = open_log(disk)
        for first in range(log.end, log.end + 9, 3):
            self.begun = list(range(first + 3))
            assert log.append([block(*range(first, first + 3))]) == first + 3
            self.durable = first + 3
            self.committing = first
            log.commit(first)
            self.committed = first

    def check(self, disk: SimulatedDisk) -> Wal:
        """The log opens, and keeps its guarantees."""
        log = open_log(disk)
        assert disk.open_files == 0
        found = numbers_on(disk)
        assert self.durable <= log.end <= len(self.begun)
        assert self.committed <= log.committed <= self.committing
        assert found == list(range(log.first, log.end)), "as appended, without a gap"
        assert log.first <= log.committed
        assert not [name for name in disk.files() if name.endswith(".tmp")], "no leftovers"
        return log


def operations() -> int:
    """The number of disk operations of a whole story."""
    disk = SimulatedDisk()
    Story().tell(disk)
    return disk.operations


@pytest.mark.parametrize("how", [SimulatedDisk.after_kill, SimulatedDisk.after_power_loss])
def test_a_crash_at_any_operation_loses_nothing_that_was_promised(
    how: Callable[[SimulatedDisk], SimulatedDisk],
) -> None:
    """After a kill or a power failure at each disk operation, twice, no message is lost."""
    count = operations()
    assert count > 30
    for at in range(1, count + 1):
        for seed in range(8):
            disk = SimulatedDisk(random=Random(100 * at + seed))
            disk.crash_at(at)
            story = Story()
            with pytest.raises(Crashed):
                story.tell(disk)
            disk = how(disk)
            # Recovering may be cut off as well.
            disk.crash_at(1 + seed)
            try:
                open_log(disk)
            except Crashed:
                disk = how(disk)
            else:
                disk = disk.after_kill()
            end = story.check(disk).end
            story.begun = list(range(end))
            story.tell(disk)
            assert story.check(disk).end == end + 9


@given(
    seed=st.integers(0, 1 << 32),
    at=st.integers(1, 40),
    times=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 2), min_size=12, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_an_append_that_finds_no_room_is_not_in_the_log(
    seed: int, at: int, times: int, sizes: list[int]
) -> None:
    """ENOSPC at any step: WalFullError, nothing visible, and the next one works.

    Also when cleaning up fails too. After a power failure every append that returned is there.
    """
    disk = SimulatedDisk(random=Random(seed))
    log = open_log(disk)
    # After the rename it is in the log; see below.
    steps = ["create", "write", "sync", "close", "rename", "unlink"]
    for further in range(times):
        disk.fail(errno.ENOSPC, at=at + further, only=steps, name="*.arrow*")
    done: list[int] = []
    failed = 0
    for number, size in enumerate(sizes):
        before = (log.end, log.nbytes, log.segments(log.first, log.end))
        try:
            log.append([block(*[number] * size)])
        except WalFullError:
            failed += 1
            assert (log.end, log.nbytes, log.segments(log.first, log.end)) == before
        else:
            done += [number] * size
    assert failed, "the fault never fired"
    assert failed <= times
    assert numbers_on(disk) == done
    assert disk.open_files == 0
    after = disk.after_power_loss()
    assert open_log(after).end == len(done)
    assert numbers_on(after) == done


@pytest.mark.parametrize(
    ("step", "error"),
    [
        *((step, errno.EIO) for step in ("create", "write", "sync", "close", "rename")),
        ("sync_folder", errno.EIO),
        ("sync_folder", errno.ENOSPC),
    ],
)
def test_after_any_other_error_the_log_takes_no_more(step: str, error: int) -> None:
    """After EIO, or any error once the segment has its name, the log refuses appends; reopened it
    has all of the append or nothing."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0)])
    disk.fail(error, only=[step])
    with pytest.raises(WalError, match=os.strerror(error)) as caught:
        log.append([block(1, 2)])
    assert not isinstance(caught.value, WalFullError)
    assert disk.faults[step] == 1
    with pytest.raises(WalError, match="open the log again"):
        log.append([block(3)])
    with pytest.raises(WalError, match="open the log again"):
        log.commit(1)
    with pytest.raises(WalError, match="open the log again"):
        log.probe(1)
    assert (log.end, log.committed) == (1, 0)
    again = open_log(disk.after_kill())
    assert again.end in (1, 3)
    again.append([block(3)])


def test_a_segment_that_was_replaced_is_not_in_the_way() -> None:
    """Earlier versions could leave a failed append beside the segment that was written in its
    place: the later one counts."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0, 1)])
    log.append([block(2, 3)])
    failed = segment_name(2, 4)
    data = disk.files()[failed]
    disk.unlink(failed)
    log = open_log(disk)
    log.append([block(4)])
    disk.write_file(failed, data)
    view = LogView(FolderSource(disk))
    assert [(ref.first, ref.end) for ref in view.segments(0, 3)] == [(0, 2), (2, 3)]
    again = open_log(disk)
    assert (again.end, numbers_on(disk)) == (3, [0, 1, 4])
    again.append([block(5)])


def fill(log: Wal) -> int:
    """Append messages one by one until the log is full; their number."""
    for number in range(100):
        try:
            log.append([block(number)])
        except WalFullError:
            return number
    raise AssertionError("it was never full")


def test_a_full_disk_takes_nothing_and_then_goes_on() -> None:
    """ENOSPC in the middle of a segment: WalFullError and the room is free again; a probe says
    when there is enough."""
    disk = SimulatedDisk(capacity=4000)
    log = open_log(disk)
    appended = fill(log)
    assert numbers_on(disk) == list(range(appended))
    assert not [name for name in disk.files() if name.endswith(".tmp")]
    with pytest.raises(WalFullError):
        log.probe(4000)
    disk.capacity = 20_000
    log.probe(4000)
    assert log.append([block(appended)]) == appended + 1
    assert disk.faults["write"] >= 2
    assert disk.open_files == 0


@pytest.mark.parametrize("step", ["create", "write", "sync", "close", "unlink"])
def test_a_probe_finds_what_an_append_would_find(step: str) -> None:
    """ENOSPC at any step, also at the sync, where some file systems find it; then it works."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(1)])
    disk.fail(errno.ENOSPC, only=[step], name="probe*")
    with pytest.raises(WalFullError):
        log.probe(100)
    assert disk.faults[step] == 1
    log.append([block(2)])
    assert "probe.tmp" not in disk.files(), "an append needs the room"
    log.probe(100)
    assert "probe.tmp" not in disk.files()
    assert (numbers_on(disk), disk.open_files) == ([1, 2], 0)


def test_the_limit_holds_until_there_is_a_commit() -> None:
    """wal.maxBytes: WalFullError at the limit; what is committed makes room, in spite of the
    retention."""
    disk = SimulatedDisk()
    log = open_log(disk, WalLimits(max_bytes=5000, retention_s=1000))
    appended = fill(log)
    with pytest.raises(WalFullError, match=r"wal\.maxBytes"):
        log.append([block(appended)])
    assert 1 < appended < 10
    assert log.nbytes <= 5000
    log.commit(log.end)
    assert log.first == 0, "retained, as long as there is room"
    log.probe(0)
    assert log.first == 0, "a probe for which there is room takes nothing"
    log.append([block(appended)])
    assert log.first == 1
    assert log.nbytes <= 5000
    assert numbers_on(disk) == list(range(1, appended + 1))
    with pytest.raises(WalFullError, match=r"wal\.maxBytes"):
        log.probe(5001)
    assert LIMITS.max_bytes > 5000


def test_a_trim_that_fails_is_an_error_and_the_log_is_as_good_as_before() -> None:
    """After an error of the disk the log refuses all; reopened it has what it promised."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for number in range(3):
        log.append([block(number)])
    disk.fail(errno.EIO, only=["unlink"], name="*.arrow")
    with pytest.raises(WalError, match="Input/output error"):
        log.commit(3)
    with pytest.raises(WalError, match="open the log again"):
        log.append([block(3)])
    again = open_log(disk.after_kill())
    assert (again.committed, again.end) == (3, 3)
    assert again.append([block(3)]) == 4


def test_a_commit_on_a_full_disk_is_noted_when_there_is_room() -> None:
    """It is no error; what was committed before goes early to make room for the note, and a probe
    notes it as well."""
    disk = SimulatedDisk()
    log = open_log(disk, WalLimits(retention_s=1000))
    for number in range(3):
        log.append([block(number)])
    log.commit(1)
    disk.fail(errno.ENOSPC, only=["write"])
    log.commit(2)
    assert (log.committed, log.first) == (2, 1)
    disk.fail(errno.ENOSPC, only=["write"], forever=True)
    log.commit(3)
    assert (log.committed, log.first) == (2, 2)
    assert disk.faults["write"] == 3
    disk.heal()
    log.probe(10)
    assert log.committed == 3
    assert open_log(disk.after_power_loss()).committed == 3
