"""A disk that fails or is full costs no message that a disk queue accepted, and shows."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from tests.storage.queue_scenario import Over, Scenario, plain, told
from tests.storage.queues import (
    NS_PER_MS,
    QUEUE,
    STAMP_NS,
    contents,
    disk_with,
    drain,
    folder_on,
    join,
    messages,
    put,
    queue_on,
    records_name,
)
from trionsq.core.queue import BackendError
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.folder import DataFolder, DataPathError
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import Crashed, SimulatedDisk

BAD = records_name(0) + ".bad"


def fault(folder: DataFolder) -> str | None:
    """What is wrong now."""
    return folder.fault


@pytest.mark.parametrize("held", [False, True], ids=["at once", "held"])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_nothing_accepted_is_lost_to_a_fault(error: int, forever: bool, held: bool) -> None:
    """Whichever operation fails, once or with all that follow: only `append` and `close` raise,
    and only BackendError; a refused message never comes out, an accepted one does, in order; and
    when the disk is well again, nothing is wrong any more and no file stays open. Only if the
    positions could not be read at the start, messages may come again."""
    counted = Scenario(SimulatedDisk(), held=held)
    counted.run()
    fired = 0
    for at in range(1, counted.disk.operations + 1):
        if forever and at in counted.starts:
            continue  # without a disk no queue, nor nsqd, can begin
        with told(f"operation {at}"):
            scenario = Scenario(SimulatedDisk(random=Random(at)), held=held, forever=forever)
            scenario.disk.fail(error, at, forever)
            try:
                with suppress(Over):
                    scenario.run()
            except BackendError:
                continue  # of `close`: it is not used any more
            fired += bool(scenario.disk.faults)
            check_it_recovers(scenario, may_repeat=at in counted.starts)
    assert fired > counted.disk.operations / 2


UNCLEAN = {0: messages(0, 2), 1: messages(2, 2), 2: messages(4, 2)}
"""After a kill: the positions name only the first of three files."""


def unclean_disk() -> SimulatedDisk:
    return disk_with(b"2\n0,0\n0,80\n", {n: join(some) for n, some in UNCLEAN.items()})


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_without_a_list_of_files_nothing_starts(error: int) -> None:
    """A data path that cannot be listed is an error of the start: otherwise writing would begin in
    a file that has messages. The files are left as they are, and the next start finds them."""
    disk = unclean_disk()
    before = disk.files()
    disk.fail(error, only=["names"])
    with pytest.raises(DataPathError, match=r"^failed to list data-path: open /simulated: "):
        queue_on(disk)
    assert disk.files() == before
    assert drain(queue_on(disk)) == messages(0, 6)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("number", UNCLEAN)
def test_a_file_that_cannot_be_opened_at_the_start_is_kept(number: int, error: int) -> None:
    """After an unclean stop writing goes on behind all files, also behind one that cannot be opened
    just then: its messages come later."""
    disk = unclean_disk()
    disk.fail(error, only=["open"], name=records_name(number))
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    assert disk.faults["open"] == 1
    put(queue, messages(6, 2))
    got = drain(queue)
    folder.retry()
    assert got + drain(queue) == messages(0, 8)
    assert not [name for name in disk.files() if name.endswith(".bad")]
    queue.close()


def check_it_recovers(scenario: Scenario, *, may_repeat: bool = False) -> None:
    """All accepted messages come out of a disk that is well again."""
    disk, folder, queue = scenario.disk, scenario.folder, scenario.queue
    scenario.run_jobs()
    disk.heal()
    for _ in range(2):
        folder.retry()
        scenario.run_jobs()
    assert fault(folder) is None
    more = messages(1_000, 3)
    put(queue, more)
    got = plain(scenario.read + drain(queue))
    scenario.run_jobs()
    got = [one for one in got if one not in plain(scenario.dropped)]
    wanted = plain(scenario.accepted + more)
    if may_repeat:
        assert set(got) == set(wanted)
        assert got[-len(scenario.unread + more) :] == plain(scenario.unread + more)
    else:
        assert got == wanted
    queue.close()
    assert disk.open_files == 0
    assert queue_on(disk).depth == 0


@pytest.mark.parametrize("held", [False, True], ids=["at once", "held"])
def test_a_full_disk_takes_all_of_a_batch_or_nothing(held: bool) -> None:
    """With any room left: what was refused leaves no trace, and room made is used."""
    counted = Scenario(SimulatedDisk(), held=held)
    counted.run()
    size = 900
    for capacity in range(0, size, 7):
        with told(f"capacity {capacity}"):
            scenario = Scenario(SimulatedDisk(capacity=capacity), held=held)
            try:
                scenario.run()
            except BackendError:
                continue
            scenario.disk.capacity = None
            check_it_recovers(scenario)


def test_a_refused_append_shows_until_there_is_room() -> None:
    """The folder's fault names the file and the reason as long as what was refused has no room."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 1))
    disk.capacity = sum(map(len, disk.files().values())) + 50
    with pytest.raises(BackendError, match="No space left on device"):
        put(queue, messages(1, 2))
    assert fault(folder) == f"/simulated/{records_name(0)}: No space left on device"
    folder.retry()
    assert fault(folder) is not None
    disk.capacity += 1_000
    folder.retry()
    assert fault(folder) is None
    put(queue, messages(1, 2))
    assert drain(queue) == messages(0, 3)


def test_an_emptied_queue_has_no_remainder_to_remove() -> None:
    """It is well at once, though the disk still refuses to cut what a refused append left."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2))
    disk.fail(errno.EIO, forever=True, only={"write", "truncate"}, name=records_name(0))
    with pytest.raises(BackendError):
        put(queue, messages(2, 1))
    queue.empty()
    assert fault(folder) is None
    put(queue, messages(3, 1))
    folder.sync_all()
    assert fault(folder) is None
    assert records_name(0) not in disk.files()
    assert drain(queue) == messages(3, 1)


def test_a_file_that_could_not_be_begun_is_no_remainder_once_it_is() -> None:
    """What a refused append may have left is removed, and nothing that was accepted since."""
    disk = SimulatedDisk()
    folder = folder_on(disk, max_file_bytes=100)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2))
    disk.fail(errno.EROFS, forever=True, only={"create", "unlink"})
    with pytest.raises(BackendError):
        put(queue, messages(2, 1))
    disk.heal()
    put(queue, messages(2, 1))
    folder.sync_all()
    put(queue, messages(3, 1))
    assert drain(queue) == messages(0, 4)


@pytest.mark.parametrize("seed", range(5))
def test_a_file_that_was_let_go_of_is_made_durable_too(seed: int) -> None:
    """The append that follows it is refused, it can't be opened again, and a sync fails before."""
    disk, background = SimulatedDisk(random=Random(seed)), HeldBackground()
    folder = folder_on(disk, background, max_file_bytes=100)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2))
    background.run_all()
    put(queue, messages(2, 1))
    disk.fail(errno.EIO, forever=True, only={"create", "open", "sync"})
    with pytest.raises(BackendError):
        put(queue, messages(3, 4))
    background.run_all()
    disk.heal()
    for _ in range(2):
        folder.retry()
        background.run_all()
    folder.sync_all()
    background.run_all()
    assert fault(folder) is None
    assert drain(queue_on(disk.after_power_loss())) == messages(0, 3)


def test_a_file_whose_sync_failed_is_not_written_on() -> None:
    """It is read, but later messages go to the next file; until the disk is well, there are none:
    appends are refused, also those for which there would be room."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2))
    first = disk.files()[records_name(0)]
    put(queue, messages(2, 1))
    whole = disk.files()[records_name(0)]
    disk.fail(errno.EIO, only={"sync"}, name=records_name(0))
    folder.sync_all()
    assert disk.faults["sync"] == 1
    assert fault(folder) == f"/simulated/{records_name(0)}: Input/output error"
    with pytest.raises(BackendError, match="Input/output error"):
        put(queue, messages(3, 1))
    folder.retry()
    assert fault(folder) is None
    put(queue, messages(3, 1))
    assert first < whole == disk.files()[records_name(0)]
    assert disk.files()[records_name(1)] == messages(3, 1)[0].record
    assert drain(queue) == messages(0, 4)


def test_files_behind_one_whose_sync_failed_are_synced_later() -> None:
    """When the first of several full files fails, it is written anew, for a sync that succeeds
    later proves nothing; and the others are not taken for durable."""
    disk = SimulatedDisk()
    background = HeldBackground()
    folder = folder_on(disk, background, max_file_bytes=100)
    queue = DiskQueue(QUEUE, folder)
    wanted = messages(0, 10)
    put(queue, wanted)
    disk.fail(errno.EIO, only={"sync"}, name=records_name(0))
    background.run_all()
    assert disk.faults["sync"] == 1
    folder.retry()
    background.run_all()
    assert fault(folder) is None
    for _ in range(20):
        assert drain(queue_on(disk.after_power_loss(), max_file_bytes=100)) == wanted


def test_publishers_do_not_wait_for_a_sync_that_failed() -> None:
    """`caught_up` is called then, too, and the next append tells why."""
    disk = SimulatedDisk()
    background = HeldBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background, sync_every=1))
    called = []
    queue.caught_up = lambda: called.append(queue.behind)
    put(queue, messages(0, 1))
    put(queue, messages(1, 2))
    assert queue.behind
    disk.fail(errno.EIO, forever=True)
    background.run_all()
    assert called == [False]
    with pytest.raises(BackendError):
        put(queue, messages(3, 1))


def failing_to_read(error: int) -> tuple[SimulatedDisk, DiskQueue]:
    """A queue with a file that gives an error and one that does not."""
    disk = SimulatedDisk()
    queue = queue_on(disk, max_file_bytes=100)
    put(queue, messages(0, 4))
    disk.fail(error, forever=True, only={"read", "open"}, name=records_name(0))
    return disk, queue


def test_a_read_that_fails_once_costs_nothing() -> None:
    """None comes, /ping is red; after the next try all come. An append meanwhile changes nothing
    of that."""
    disk, queue = failing_to_read(errno.EIO)
    folder = queue._folder
    assert queue.read(1, 100) is None
    assert queue.depth == 4
    put(queue, messages(4, 1))
    folder.sync_all()
    assert fault(folder) is not None
    disk.heal()
    assert queue.read(1, 100) is None
    folder.retry()
    assert drain(queue) == messages(0, 5)
    assert fault(folder) is None


def test_a_file_that_can_not_be_read_is_given_up_in_the_end() -> None:
    """After five tries in a row it is set aside, and reading goes on with the next file."""
    disk, queue = failing_to_read(errno.EIO)
    for _ in range(5):
        assert BAD not in disk.files()
        assert queue.read(1, 100) is None
        queue._folder.retry()
    assert BAD in disk.files()
    assert drain(queue) == messages(2, 2)
    assert queue.depth == 0
    assert fault(queue._folder) is None


def test_what_a_refused_append_left_may_refuse_the_next_one_too() -> None:
    """A file that can be neither removed nor cut is an error of the append, which works later."""
    disk = SimulatedDisk()
    queue = queue_on(disk, max_file_bytes=100)
    put(queue, messages(0, 2))
    disk.fail(errno.EIO, forever=True, only={"write", "unlink"}, name=records_name(1))
    with pytest.raises(BackendError):
        put(queue, messages(2, 2))
    disk.heal()
    disk.fail(errno.EIO, only={"truncate"}, name=records_name(1))
    with pytest.raises(BackendError):
        put(queue, messages(2, 2))
    assert disk.faults["truncate"] == 1
    disk.heal()
    put(queue, messages(2, 2))
    assert drain(queue) == messages(0, 4)
    queue.close()
    assert disk.open_files == 0


def test_a_file_that_could_not_be_read_is_opened_anew() -> None:
    """A file system that was away may not know the open file any more."""
    disk = SimulatedDisk(logged=True)
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 2))
    disk.fail(errno.EIO, only={"read"}, name=records_name(0))
    assert queue.read(1, 100) is None
    disk.log.clear()
    folder.retry()
    assert drain(queue) == messages(0, 2)
    assert ("open", records_name(0)) in disk.log


def test_a_file_behind_one_that_was_given_up_has_tries_of_its_own() -> None:
    """One error of the next file costs none of its messages."""
    disk, queue = failing_to_read(errno.EIO)
    for _ in range(5):
        assert queue.read(1, 100) is None
        queue._folder.retry()
    disk.fail(errno.EIO, only={"read"}, name=records_name(1))
    assert queue.read(1, 100) is None
    queue._folder.retry()
    assert drain(queue) == messages(2, 2)


def test_the_last_file_that_can_not_be_read_takes_depth_and_due_times_with_it() -> None:
    """What is appended after it is given up is all that the queue has."""
    disk = SimulatedDisk()
    queue = queue_on(disk)
    put(queue, messages(0, 3, due_ns=STAMP_NS + NS_PER_MS))
    disk.fail(errno.EIO, forever=True, only={"read"}, name=records_name(0))
    for _ in range(5):
        assert queue.read(1, 100) is None
        queue._folder.retry()
    assert BAD in disk.files()
    assert (queue.depth, queue.check()) == (0, None)
    put(queue, messages(3, 2))
    assert queue.depth == 2
    assert drain(queue) == messages(3, 2)


def test_a_file_is_not_given_up_for_want_of_file_descriptors() -> None:
    """Errors that do not speak of the file's content are waited out, however long."""
    disk, queue = failing_to_read(errno.EMFILE)
    for _ in range(20):
        assert queue.read(1, 100) is None
        queue._folder.retry()
    disk.heal()
    queue._folder.retry()
    assert drain(queue) == messages(0, 4)


def test_reading_goes_on_while_the_disk_is_full() -> None:
    """A consumer is woken when reading may be tried again, whether or not there is room."""
    disk, queue = failing_to_read(errno.EIO)
    woken = []
    queue.caught_up = lambda: woken.append(True)
    assert queue.read(1, 100) is None
    disk.capacity = 0
    with pytest.raises(BackendError):
        put(queue, messages(4, 1))
    disk.heal()
    woken.clear()
    queue._folder.retry()
    assert woken
    one = queue.read(1, 100)
    assert one is not None
    assert contents(one) == messages(0, 1)


@pytest.mark.parametrize("max_file_bytes", [100, 10_000])
@pytest.mark.parametrize("other", [False, True], ids=["itself", "another"])
def test_reading_frees_a_disk_without_a_single_byte_left(max_file_bytes: int, other: bool) -> None:
    """Files go that are all read, also when they are not full and there is no room for the
    positions that say so; then appends are taken again, by the other queues as well."""
    disk = SimulatedDisk()
    folder = folder_on(disk, max_file_bytes=max_file_bytes)
    read = DiskQueue(QUEUE, folder)
    refused = DiskQueue("another", folder) if other else read
    put(refused, messages(0, 1))
    put(read, messages(1, 10))
    disk.capacity = sum(map(len, disk.files().values()))
    with pytest.raises(BackendError, match="No space left on device"):
        put(refused, messages(20, 5))
    assert drain(read)[-10:] == messages(1, 10)
    for _ in range(2):
        folder.retry()
    assert fault(folder) is None
    put(refused, messages(20, 5))
    assert drain(refused)[-5:] == messages(20, 5)
    for queue in {read, refused}:
        queue.close()
    assert not folder.queues


def test_a_file_whose_sync_failed_goes_too_when_it_is_read() -> None:
    """It needs no room to be written anew, so it is removed from a disk that has none."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 5))
    put(queue, messages(5, 5))
    disk.fail(errno.EIO, only={"sync"})
    disk.capacity = sum(map(len, disk.files().values()))
    folder.sync_all()
    assert drain(queue) == messages(0, 10)
    for _ in range(2):
        folder.retry()
    assert fault(folder) is None
    put(queue, messages(10, 5))
    assert drain(queue) == messages(10, 5)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_crash_while_room_is_made_loses_nothing(power: bool) -> None:
    """Whichever operation is the last: what was not read comes, what was may come again."""
    for at in range(1, 100):
        disk = SimulatedDisk(random=Random(at))
        folder = folder_on(disk, max_file_bytes=300)
        queue = DiskQueue(QUEUE, folder)
        put(queue, messages(0, 20))
        queue.sync()
        disk.capacity = sum(map(len, disk.files().values()))
        first = queue.read(15, 10_000)
        assert first is not None
        disk.crash_at(at)
        try:
            for _ in range(2):
                with suppress(BackendError):
                    put(queue, messages(20, 1))
                folder.retry()
        except Crashed:
            left = disk.after_power_loss() if power else disk.after_kill()
            with told(f"operation {at}"):
                got = drain(queue_on(left))
                assert set(messages(first.count, 20 - first.count)) <= set(got)
        else:
            break
    assert at > 10


def test_what_can_not_be_removed_is_removed_later() -> None:
    """A finished file that stays is tried again; messages are taken all the same."""
    disk = SimulatedDisk()
    folder = folder_on(disk, max_file_bytes=100)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 10))
    disk.fail(errno.EIO, forever=True, only={"unlink"})
    assert drain(queue) == messages(0, 10)
    assert fault(folder) is not None
    put(queue, messages(10, 1))
    disk.heal()
    folder.retry()
    assert fault(folder) is None
    assert records_name(0) not in disk.files()


def test_closing_tells_that_it_is_not_durable() -> None:
    """With BackendError, after a failed sync of records as well; no file stays open."""
    for operation in ("sync", "write", "create", "rename", "sync_folder"):
        disk = SimulatedDisk()
        queue = queue_on(disk)
        put(queue, messages(0, 3))
        put(queue, messages(3, 3))
        disk.fail(errno.EIO, only={operation})
        with pytest.raises(BackendError, match="Input/output error"):
            queue.close()
        assert disk.faults[operation] == 1
        assert disk.open_files == 0


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("name", ["*.deferred.*", "*.dat"])
def test_due_times_outlive_a_sync_that_failed(operation: str, name: str) -> None:
    """They are planned again: after the retry and a power failure each message has its own."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    due_ns = STAMP_NS + 90_000 * NS_PER_MS
    put(queue, messages(0, 1, due_ns=due_ns))
    disk.fail(errno.EIO, only=[operation], name=name)
    with suppress(BackendError):
        put(queue, messages(1, 1, due_ns=due_ns))
    queue.sync()
    accepted = queue.depth
    assert sum(disk.faults.values()) == 1
    for _ in range(2):
        folder.retry()
        queue.sync()
    put(queue, messages(2, 2, due_ns=due_ns))
    queue.sync()
    assert not folder.faults
    found = drain(queue_on(disk.after_power_loss()))
    assert len(found) == accepted + 2
    assert all(0 <= (message.due_ns or 0) - due_ns < NS_PER_MS for message in found)
