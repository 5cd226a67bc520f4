"""The profiler, and each form of its profiles read as the tools read them."""

from __future__ import annotations

import gzip
import json
import pstats
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from trionsq.debug.exclusive import UnderWayError
from trionsq.debug.pprof import pprof_bytes
from trionsq.debug.profile import Clock, Profile, ThreadProfile, profile
from trionsq.debug.profile_forms import pstats_bytes, speedscope_json, text_lines


def spin(until: threading.Event) -> None:
    """Keep a processor busy."""
    while not until.is_set():
        sum(range(1000))


@pytest.fixture(scope="module", params=["cpu", "wall"])
def seen(request: pytest.FixtureRequest) -> Profile:
    """A profile of a program with a busy thread and an idle event loop."""

    async def main() -> Profile:
        until = threading.Event()
        busy = threading.Thread(target=spin, args=(until,), name="busy")
        busy.start()
        try:
            return await profile(0.5, 200, clock=request.param)
        finally:
            until.set()
            busy.join()

    return trio.run(main)


def own_samples(seen: Profile) -> int:
    """Samples of the main thread: what tests before have left others to do is not looked at."""
    main = threading.main_thread().name
    return sum(count for thread, _, count in seen.counted() if thread.name == main)


def samples_of(seen: Profile, function: str) -> int:
    """Samples with that function somewhere in the stack."""
    return sum(
        count
        for _, stack, count in seen.counted()
        if any(code.co_qualname == function for code, _ in stack)
    )


def test_what_is_busy_is_found(seen: Profile) -> None:
    """The busy thread's function has its samples, under the thread's name."""
    assert samples_of(seen, "spin") > 5
    assert "busy" in [thread.name for thread in seen.threads]
    assert seen.seconds >= 0.5


async def test_by_the_processors_clock_waiting_costs_nothing() -> None:
    """A loop that only waits has next to no samples; a busy one as many as it used time."""

    async def busy() -> None:
        while True:
            sum(range(1000))
            await trio.lowlevel.checkpoint()

    idle = await profile(0.2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy)
        seen = await profile(0.5)
        nursery.cancel_scope.cancel()
    assert own_samples(idle) <= 5
    total = own_samples(seen)
    # The timer goes by the kernel's ticks, which on a busy machine are not the time that was used.
    assert 0.5 * seen.cpu_seconds - 0.05 <= total * seen.interval_s <= 2 * seen.cpu_seconds + 0.05
    own = "test_by_the_processors_clock_waiting_costs_nothing.<locals>.busy"
    assert samples_of(seen, own) >= total / 10
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


async def test_a_late_signal_does_no_harm() -> None:
    """By default it would kill the process."""
    await profile(0.01)
    signal.raise_signal(signal.SIGPROF)


async def test_without_the_timer_a_thread_looks() -> None:
    """Somebody else's timer is left alone; what waits is counted and left out."""
    signal.setitimer(signal.ITIMER_PROF, 1000)
    try:
        seen = await profile(0.1)
        assert signal.getitimer(signal.ITIMER_PROF) != (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    assert sum(thread.idle for thread in seen.threads) > 0
    assert samples_of(seen, "EpollIOManager.get_events") == 0
    assert "more in which they waited" in next(text_lines(seen, 5))


def test_pstats_loads_it(seen: Profile, tmp_path: Path) -> None:
    """Total times and callers, by pstats itself."""
    path = tmp_path / "profile"
    path.write_bytes(pstats_bytes(seen))
    stats = pstats.Stats(str(path)).get_stats_profile()
    assert stats.func_profiles["spin"].cumtime == pytest.approx(
        samples_of(seen, "spin") * seen.interval_s, abs=0.002
    )
    assert stats.total_tt > 0
    pstats.Stats(str(path)).strip_dirs().calc_callees()


def test_speedscope_can_show_it(seen: Profile) -> None:
    """All that the schema requires: every sample has a weight, every frame a name."""
    document = json.loads(speedscope_json(seen, "name"))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    assert len(document["profiles"]) == len(seen.threads)
    for each in document["profiles"]:
        assert each.keys() == {
            "type", "name", "unit", "startValue", "endValue", "samples", "weights"
        }  # fmt: skip
        assert (each["type"], each["unit"]) == ("sampled", "seconds")
        assert len(each["samples"]) == len(each["weights"])
        assert sum(each["weights"]) == pytest.approx(each["endValue"])
        assert all(0 <= number < len(frames) for stack in each["samples"] for number in stack)
    busy = next(each for each in document["profiles"] if each["name"] == "busy")
    assert "spin" in [frames[number]["name"] for number in busy["samples"][0]]


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


def test_pprof_can_read_it(seen: Profile) -> None:
    """The messages of profile.proto refer to each other, and each sample adds up."""
    data = gzip.decompress(pprof_bytes(seen))
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
        assert varint(counted, at)[0] == count * round(seen.interval_s * 1e9)
        spinning += count * ("spin" in stack)
    assert spinning == samples_of(seen, "spin")


def test_text_names_the_functions(seen: Profile) -> None:
    """What was busiest comes first, but for threads that wait, which other tests may have left."""
    lines = list(text_lines(seen, 40))
    assert "looked at 200 times a second" in lines[0]
    assert "spin" in "\n".join(lines)


def test_an_empty_profile_has_each_form(tmp_path: Path) -> None:
    """A process that did nothing is no error."""
    empty = Profile(0.01, 0)
    path = tmp_path / "profile"
    path.write_bytes(pstats_bytes(empty))
    pstats.Stats(str(path))
    assert json.loads(speedscope_json(empty, "x"))["profiles"] == []
    assert gzip.decompress(pprof_bytes(empty))
    assert list(text_lines(empty, 5))


def test_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much is counted as one, and has a name in each form."""
    monkeypatch.setattr("trionsq.debug.profile._STACKS_MAX", 2)
    thread = ThreadProfile("t")
    code = spin.__code__
    for number in (1, 2, 3, 4, 1):
        thread.add(((code, number),), 1)
    assert list(thread.samples) == [0, 1, 2, 2, 0]
    seen = Profile(0.01, 0, threads=[thread])
    assert "more stacks" in "\n".join(text_lines(seen, 5))
    assert "more stacks" in speedscope_json(seen, "x")
    assert gzip.decompress(pprof_bytes(seen))


@pytest.mark.parametrize("clock", ["cpu", "wall"])
async def test_one_profiles_at_a_time_and_nobody_after_a_cancellation(clock: Clock) -> None:
    """A second one is refused; the timer or thread of a cancelled one ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(profile, 60, clock=clock))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UnderWayError, match="profile"):
            await profile(0.01)
        nursery.cancel_scope.cancel()
    assert "profiler" not in [thread.name for thread in threading.enumerate()]
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


async def test_waiting_can_be_kept() -> None:
    """A profile by the clock shows waits too."""
    seen = await profile(0.1, 100, clock="wall")
    assert sum(count for _, _, count in seen.counted()) > 0
    assert all(thread.idle == 0 for thread in seen.threads)
    assert time.time_ns() > seen.began_ns
