"""The simulated disk (trionsq.testing.disk): crashes and power failures."""

from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.disks import put
from trionsq.testing.disk import Crashed, SimulatedDisk

SEEDS = range(200)


def test_nothing_works_after_a_crash() -> None:
    """The operation raises `Crashed`, and so does each one after it, also of other handles."""
    disk = SimulatedDisk()
    file = put(disk, "a", b"abc")
    disk.crash_at(2)
    assert file.size() == 3
    assert "crashed" not in repr(disk)
    for call in (file.sync, lambda: file.read(1, 0), disk.names, file.close):
        with pytest.raises(Crashed):
            call()
    assert not issubclass(Crashed, Exception)
    assert "crashed" in repr(disk)


def test_the_operation_that_crashes_is_done_or_not() -> None:
    """A write may be there in part as well; all else happens wholly or not at all."""
    writes, renames, syncs = set(), set(), set()
    for seed in SEEDS:
        disks = [SimulatedDisk(random=Random(seed)) for _ in range(3)]
        files = [put(disk, "a", b"....") for disk in disks]
        files[2].write(b"1234", 0)
        for disk in disks:
            disk.crash_at(1)
        with pytest.raises(Crashed):
            files[0].write(b"1234", 0)
        with pytest.raises(Crashed):
            disks[1].rename("a", "b")
        with pytest.raises(Crashed):
            files[2].sync()
        writes.add(disks[0].after_kill().files()["a"])
        renames.add(tuple(disks[1].after_kill().files()))
        syncs.add(disks[2].after_power_loss().files()["a"])
    assert {b"....", b"1234", b"12..", b"..34"} <= writes
    assert renames == {("a",), ("b",)}
    assert {b"....", b"1234"} <= syncs


def test_a_killed_process_leaves_all_it_did() -> None:
    """What was written is there, but it is as little durable as it was; handles are gone."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed), capacity=100, path="/data")
        file = put(disk, "a", b"synced")
        file.write(b"unsync", 0)
        disk.create("b")
        disk.fail(errno.EIO, forever=True)
        after = disk.after_kill()
        assert after.files() == {"a": b"unsync", "b": b""}
        assert (after.open_files, after.operations, after.capacity) == (0, 0, 100)
        assert after.path == "/data"
        found.add("b" in after.after_power_loss().files())
        after.open("a").write(b"UNSYNC", 0)
        after.unlink("b")
        assert disk.files() == {"a": b"unsync", "b": b""}
    assert found == {True, False}


def test_power_loss_takes_any_part_of_what_was_not_durable() -> None:
    """Writes are missing in any combination and torn; the hole that one leaves is zeros."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        file = put(disk, "a", b"aa")
        file.write(b"bb", 2)
        file.write(b"cc", 4)
        found.add(disk.after_power_loss().files()["a"])
    assert {b"aa", b"aabb", b"aabbcc", b"aa\0\0cc", b"aab", b"aa\0\0\0\0"} <= found
    allowed = (b"a", b"a", b"b\0", b"b\0", b"c\0", b"c\0")
    for data in found:
        assert all(byte in choice for byte, choice in zip(data, allowed, strict=False))
        assert 2 <= len(data) <= 6


def test_power_loss_may_undo_a_truncation() -> None:
    """Cutting a file off is not durable before the next sync either."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        file = put(disk, "a", b"123456")
        file.truncate(2)
        found.add(disk.after_power_loss().files()["a"])
        file.sync()
        assert disk.after_power_loss().files() == {"a": b"12"}
    assert found == {b"12", b"123456"}


def test_power_loss_may_undo_names() -> None:
    """Without a sync of the folder each name may be old or new; a rename is never half done."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"1")
        put(disk, "b", b"2")
        put(disk, "x", b"3")
        disk.rename("a", "b")
        disk.unlink("x")
        disk.create("y")
        found.add(tuple("".join(map(str, item)) for item in _flat(disk)))
        disk.sync_folder()
        assert _flat(disk) == [("b", "1"), ("y", "")]
    renamed = {items for items in found if "a1" not in items}
    assert all("b1" in items for items in renamed)
    assert all("b2" in items for items in found - renamed)
    assert renamed
    assert found - renamed
    assert {"x3" in items for items in found} == {"y" in items for items in found} == {True, False}


def _flat(disk: SimulatedDisk) -> list[tuple[str, str]]:
    return [(name, data.decode()) for name, data in disk.after_power_loss().files().items()]


def test_what_happens_to_one_name_stays_in_order() -> None:
    """A power loss never keeps the second change of a name without the first."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"1")
        disk.rename("a", "b")
        put(disk, "a", b"2", synced=False).sync()
        found.add(tuple(_flat(disk)))
    assert found == {(("a", "1"),), (("b", "1"),), (("a", "2"), ("b", "1"))}


def test_the_same_seed_gives_the_same_disk() -> None:
    """A failure is found again by its seed."""

    def run(seed: int) -> list[dict[str, bytes]]:
        disk = SimulatedDisk(random=Random(seed))
        put(disk, "a", b"x" * 1000, synced=False)
        disk.crash_at(1)
        with pytest.raises(Crashed):
            disk.open("a")
        return [disk.after_power_loss().files() for _ in range(20)]

    assert run(1) == run(1)
    assert run(1) != run(2)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 20), st.integers(1, 12)),
        st.sampled_from([("sync", 0, 0), ("failed sync", 0, 0)]),
    ),
    max_size=25,
)


@given(STEPS, st.integers(0, 2**32))
def test_what_was_synced_survives(steps: list[tuple[str, int, int]], seed: int) -> None:
    """A byte that was synced since it was written last survives; any other is one of its history.

    So it is also after a second power loss, and after a kill and then a power loss.
    """
    disk = SimulatedDisk(random=Random(seed))
    file = put(disk, "a", b"")
    now = bytearray()
    possible: dict[int, set[int]] = {}  # by position, what a power loss may leave
    dirty: set[int] = set()
    size_min = 0
    for number, (step, offset, nbytes) in enumerate(steps, 1):
        if step == "write":
            now.extend(bytes(max(0, offset + nbytes - len(now))))
            now[offset : offset + nbytes] = bytes([number]) * nbytes
            file.write(bytes([number]) * nbytes, offset)
            for position in range(offset, offset + nbytes):
                possible.setdefault(position, {0}).add(number)
                dirty.add(position)
        elif step == "sync":
            file.sync()
            for position in dirty:
                possible[position] = {now[position]}
            size_min = max(size_min, *(position + 1 for position in dirty), 0)
            dirty.clear()
        else:
            disk.fail(errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                file.sync()
            dirty.clear()
    assert disk.files()["a"] == now
    after = disk.after_power_loss()
    for data in (after.files()["a"], disk.after_kill().after_power_loss().files()["a"]):
        assert size_min <= len(data) <= len(now)
        for position, byte in enumerate(data):
            assert byte in possible.get(position, {0})
    assert after.after_power_loss().files() == after.files()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "rename", "unlink", "sync_folder"]),
            st.sampled_from("abc"),
            st.sampled_from("abc"),
        ),
        max_size=20,
    ),
    st.integers(0, 2**32),
)
def test_synced_names_survive(steps: list[tuple[str, str, str]], seed: int) -> None:
    """After a sync of the folder the names are as they were then, apart from what came later."""
    disk = SimulatedDisk(random=Random(seed))
    expected: dict[str, bytes] = {}
    touched: set[str] = set()
    for number, (step, name, new_name) in enumerate(steps):
        if step == "put" and name not in expected:
            file = disk.create(name)
            file.write(b"%d" % number, 0)
            file.sync()
            file.close()
            expected[name] = b"%d" % number
            touched.add(name)
        elif step == "rename" and name in expected:
            disk.rename(name, new_name)
            expected[new_name] = expected.pop(name)
            touched |= {name, new_name} if name != new_name else set()
        elif step == "unlink" and name in expected:
            disk.unlink(name)
            del expected[name]
            touched.add(name)
        elif step == "sync_folder":
            disk.sync_folder()
            touched.clear()
            assert disk.after_power_loss().files() == expected
    assert disk.files() == disk.after_kill().files() == expected
    files = disk.after_power_loss().files()
    for name in set("abc") - touched:
        assert files.get(name) == expected.get(name)
