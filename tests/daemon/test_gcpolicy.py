"""When garbage is collected, and how many objects that looks at."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from tests.soak import in_short_soak
from trionsq.daemon import gcpolicy
from trionsq.daemon.gcpolicy import (
    Memory,
    collect_on_purpose,
    count_objects,
    full_is_due,
    next_look_s,
)
from trionsq.testing.broker import open_broker

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="Python collects in small steps by itself"
)


class Knot:
    """A cycle of one."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def policy() -> Iterator[None]:
    """The collector as a daemon has it; afterwards as it was."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(2_500, 3, 100)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()


def test_all_is_looked_at_only_when_that_is_short_or_much_may_be_found() -> None:
    """With little in memory soon; with a million messages only after many old tasks ended."""
    little, much = 50_000, 5_000_000
    assert full_is_due(Memory(little, promotions=1, old_ends=0))
    assert full_is_due(Memory(little, promotions=0, old_ends=1))
    assert not full_is_due(Memory(little, promotions=0, old_ends=0))
    assert not full_is_due(Memory(much, promotions=10_000, old_ends=0))
    assert not full_is_due(Memory(much, promotions=10_000, old_ends=49_999))
    assert full_is_due(Memory(much, promotions=0, old_ends=50_000))


def test_looks_come_as_often_as_there_is_something_to_look_at() -> None:
    """Ten times a second at rest, sooner when the young are many, within bounds."""
    assert next_look_s(0.1, 0) == 0.1
    assert next_look_s(0.1, 2_500) == 0.1
    assert next_look_s(0.1, 5_000) == pytest.approx(0.05)
    assert next_look_s(0.1, 10_000_000) == 0.01
    assert next_look_s(0.01, 0) == 0.02  # it becomes rarer step by step


async def test_the_young_stay_few_while_as_many_go_as_come(
    policy: None, mock_clock: MockClock
) -> None:
    """Old objects that go at the rate at which new ones come hide these from Python's own count.

    That is a queue in memory which is written and read at the same pace: the young ones grew to
    all that waits, and one collection then looked at them.
    """
    mock_clock.autojump_threshold = 0
    waiting = [[number] for number in range(60_000)]
    gc.collect()
    seen = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_on_purpose)
        for begin in range(0, 60_000, 3_000):
            for number in range(begin, begin + 3_000):
                waiting[number] = [number]
            await trio.sleep(0.25)
            seen.append(len(gc.get_objects(generation=0)))
        nursery.cancel_scope.cancel()
    assert max(seen) < 10_000


async def test_what_is_old_and_in_a_cycle_is_found(policy: None, mock_clock: MockClock) -> None:
    """A cycle that has become old goes with the next full collection, which is made on purpose."""
    mock_clock.autojump_threshold = 0
    knot = Knot()
    gone = weakref.ref(knot)
    kept = [[number] for number in range(2_000)]
    gc.collect()
    del knot
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_on_purpose)
        await trio.sleep(1)
        kept.extend([number] for number in range(2_000))
        assert gone() is not None
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert gone() is None
    assert len(kept) == 4_000


async def test_only_tasks_that_were_old_count(policy: None) -> None:
    """A task counts if a collection has promoted what it held, and then it ended."""

    async def until(event: trio.Event) -> None:
        await event.wait()

    event = trio.Event()
    with gcpolicy._OldTasks() as old:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(until, event)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect(1)
            for _ in range(5):
                nursery.start_soon(trio.lowlevel.checkpoint)
            await trio.testing.wait_all_tasks_blocked()
            before = old.ends
            event.set()
        assert before == 0
        assert (old.ends, old.promotions) == (3, 1)
        old.forget()
        assert (old.ends, old.promotions) == (0, 0)


async def test_python_collects_by_itself_again_afterwards(policy: None) -> None:
    """While full collections are made on purpose Python makes none; a cancelled one undoes that."""
    before = gc.get_threshold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_on_purpose)
        await trio.testing.wait_all_tasks_blocked()
        assert gc.get_threshold() == (*before[:2], 2**31 - 1)
        nursery.cancel_scope.cancel()
    assert gc.get_threshold() == before


def test_what_is_there_at_the_start_is_not_looked_at_again() -> None:
    """The modules' objects, tens of thousands, are out of every later collection."""
    program = (
        "import gc, trionsq.local.nsqd_daemon as d; d.tune_interpreter();"
        " print(len(gc.get_objects()), gc.get_freeze_count(), *gc.get_threshold())"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    looked_at, frozen, young, middle, _ = map(int, said.stdout.split())
    assert looked_at < 1_000
    assert frozen > 20_000
    assert young * (middle + 2) <= 12_500


async def test_a_client_that_has_gone_is_no_garbage() -> None:
    """It goes with its last reference, for its buffers may be large and collections are rare."""
    async with open_broker() as nsqd:
        gc.collect()
        gc.disable()
        try:
            host, _, port = nsqd.tcp_address.rpartition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(b"  V2SUB t c\nRDY 1\n")
            await stream.receive_some(100)
            gone = weakref.ref(next(iter(nsqd.broker.clients)))
            await stream.aclose()
            with trio.fail_after(30):
                while nsqd.broker.admission.connections:
                    await trio.lowlevel.checkpoint()
            # Its task ends after it has said that it left.
            await trio.testing.wait_all_tasks_blocked(0.01)
        finally:
            gc.enable()
    assert gone() is None


@in_short_soak
async def test_requests_and_errors_leave_nothing_behind(policy: None) -> None:
    """Hundreds of the framework's requests, half of them refused, do not gather in memory."""
    rounds, each = 4, 100
    counts = []
    async with open_broker() as nsqd, trio.open_nursery() as nursery:
        nursery.start_soon(collect_on_purpose, 0.3)
        host, _, port = nsqd.http_address.rpartition(":")
        for _ in range(rounds):
            stream = await trio.open_tcp_stream(host, int(port))
            for number in range(each):
                path = b"/nothing" if number % 2 else b"/stats?format=json"
                await stream.send_all(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while b"\r\n\r\n" not in answer or b"}" not in answer.rpartition(b"\r\n\r\n")[2]:
                    answer += await stream.receive_some(65_536)
            await stream.aclose()
            # Two looks whether a full collection is due.
            await trio.sleep(0.9)
            counts.append(len(gc.get_objects()))
        nursery.cancel_scope.cancel()
    # A request that is refused leaves 40 objects in cycles: 2,000 in a round.
    assert counts[-1] - counts[1] < 1_500


def test_to_count_objects_disturbs_no_thread() -> None:
    """A tuple that a thread is making may be among them: CPython fails it if somebody holds it."""
    failures: list[SystemError] = []

    def make_tuples() -> None:
        for _ in range(20_000):
            try:
                tuple(number for number in range(30))
            except SystemError as error:
                failures.append(error)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=make_tuples)
        thread.start()
        counts = 0
        while thread.is_alive():
            counts += count_objects(0) >= 0
        thread.join()
    finally:
        sys.setswitchinterval(before_s)
    assert counts
    assert failures == []
