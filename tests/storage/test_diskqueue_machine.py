"""Any sequence of events leaves a disk queue as a list has it (trionsq.storage.diskqueue)."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.machines import run_until_seen
from tests.soak import by_level, more_in_soak
from tests.storage.queues import (
    NS_PER_MS,
    QUEUE,
    STAMP_NS,
    Message,
    contents,
    drain,
    folder_on,
    messages,
    put,
)
from trionsq.core.queue import BackendError
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import OPERATIONS, SimulatedDisk

SEEN: Counter[str] = Counter()
"""What happened in all examples together: a fault that never fires tests nothing."""
EVENTS = (
    "appended",
    "refused",
    "read failed",
    "emptied",
    "caught up",
    "tried again",
    "healed",
    "reopened",
    "deleted with a job under way",
    "made anew before all was removed",
    "deleted, but some stays",
    "killed",
    *(
        f"fault in {name}"
        for name in ("write", "read", "sync", "create", "unlink", "rename", "close")
    ),
)

errors = st.sampled_from([errno.EIO, errno.ENOSPC])
operations = (
    st.none()
    | st.sampled_from([{"read"}, {"sync"}, {"write"}])
    | st.sets(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=2)
)


class QueueMachine(RuleBasedStateMachine):
    """One queue on a disk that fails at times, with jobs that end when the rules say so."""

    disk: SimulatedDisk
    folder: DataFolder

    @initialize(
        max_file_bytes=st.sampled_from([1, 100, 300, 5_000]),
        sync_every=st.sampled_from([0, 1, 3, 10, 1_000]),
        seed=st.integers(0, 99),
    )
    def begin(self, max_file_bytes: int, sync_every: int, seed: int) -> None:
        self.limits = {"max_file_bytes": max_file_bytes, "sync_every": sync_every}
        self.next_number = 0
        self.log: list[Message] = []  # accepted since the queue was last empty for certain
        self.known: set[bytes] = set()
        self.dropped: set[bytes] = set()  # emptied or deleted
        self.read_count = 0  # of the log
        self.healthy = True
        self.caught_up = 0
        self.torn = False
        self.void_failed = False
        self.open(SimulatedDisk(random=Random(seed)))

    def open(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.background = HeldBackground()
        self.folder = folder_on(disk, self.background, **self.limits)
        self.make_queue()

    def make_queue(self) -> None:
        self.queue = DiskQueue(QUEUE, self.folder)
        self.queue.caught_up = self.count_caught_up

    def count_caught_up(self) -> None:
        self.caught_up += 1

    @property
    def waiting(self) -> list[Message]:
        return self.log[self.read_count :]

    @rule(
        count=st.integers(1, 12),
        sizes=st.sampled_from([(10,), (0,), (5, 60, 1), (200, 3)]),
        attempts=st.integers(0, 2),
        delay_ms=st.sampled_from([None, None, None, 0, 5, 70_000]),
    )
    def append(
        self, count: int, sizes: tuple[int, ...], attempts: int, delay_ms: int | None
    ) -> None:
        due_ns = None if delay_ms is None else STAMP_NS + (1_000 + delay_ms) * NS_PER_MS
        wanted = messages(self.next_number, count, sizes, attempts=attempts, due_ns=due_ns)
        self.next_number += count
        self.known.update(message.id for message in wanted)
        try:
            put(self.queue, wanted)
        except BackendError:
            assert not self.healthy, "refused for no reason"
            assert self.folder.fault is not None
            self.torn = True
            SEEN["refused"] += 1
        else:
            self.log += wanted
            SEEN["appended"] += 1

    @rule(max_count=st.integers(1, 9), max_bytes=st.sampled_from([1, 100, 10_000]))
    def read(self, max_count: int, max_bytes: int) -> None:
        one = self.queue.read(max_count, max_bytes)
        if one is None:
            assert not self.waiting or self.folder.fault is not None
            SEEN["read failed"] += bool(self.waiting)
            return
        got = contents(one)
        assert len(got) <= max_count
        assert len(got) == 1 or sum(len(message.record) for message in got) <= max_bytes
        self.expect(got, self.waiting[: len(got)])
        self.read_count += len(got)

    def expect(self, got: list[Message], wanted: list[Message]) -> None:
        """The same, but that due times are kept to the millisecond after the timestamp."""
        assert [one._replace(due_ns=None) for one in got] == [
            one._replace(due_ns=None) for one in wanted
        ]
        for one, other in zip(got, wanted, strict=True):
            assert (one.due_ns is None) == (other.due_ns is None)
            if one.due_ns is not None and other.due_ns is not None:
                assert 0 <= one.due_ns - other.due_ns < NS_PER_MS

    @rule()
    def empty(self) -> None:
        depth = self.queue.depth
        faults = self.disk.faults.total()
        assert self.queue.empty() == depth
        self.void_failed |= self.disk.faults.total() > faults
        self.dropped.update(message.id for message in self.log)
        assert depth == len(self.waiting) or (not self.healthy and not self.waiting)
        self.log.clear()
        self.read_count = 0
        SEEN["emptied"] += 1

    @rule(retry=st.booleans())
    def sync(self, retry: bool) -> None:
        """As nsqd does from time to time; it tries again whether the disk is well or not."""
        self.folder.sync_all()
        if retry:
            SEEN["tried again"] += self.folder.fault is not None
            self.folder.retry()

    @rule(only_start=st.booleans())
    def run_job(self, only_start: bool) -> None:
        was_behind, caught_up = self.queue.behind, self.caught_up
        SEEN["ran a job"] += 1
        SEEN["was behind"] += was_behind
        if only_start:
            if self.background._waiting:
                self.background.start_one()
        elif self.background:
            self.background.run_one()
        if was_behind and not self.queue.behind:
            assert self.caught_up > caught_up
            SEEN["caught up"] += 1

    @precondition(lambda self: self.healthy)
    @rule(
        error=errors,
        at=st.sampled_from([1, 1, 1, 2, 3, 5, 8]),
        forever=st.booleans(),
        only=operations,
    )
    def break_disk(self, error: int, at: int, forever: bool, only: set[str] | None) -> None:
        self.disk.fail(error, at, forever, only)
        self.healthy = False

    @precondition(lambda self: self.healthy and self.waiting)
    @rule(error=errors, operation=st.sampled_from(["read", "rename", "sync", "close"]))
    def break_one_operation(self, error: int, operation: str) -> None:
        """One that fails seldom by chance, and is needed next."""
        self.disk.fail(error, 1, True, {operation})
        self.healthy = False
        if operation == "read":
            self.read(1, 1)  # fails unless a block is in memory
        else:
            self.background.run_all()
            self.read(1, 1)
            self.folder.sync_all()
            self.background.run_all()

    @precondition(lambda self: self.healthy)
    @rule(left=st.integers(0, 300))
    def fill_disk(self, left: int) -> None:
        used = sum(map(len, self.disk.files().values()))
        self.disk.capacity = used + left
        self.healthy = False

    @precondition(lambda self: not self.healthy)
    @rule()
    def heal(self) -> None:
        self.count_faults()
        self.background.run_all()
        self.disk.heal()
        self.disk.capacity = None
        self.folder.retry()
        self.background.run_all()
        assert self.folder.fault is None
        assert not self.queue.behind
        self.healthy, self.torn, self.void_failed = True, False, False
        self.read(1, 1)  # one fault after another must not add up to five in a row
        SEEN["healed"] += 1

    def count_faults(self) -> None:
        SEEN.update({f"fault in {name}": count for name, count in self.disk.faults.items()})
        self.disk.faults.clear()

    @precondition(lambda self: self.healthy)
    @rule()
    def reopen(self) -> None:
        self.background.run_all()
        self.queue.close()
        assert self.disk.open_files == 0
        self.make_queue()
        assert self.queue.depth == len(self.waiting)
        SEEN["reopened"] += 1

    @precondition(lambda self: self.healthy)
    @rule()
    def delete_and_make_anew(self) -> None:
        """Jobs of the deleted queue may be under way, and its files still be there."""
        SEEN["deleted with a job under way"] += len(self.background) > 0
        self.queue.delete()
        SEEN["made anew before all was removed"] += not self.disk_is_clean()
        self.anew()
        SEEN["deleted"] += 1

    def anew(self) -> None:
        self.dropped.update(message.id for message in self.log)
        self.make_queue()
        assert self.queue.depth == 0
        self.log.clear()
        self.read_count = 0

    @precondition(lambda self: self.healthy and self.waiting)
    @rule(at=st.integers(1, 4))
    def delete_what_stays(self, at: int) -> None:
        """It shows, and a new queue has nothing of it."""
        self.disk.fail(errno.EIO, at, True, {"unlink"})
        self.healthy = False
        self.queue.delete()
        self.background.run_all()
        told = self.folder.fault is not None
        assert told or self.disk_is_clean()
        SEEN["deleted, but some stays"] += told
        self.anew()

    def disk_is_clean(self) -> bool:
        """Only files that were set aside are left, and drafts of a job that did not end."""
        return all(name.endswith((".bad", ".tmp")) for name in self.disk.files())

    @rule()
    def kill(self) -> None:
        """What was accepted and not read comes again, after what was read last; no due times."""
        self.count_faults()
        self.open(self.disk.after_kill())
        self.disk.capacity = None
        assert not self.waiting or self.queue.depth > 0
        got = [message._replace(due_ns=None) for message in drain(self.queue)]
        wanted = [message._replace(due_ns=None) for message in self.log]
        accepted = [message for message in got if message in wanted]
        assert accepted == wanted[len(wanted) - len(accepted) :]
        assert len(accepted) >= len(self.waiting)
        if not self.torn and not self.void_failed:
            # The disk took it that what was refused or emptied is not there any more.
            assert {message.id for message in got} <= self.known - self.dropped
        self.known.update(message.id for message in got)
        # What came again though it was dropped is there until it is read for good.
        self.dropped.difference_update(message.id for message in got)
        self.log.clear()
        self.read_count = 0
        self.healthy, self.torn, self.void_failed = True, False, False
        SEEN["killed"] += 1

    @invariant()
    def depth_is_told(self) -> None:
        if hasattr(self, "queue"):
            depth = self.queue.depth
            assert depth == len(self.waiting) or (not self.waiting and depth <= 1)
            assert self.healthy <= (depth == len(self.waiting))

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.check() is None

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            if not self.healthy:
                self.heal()
            self.background.run_all()
            self.expect(drain(self.queue), self.waiting)
            self.queue.delete()
            self.background.run_all()
            assert self.disk.open_files == 0
            assert self.disk_is_clean()


@more_in_soak
def test_a_queue_is_a_list() -> None:
    """Order, contents, depth, due times, room and faults are as told, whatever happens when."""
    SEEN.clear()
    counts = by_level(test=(60, 200), short=(300,), full=(3_000,))
    run_until_seen(QueueMachine, SEEN, EVENTS, counts, steps=40)
