"""A log that is taken over has one writer, whatever the former one does and when it wakes up."""

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from pipelines.errors import WalError, WalFencedError, WalLockedError, WalMissingError
from pipelines.wal import LogView, Wal, WalLimits, open_logs
from pipelines.wal.folder import FolderPlace, FolderSource
from tests.pipelines.wal.logs import LIMITS, block, numbers_on, open_log
from trionsq.testing.disk import Crashed, SimulatedDisk, SimulatedFile


def test_the_former_writer_writes_no_more(tmp_path: Path) -> None:
    """Its append, commit and probe raise WalFencedError; the new one has all and goes on."""
    former = Wal.open(tmp_path)
    former.append([block(0, 1)])
    former.commit(1)
    with pytest.raises(WalLockedError):
        Wal.open(tmp_path)
    with Wal.open(tmp_path, take_over=True) as log:
        assert (log.id, log.end, log.committed) == (former.id, 2, 1)
        with pytest.raises(WalFencedError, match="taken over by another process"):
            former.append([block(2)])
        with pytest.raises(WalFencedError):
            former.commit(2)
        assert log.append([block(2)]) == 3
        with pytest.raises(WalLockedError):
            Wal.open(tmp_path)
        former.close()
        with pytest.raises(WalLockedError):
            Wal.open(tmp_path)
    with Wal.open(tmp_path) as log:
        assert log.end == 3
        assert log.append([block(3)]) == 4


def test_a_former_writer_that_only_commits_is_fenced(tmp_path: Path) -> None:
    """An older position of it does not replace the new writer's."""
    former = Wal.open(tmp_path, limits=WalLimits(retention_s=0))
    for number in range(3):
        former.append([block(number)])
    with Wal.open(tmp_path, take_over=True, limits=WalLimits(retention_s=0)) as log:
        log.commit(3)
        with pytest.raises(WalFencedError):
            former.commit(1)
    with Wal.open(tmp_path) as log:
        assert log.committed == 3


class InterruptedDisk(SimulatedDisk):
    """Calls ``then`` before the ``at``-th opening, naming or listing of a file from `interrupt`."""

    at = 0
    then: Callable[[], None]

    def interrupt(self, at: int, then: Callable[[], None]) -> None:
        self.at, self.then = at, then

    def _count(self) -> None:
        self.at -= 1
        if not self.at:
            self.then()

    def open(self, name: str) -> SimulatedFile:
        self._count()
        return super().open(name)

    def create(self, name: str) -> SimulatedFile:
        self._count()
        return super().create(name)

    def rename(self, name: str, new_name: str) -> None:
        self._count()
        super().rename(name, new_name)

    def unlink(self, name: str) -> None:
        self._count()
        super().unlink(name)

    def sync_folder(self) -> None:
        self._count()
        super().sync_folder()


@pytest.mark.parametrize("appends_first", [False, True])
@pytest.mark.parametrize("work", ["append", "commit", "first append"])
def test_a_takeover_at_any_operation_of_the_former_writer(work: str, appends_first: bool) -> None:
    """The former writer sleeps before any operation of an append or commit, and wakes up when the
    new one has the log, or has appended: its segment is in the log for both, or for none."""
    at = 1
    while sleeps_before(at, work, appends_first):
        at += 1
    assert at > 4


def sleeps_before(at: int, work: str, appends_first: bool) -> bool:
    """Whether there is an ``at``-th operation of that work."""
    disk = InterruptedDisk(random=Random(at))
    former = open_log(disk)
    if work != "first append":
        former.append([block(0, 1)])
    start = former.end
    taken: list[tuple[Wal, int]] = []

    def take() -> None:
        log = open_log(disk)
        taken.append((log, log.end))
        if appends_first:
            log.append([block(7)])

    disk.interrupt(at, take)
    is_fenced = False
    try:
        if work == "commit":
            former.commit(1)
        else:
            former.append([block(2, 3)])
    except WalFencedError:
        is_fenced = True
    if not taken:
        return False
    ((log, end),) = taken
    is_stored = work != "commit" and not is_fenced
    assert end == start + 2 * is_stored
    with pytest.raises(WalFencedError):
        former.append([block(4)])
    with pytest.raises(WalFencedError):
        former.commit(former.end)
    log.append([block(8)])
    log.commit(log.end)
    expected = [0, 1][:start] + [2, 3] * is_stored + [7] * appends_first + [8]
    assert log.end == len(expected)
    # The retention is 0: the newest segment is left.
    assert numbers_on(disk) == expected[-1:]
    assert open_log(disk).committed == log.end
    return True


class SleepyDisk(InterruptedDisk):
    """The first segment from `sleep` gets its name when ``awake`` is set."""

    def sleep(self) -> None:
        self.asleep, self.awake = Event(), Event()

    def rename(self, name: str, new_name: str) -> None:
        if new_name.endswith(".arrow") and not self.asleep.is_set():
            self.asleep.set()
            self.awake.wait()
        super().rename(name, new_name)


def test_a_former_writer_that_wakes_up_during_the_takeover() -> None:
    """It saw that the log was its own, and renames its draft at any moment of the takeover: the
    new writer has the segment, or the former one's append fails."""
    at, results = 1, set()
    while True:
        disk = SleepyDisk()
        disk.sleep()
        former = open_log(disk)
        stored: list[int] = []

        def append(former: Wal = former, stored: list[int] = stored) -> None:
            with suppress(WalFencedError):
                stored.append(former.append([block(0, 1)]))

        thread = Thread(target=append)
        thread.start()
        disk.asleep.wait()

        def wake_up(disk: SleepyDisk = disk, thread: Thread = thread) -> None:
            disk.at = 0
            disk.awake.set()
            thread.join()

        disk.interrupt(at, wake_up)
        log = open_log(disk)
        was_interrupted = disk.awake.is_set()
        wake_up()
        assert log.end == sum(stored)
        log.append([block(2)])
        assert open_log(disk).end == sum(stored) + 1
        results.add(log.end)
        if not was_interrupted:
            break
        at += 1
    assert results == {1, 3}


def test_of_two_that_take_over_the_last_one_has_the_log() -> None:
    """The first of them is fenced off as the former writer is."""
    disk = SimulatedDisk()
    former = open_log(disk)
    first, last = open_log(disk), open_log(disk)
    for log in (former, first):
        with pytest.raises(WalFencedError):
            log.append([block(0)])
    assert last.append([block(1)]) == 1


def test_a_lock_that_got_lost_lets_nobody_write_twice(tmp_path: Path) -> None:
    """A network file system loses locks, or keeps them to one machine: who opens the log meanwhile
    fences the former writer off, which still lives."""
    former = Wal.open(tmp_path)
    former.append([block(0)])
    (tmp_path / "LOCK").unlink()
    with Wal.open(tmp_path) as log:
        assert log.append([block(1)]) == 2
        with pytest.raises(WalFencedError):
            former.append([block(2, 3)])
    former.close()
    with Wal.open(tmp_path) as log:
        assert log.end == 2


def test_a_log_opens_on_a_full_disk_unless_its_lock_is_taken() -> None:
    """What it has can be read and committed, which makes room; but nobody is fenced off."""
    disk = SimulatedDisk()
    open_log(disk).append([block(0, 1)])
    disk.fail(errno.ENOSPC, only=["create"])
    assert open_log(disk).end == 2
    assert disk.faults["create"] == 1
    disk.fail(errno.ENOSPC, only=["create"])
    with pytest.raises(WalError, match="No space left"):
        Wal(FolderPlace(disk, is_taken=True), create=True, limits=LIMITS)


def test_nothing_is_written_where_there_is_no_log(tmp_path: Path) -> None:
    """Opened without ``create``, a folder of something else keeps its files, and gets none."""
    (tmp_path / "draft.tmp").touch()
    with pytest.raises(WalMissingError):
        Wal.open(tmp_path, create=False)
    assert {path.name for path in tmp_path.iterdir()} == {"LOCK", "draft.tmp"}


# Readers


def test_a_reader_follows_a_log_and_commits(tmp_path: Path) -> None:
    """It sees what is appended, without a lock; the writer takes its position over and trims."""
    now_s = 0.0
    disk = SimulatedDisk()
    log = open_log(disk, WalLimits(retention_s=0), lambda: now_s)
    view = LogView(FolderSource(disk))
    assert (view.id, view.first, view.end, view.committed) == (log.id, 0, 0, 0)
    assert not view.refresh()
    for number in range(4):
        log.append([block(number)])
    assert view.end == 0
    assert view.refresh()
    assert not view.refresh()
    assert view.segments(0, 4) == log.segments(0, 4)
    assert view.segments(1, 3) == log.segments(1, 3)
    view.commit(3)
    view.commit(2)
    assert (view.committed, view.first, log.committed) == (3, 3, 0)
    now_s = 10
    log.append([block(4)])
    assert (log.committed, log.first) == (3, 3)
    assert view.refresh()
    assert view.segments(3, 5) == log.segments(3, 5)
    assert LogView(FolderSource(disk)).committed == 3
    view.commit(5)
    assert [name for name in disk.files() if name.endswith(".committed")] == [f"{5:020}.committed"]
    with pytest.raises(WalError, match="ends at 5: 6 can't"):
        view.commit(6)
    with pytest.raises(WalError, match="4 to 5, not 0 to 5"):
        view.segments(0, 5)
    again = open_log(disk.after_power_loss())
    assert (again.committed, again.end) == (5, 5)


def test_a_reader_that_is_late_puts_no_older_position_in_place() -> None:
    """Of two readers the one that is ahead counts, whichever comes last."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([block(0, 1, 2)])
    early, late = LogView(FolderSource(disk)), LogView(FolderSource(disk))
    early.commit(3)
    late.commit(1)
    assert open_log(disk).committed == 3
    assert LogView(FolderSource(disk)).committed == 3


def test_what_a_reader_has_seen_survives_a_power_failure() -> None:
    """A reader that sees a segment before the writer made its name durable does that itself."""
    for seed in range(20):
        disk = InterruptedDisk(random=Random(seed))
        log = open_log(disk)
        view = LogView(FolderSource(disk))
        # Looking for the owner, creating the draft, renaming it, syncing the folder
        disk.interrupt(5, partial(look_and_die, view))
        with pytest.raises(Crashed):
            log.append([block(1)])
        assert view.end == 1
        assert open_log(disk.after_power_loss()).end == 1


def look_and_die(view: LogView) -> None:
    assert view.refresh()
    raise Crashed


def test_logs_below_a_root(tmp_path: Path) -> None:
    """Folders that have a log are found by name; without one there is none."""
    assert open_logs(tmp_path / "none") == {}
    for name in ("b", "a"):
        Wal.open(tmp_path / name).close()
    (tmp_path / "other").mkdir()
    views = open_logs(tmp_path)
    assert [(name, view.path) for name, view in views.items()] == [
        (name, str(tmp_path / name)) for name in ("a", "b")
    ]
    again = open_logs(tmp_path, {"a": views["a"]})
    assert (again["a"], again["b"].id) == (views["a"], views["b"].id)
    assert again["b"] is not views["b"]
    with pytest.raises(WalMissingError, match="has no log"):
        LogView.open(tmp_path / "other")
    assert LogView.open(tmp_path / "a").end == 0
