"""What a disk queue keeps, and the very files it does so in (nsqd-internals, section 7)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.storage.queues import (
    DEFERRAL_FILE,
    META,
    NS_PER_MS,
    QUEUE,
    STAMP_NS,
    Message,
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
from trionsq.disk import Disk, RealDisk
from trionsq.storage.deferral_file import DeferralFile
from trionsq.storage.diskqueue import DiskQueue
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import SimulatedDisk

DUE_NS = STAMP_NS + 90_000 * NS_PER_MS
SMALL = 40
"""The size of a record with a body of 10 bytes."""


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


def content(disk: Disk, name: str) -> bytes:
    file = disk.open(name)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def test_what_goes_in_comes_out(disk: Disk) -> None:
    """In order, with bodies, times and attempts, over files and a clean stop."""
    queue = queue_on(disk, max_file_bytes=500)
    wanted = messages(0, 40, (0, 7, 300), attempts=3) + messages(40, 10, attempts=70_000)
    put(queue, wanted[:40])
    put(queue, wanted[40:])
    assert queue.depth == 50
    expected = wanted[:40] + [m._replace(attempts=70_000 % 65_536) for m in wanted[40:]]
    one = queue.read(5, 10_000)
    assert one is not None
    got = contents(one)
    queue.close()
    queue = queue_on(disk, max_file_bytes=500)
    assert queue.depth == 50 - len(got)
    assert got + drain(queue) == expected
    assert queue.depth == 0
    assert queue.read(1, 1) is None
    queue.close()


def test_limits_are_kept_but_one_message_always_comes(disk: Disk) -> None:
    """No more than max_count and max_bytes, except that a large record comes alone."""
    queue = queue_on(disk)
    put(queue, messages(0, 10))
    for max_bytes, count in ((1, 1), (2 * SMALL - 1, 1), (2 * SMALL, 2), (10_000, 3)):
        one = queue.read(3, max_bytes)
        assert one is not None
        assert one.count == count
    queue.close()


# Files


def test_files_are_as_nsqd_writes_them(disk: Disk) -> None:
    """A record is length, time, attempts, id, body; positions are depth, reader, writer."""
    queue = queue_on(disk)
    hi = Message(b"0123456789abcdef", b"hi", 0x18EA0E2A074A80D1)
    put(queue, [hi])
    record = bytes.fromhex("0000001c18ea0e2a074a80d10000") + b"0123456789abcdef" + b"hi"
    assert content(disk, records_name(0)) == record
    put(queue, messages(1, 2, attempts=258))
    queue.read(1, 100)
    queue.close()
    assert content(disk, records_name(0)) == record + join(messages(1, 2, attempts=258))
    assert content(disk, META) == b"2\n0,32\n0,112\n"
    assert sorted(disk.names()) == [records_name(0), META]


def test_names_are_not_escaped_and_files_are_private(tmp_path: Path) -> None:
    """``#`` and ``:`` stand in the names as they are; the mode is 0600."""
    name = "a.b-c_#ephemeral:x#ephemeral"
    queue = DiskQueue(name, folder_on(RealDisk(tmp_path)))
    put(queue, messages(0, 1, due_ns=DUE_NS))
    queue.close()
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [
        f"{name}.diskqueue.000000.dat",
        f"{name}.diskqueue.deferred.dat",
        f"{name}.diskqueue.meta.dat",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


def test_a_record_that_would_exceed_the_limit_begins_a_file() -> None:
    """One that just fits does not; one larger than the limit stands in a file of its own."""
    disk = SimulatedDisk()
    queue = queue_on(disk, max_file_bytes=2 * SMALL)
    wanted = messages(0, 3) + messages(3, 1, (500,)) + messages(4, 1)
    for message in wanted:
        put(queue, [message])
    files = disk.files()
    assert [files[records_name(number)] for number in range(4)] == [
        join(wanted[:2]),
        join(wanted[2:3]),
        join(wanted[3:4]),
        join(wanted[4:]),
    ]
    queue.sync()
    assert disk.files()[META] == b"5\n0,0\n3,40\n"
    assert drain(queue) == wanted


def test_a_batch_is_cut_where_single_messages_would_be() -> None:
    """The files do not tell whether messages came one by one or together."""
    wanted = messages(0, 60, (10, 0, 130, 33))
    disks = SimulatedDisk(), SimulatedDisk()
    for disk, step in zip(disks, (1, 60), strict=True):
        queue = queue_on(disk, max_file_bytes=200)
        for start in range(0, 60, step):
            put(queue, wanted[start : start + step])
        queue.close()
    assert disks[0].files() == disks[1].files()


def test_a_finished_file_goes_when_the_positions_do_not_need_it() -> None:
    """Not before the positions that pass it by are durable; the current file stays."""
    disk = SimulatedDisk(logged=True)
    background = HeldBackground()
    queue = DiskQueue(QUEUE, folder_on(disk, background, max_file_bytes=2 * SMALL))
    put(queue, messages(0, 4))
    background.run_all()
    drain(queue)
    assert records_name(0) in disk.files()
    disk.log.clear()
    background.run_all()
    order = [step for step in disk.log if step[0] in ("rename", "sync_folder", "unlink")]
    assert [operation for operation, _ in order] == ["rename", "sync_folder", "unlink"]
    assert order[-1] == ("unlink", records_name(0))
    queue.close()
    assert sorted(disk.files()) == [records_name(1), META]
    assert disk.files()[META] == b"0\n1,80\n1,80\n"


def test_emptying_goes_on_with_the_next_number() -> None:
    """All messages and files go; the number of the next file is that after the last one."""
    disk = SimulatedDisk()
    queue = queue_on(disk, max_file_bytes=2 * SMALL)
    put(queue, messages(0, 4, due_ns=DUE_NS))
    assert queue.empty() == 4
    assert queue.depth == 0
    assert disk.files() == {META: b"0\n2,0\n2,0\n"}
    put(queue, messages(4, 1))
    queue.close()
    assert disk.files() == {META: b"1\n2,0\n2,40\n", records_name(2): messages(4, 1)[0].record}


def test_deleting_leaves_nothing(disk: Disk) -> None:
    """Neither records nor positions nor due times, however many files there are."""
    queue = queue_on(disk, max_file_bytes=100)
    put(queue, messages(0, 30, due_ns=DUE_NS))
    queue.read(1, 100)
    queue.delete()
    assert disk.names() == []


# Recovery


def read_anew(disk: SimulatedDisk) -> list[Message]:
    """What a queue finds; afterwards it is empty and goes on."""
    queue = queue_on(disk)
    got = drain(queue)
    assert queue.depth == 0
    put(queue, messages(900, 2))
    assert drain(queue) == messages(900, 2)
    queue.close()
    assert disk.open_files == 0
    return got


@pytest.mark.parametrize("meta", [None, b"", b"x", b"1\n0,0\n", b"3\n1,0\n0,80\n"])
def test_without_positions_it_begins_anew(meta: bytes | None) -> None:
    """Missing or unreadable: file 0, position 0, depth 0; records that are there are set aside
    (nsqd overwrites file 0)."""
    disk = disk_with(meta, {0: join(messages(0, 2)), 7: join(messages(5, 2))})
    assert queue_on(disk).depth == 0
    assert read_anew(disk) == []
    files = disk.files()
    assert files[records_name(0) + ".bad"] == join(messages(0, 2))
    assert files[records_name(7) + ".bad"] == join(messages(5, 2))
    assert files[META] == b"0\n0,80\n0,80\n"


def test_records_behind_the_positions_are_read() -> None:
    """After an unclean stop: the file is read to its end, writing goes on in the next number."""
    disk = disk_with(b"1\n0,40\n0,80\n", {0: join(messages(0, 4))})
    queue = queue_on(disk)
    assert queue.depth == 1
    put(queue, messages(4, 1))
    assert drain(queue) == messages(1, 4)
    queue.close()
    assert disk.files() == {META: b"0\n1,40\n1,40\n", records_name(1): messages(4, 1)[0].record}


def test_a_file_shorter_than_its_positions_is_not_written_on() -> None:
    """What is whole of it is read; the rest is lost, and it is set aside."""
    disk = disk_with(b"3\n0,0\n0,120\n", {0: join(messages(0, 3))[:100]})
    assert read_anew(disk) == messages(0, 2)
    assert records_name(0) + ".bad" in disk.files()


def test_a_missing_file_is_passed_by() -> None:
    """The one being written as well as others; the rest is read."""
    assert read_anew(disk_with(b"2\n0,0\n0,80\n", {})) == []
    files = {1: join(messages(2, 2)), 2: join(messages(4, 1))}
    assert read_anew(disk_with(b"5\n0,0\n2,40\n", files)) == messages(2, 3)
    del files[2]
    assert read_anew(disk_with(b"5\n1,0\n2,40\n", files)) == messages(2, 2)


def test_a_missing_file_is_not_written_on() -> None:
    """What is written goes to the next file: at its old offset it would lie behind a hole."""
    disk = disk_with(b"2\n0,0\n0,80\n", {})
    queue = queue_on(disk)
    put(queue, messages(0, 1))
    assert set(disk.files()) - {META} == {records_name(1)}
    assert drain(queue) == messages(0, 1)
    queue.close()


@pytest.mark.parametrize("length", [-1, 0, 25, 26 + 1_001, 2**31 - 1])
@pytest.mark.parametrize("number", [0, 1])
def test_a_corrupt_length_costs_the_rest_of_its_file(length: int, number: int) -> None:
    """The file is set aside as .bad, and reading goes on with the next one."""
    files = {0: join(messages(0, 3)), 1: join(messages(3, 3))}
    damaged = bytearray(files[number])
    damaged[SMALL : SMALL + 4] = length.to_bytes(4, signed=True)
    files[number] = bytes(damaged)
    disk = disk_with(b"6\n0,0\n1,120\n", files)
    lost = range(number * 3 + 1, number * 3 + 3)
    assert read_anew(disk) == [m for n, m in enumerate(messages(0, 6)) if n not in lost]
    assert disk.files()[records_name(number) + ".bad"] == bytes(damaged)


@pytest.mark.parametrize("cut", [1, 3, 4, 20, 39])
def test_a_torn_last_record_costs_itself(cut: int) -> None:
    """Of a file that a power failure cut off every whole record is read."""
    disk = disk_with(b"0\n0,0\n0,0\n", {0: join(messages(0, 3))[: 2 * SMALL + cut]})
    assert read_anew(disk) == messages(0, 2)


def test_a_record_over_a_lowered_limit_counts_as_corrupt() -> None:
    """After --max-msg-size was lowered its file is set aside."""
    wanted = messages(0, 1) + messages(1, 1, (200,)) + messages(2, 1)
    disk = disk_with(b"3\n0,0\n0,310\n", {0: join(wanted)})
    queue = queue_on(disk, max_body_bytes=199)
    assert drain(queue) == wanted[:1]
    assert queue.depth == 0
    assert drain(queue_on(disk_with(b"3\n0,0\n0,310\n", {0: join(wanted)}))) == wanted


def test_leftover_bad_files_are_ignored() -> None:
    """They are neither read nor removed, and no hindrance."""
    disk = disk_with(b"1\n1,0\n1,40\n", {1: join(messages(0, 1))})
    disk.write_file(records_name(0) + ".bad", b"old")
    disk.write_file(records_name(2) + ".bad", b"old")
    assert read_anew(disk) == messages(0, 1)
    assert disk.files()[records_name(0) + ".bad"] == b"old"
    assert disk.files()[records_name(2) + ".bad"] == b"old"


@pytest.mark.parametrize("depth", [-3, 0, 1, 50])
def test_a_wrong_depth_is_right_in_the_end(depth: int) -> None:
    """All there is is read, whatever the number says; then it is 0, also after an append."""
    disk = disk_with(b"%d\n0,0\n0,120\n" % depth, {0: join(messages(0, 3))})
    queue = queue_on(disk)
    assert queue.depth > 0
    assert drain(queue) == messages(0, 3)
    assert queue.depth == 0
    put(queue, messages(3, 2))
    assert queue.depth == 2


# Deferred messages


def test_deferred_messages_come_back_alone_with_their_times(disk: Disk) -> None:
    """Also after a clean stop; when all is read there is no file of due times."""
    queue = queue_on(disk)
    put(queue, messages(0, 2))
    put(queue, messages(2, 2, due_ns=DUE_NS))
    put(queue, messages(4, 2))
    queue.close()
    assert DEFERRAL_FILE in disk.names()
    queue = queue_on(disk)
    counts, got = [], []
    while (one := queue.read(10, 10_000)) is not None:
        counts.append(one.count)
        got += contents(one)
    assert counts == [2, 1, 1, 2]
    for number, message in enumerate(got):
        assert (message.due_ns is not None) == (number in (2, 3))
        assert 0 <= (message.due_ns or DUE_NS) - DUE_NS < NS_PER_MS
    queue.close()
    assert DEFERRAL_FILE not in disk.names()


def test_no_file_of_due_times_outlives_its_messages() -> None:
    """Those that came and went between two syncs leave none either."""
    disk = SimulatedDisk()
    folder = folder_on(disk)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 1))
    for first in range(1, 9, 2):
        put(queue, messages(first, 1, due_ns=DUE_NS))
        if first % 4 == 1:
            folder.sync_all()
        drain(queue)
        folder.sync_all()
        assert DEFERRAL_FILE not in disk.files()
        put(queue, messages(first + 1, 1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_of_spent_due_times_goes_after_a_start(count: int) -> None:
    """A kill may leave it behind; it goes with the first sync, though the queue is idle."""
    disk = SimulatedDisk()
    queue = queue_on(disk)
    put(queue, messages(0, count, due_ns=DUE_NS))
    queue.close()
    spent = disk.files()[DEFERRAL_FILE]
    queue = queue_on(disk)
    drain(queue)
    queue.close()
    disk.write_file(DEFERRAL_FILE, spent)
    folder = folder_on(disk)
    assert DiskQueue(QUEUE, folder).depth == 0
    folder.sync_all()
    assert DEFERRAL_FILE not in disk.files()


def test_due_times_do_not_pile_up() -> None:
    """While the queue is never empty, lines of messages that were read go from time to time, and
    all of them at a clean stop; the others stay."""
    disk = SimulatedDisk()
    folder = folder_on(disk, max_file_bytes=100_000, sync_every=50)
    queue = DiskQueue(QUEUE, folder)
    put(queue, messages(0, 20, due_ns=DUE_NS))
    lines = []
    for first in range(20, 8_000, 20):
        put(queue, messages(first, 20, due_ns=DUE_NS))
        for _ in range(20):
            assert queue.read(1, 100) is not None
        lines.append(disk.files().get(DEFERRAL_FILE, b"").count(b"\n"))
    assert max(lines) < 1_200
    assert len(DeferralFile(disk.after_kill(), QUEUE).load()) >= 20
    queue.close()
    assert disk.files()[DEFERRAL_FILE].count(b"\n") == 21
    assert len(drain(queue_on(disk))) == 20
