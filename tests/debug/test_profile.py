"""The profiler, and each form of its profiles read as the tools read them."""

from __future__ import annotations

import gzip
import signal
import threading
from collections.abc import Iterator

import pytest
import trio

from trionsq.debug.process import UnderWayError
from trionsq.debug.profile import (
    NotInMainThreadError,
    Profile,
    ThreadProfile,
    pprof_bytes,
    profile,
    text_lines,
)


def spin(until: threading.Event) -> None:
    """Keep a processor busy."""
    while not until.is_set():
        sum(range(1000))


@pytest.fixture(scope="module")
def samples() -> Profile:
    """A profile of a program with a busy thread and an idle event loop."""

    async def main() -> Profile:
        until = threading.Event()
        busy = threading.Thread(target=spin, args=(until,), name="busy")
        busy.start()
        try:
            return await profile(0.5, 200)
        finally:
            until.set()
            busy.join()

    return trio.run(main)


def own_samples(samples: Profile) -> int:
    """Samples of the main thread: what tests before have left others to do is not looked at."""
    main = threading.main_thread().name
    return sum(count for thread, _, count in samples.counted() if thread.name == main)


def samples_of(samples: Profile, function: str) -> int:
    """Samples with that function somewhere in the stack."""
    return sum(
        count
        for _, stack, count in samples.counted()
        if any(code.co_qualname == function for code, _ in stack)
    )


def test_what_is_busy_is_found(samples: Profile) -> None:
    """The busy thread's function has its samples, under the thread's name."""
    assert samples_of(samples, "spin") > 5
    assert "busy" in [thread.name for thread in samples.threads]
    assert samples.seconds >= 0.5


async def test_by_the_processors_clock_waiting_costs_nothing() -> None:
    """A loop that only waits has next to no samples; a busy one as many as it used time."""

    async def busy() -> None:
        while True:
            sum(range(1000))
            await trio.lowlevel.checkpoint()

    idle = await profile(0.2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy)
        samples = await profile(0.5)
        nursery.cancel_scope.cancel()
    assert own_samples(idle) <= 5
    total = own_samples(samples)
    # The timer goes by the kernel's ticks, which on a busy machine are not the time that was used.
    assert (
        0.5 * samples.cpu_seconds - 0.05
        <= total * samples.interval_s
        <= 2 * samples.cpu_seconds + 0.05
    )
    own = "test_by_the_processors_clock_waiting_costs_nothing.<locals>.busy"
    assert samples_of(samples, own) >= total / 10
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


async def test_a_late_signal_does_no_harm() -> None:
    """By default it would kill the process."""
    await profile(0.01)
    signal.raise_signal(signal.SIGPROF)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of a protocol buffer, and where the next thing begins."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            assert key & 7 == 0
            yield key >> 3, value


def repeated(data: bytes, number: int) -> list[bytes]:
    """All messages of that field."""
    return [value for field, value in fields(data) if field == number and isinstance(value, bytes)]


def test_pprof_can_read_it(samples: Profile) -> None:
    """The messages of profile.proto refer to each other, and each sample adds up."""
    data = gzip.decompress(pprof_bytes(samples))
    strings = [text.decode() for text in repeated(data, 6)]
    assert strings[0] == ""
    types = [[strings[int(n)] for _, n in fields(each)] for each in repeated(data, 1)]
    assert types == [["samples", "count"], ["cpu", "nanoseconds"]]
    functions = {dict(fields(each))[1]: dict(fields(each)) for each in repeated(data, 5)}
    names = {n: strings[int(each[2])] for n, each in functions.items()}
    lines = {dict(fields(each))[1]: repeated(each, 4)[0] for each in repeated(data, 4)}
    assert all(dict(fields(line))[1] in functions for line in lines.values())
    spinning = 0
    for sample in repeated(data, 2):
        [packed] = repeated(sample, 1)
        at = 0
        stack = []
        while at < len(packed):
            number, at = varint(packed, at)
            stack.append(names[dict(fields(lines[number]))[1]])
        [counted] = repeated(sample, 2)
        count, at = varint(counted, 0)
        assert varint(counted, at)[0] == count * round(samples.interval_s * 1e9)
        spinning += count * ("spin" in stack)
    assert spinning == samples_of(samples, "spin")


def test_text_names_the_functions(samples: Profile) -> None:
    """What was busiest comes first, but for threads that wait, which other tests may have left."""
    lines = list(text_lines(samples, 40))
    assert "sampled 200 times a second" in lines[0]
    assert "spin" in "\n".join(lines)


def test_an_empty_profile_has_each_form() -> None:
    """A process that did nothing is no error."""
    empty = Profile(0.01, 0)
    assert gzip.decompress(pprof_bytes(empty))
    assert list(text_lines(empty, 5))


def test_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks beyond the limit are counted as one, and have a name in each form."""
    monkeypatch.setattr("trionsq.debug.profile._MAX_STACKS", 2)
    thread = ThreadProfile("t")
    code = spin.__code__
    for number in (1, 2, 3, 4, 1):
        thread.add(((code, number),), 1)
    assert list(thread.stacks.values()) == [2, 1, 2]
    limited = Profile(0.01, 0, threads=[thread])
    assert "beyond the limit" in "\n".join(text_lines(limited, 5))
    assert gzip.decompress(pprof_bytes(limited))


async def test_one_profiles_at_a_time_and_nobody_after_a_cancellation() -> None:
    """A second one is refused; the timer of a cancelled one ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(profile, 60)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnderWayError, match="profile"):
            await profile(0.01)
        nursery.cancel_scope.cancel()
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


async def test_a_timer_that_is_in_use_is_left_alone() -> None:
    """Another profiler of the process goes on; ours refuses."""
    signal.setitimer(signal.ITIMER_PROF, 1000)
    try:
        with pytest.raises(UnderWayError, match="profile"):
            await profile(0.01)
        assert signal.getitimer(signal.ITIMER_PROF) != (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def test_an_event_loop_in_another_thread_is_refused() -> None:
    """No timer can interrupt it."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            trio.run(profile, 0.01)
        except NotInMainThreadError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(errors) == 1
