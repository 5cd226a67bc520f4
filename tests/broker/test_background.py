"""Blocking work in real threads (trionsq.broker.background)."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from trionsq.broker.background import ThreadBackground
from trionsq.disk import RealDisk
from trionsq.storage.folder import Job, JobDone
from trionsq.transports.poller import Poller

LIMIT_S = 60.0


@pytest.fixture
async def background(nursery: trio.Nursery) -> ThreadBackground:
    made = ThreadBackground()
    await nursery.start(made.run)
    return made


async def test_a_job_runs_elsewhere_and_its_end_is_told_here(background: ThreadBackground) -> None:
    """``done`` is called in the thread of trio, with the error of the job or None."""
    here = threading.get_ident()
    ran_in: list[int] = []
    told: list[tuple[int, Exception | None]] = []

    def job() -> None:
        ran_in.append(threading.get_ident())
        if len(ran_in) == 2:
            raise OSError(errno.EIO, "no")

    for _ in range(2):
        background.submit(job, lambda error: told.append((threading.get_ident(), error)))
        with trio.fail_after(LIMIT_S):
            await background.wait_idle()
    assert here not in ran_in
    assert [thread for thread, _ in told] == [here, here]
    assert told[0][1] is None
    assert isinstance(told[1][1], OSError)
    assert told[1][1].errno == errno.EIO
    assert background.defects.count == 0


async def test_idle_means_that_what_followed_is_done_too(background: ThreadBackground) -> None:
    """A job that is submitted by the ``done`` of another one is waited for."""
    left = 5

    def again(error: Exception | None) -> None:
        nonlocal left
        left -= 1
        if left:
            background.submit(lambda: None, again)

    background.submit(lambda: None, again)
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert left == 0


async def test_the_poller_knows_how_many_threads_work(nursery: trio.Nursery) -> None:
    """It takes no naps then: only trio's event loop hears of their ends."""
    poller, release = Poller(), threading.Event()
    background = ThreadBackground(poller)
    await nursery.start(background.run)
    counts: list[int] = []

    def job() -> None:
        release.wait(LIMIT_S)

    for _ in range(6):
        background.submit(job, lambda error: counts.append(poller.threads))
    assert poller.threads == 4
    release.set()
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert poller.threads == 0
    assert (len(counts), counts[-1]) == (6, 0)


async def test_idle_without_jobs(background: ThreadBackground) -> None:
    """Before the first job and after the last one there is nothing to wait for; while a job runs
    there is."""
    release = threading.Event()
    ended: list[Exception | None] = []
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
        background.submit(lambda: (release.wait(LIMIT_S), None)[1], ended.append)
        with trio.move_on_after(0.01) as waiting:
            await background.wait_idle()
        assert waiting.cancelled_caught
        release.set()
        await background.wait_idle()
        assert ended == [None]
        await background.wait_idle()


@pytest.mark.parametrize("jobs", [1, 20])
async def test_a_job_that_hangs_does_not_hold_up_the_end(jobs: int) -> None:
    """A cancellation leaves the thread to itself; ``done`` is not called any more."""
    release, began = threading.Event(), threading.Event()
    told: list[Exception | None] = []

    def hang() -> None:
        began.set()
        release.wait(LIMIT_S)

    try:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                background = ThreadBackground()
                await nursery.start(background.run)
                for _ in range(jobs):
                    background.submit(hang, told.append)
                while not began.is_set():
                    await trio.lowlevel.checkpoint()
                with trio.move_on_after(0.01) as waiting:
                    await background.wait_idle()
                assert waiting.cancelled_caught
                nursery.cancel_scope.cancel()
    finally:
        release.set()
    assert told == []


async def test_a_job_that_comes_after_the_end_does_not_begin() -> None:
    """A broker that is cancelled together with its background gets no error from it."""
    told: list[Exception | None] = []
    background = ThreadBackground()
    async with trio.open_nursery() as nursery:
        await nursery.start(background.run)
        nursery.cancel_scope.cancel()
    background.submit(lambda: told.append(None), told.append)
    assert told == []


async def test_no_defect_ends_it(
    background: ThreadBackground, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception that nobody expected, of a job or of what hears of its end, is counted, and
    logged once with its trace; the job's end is told, and the next job runs."""
    told: list[Exception | None] = []

    def job() -> None:
        raise TypeError("a defect")

    def done(error: Exception | None) -> None:
        told.append(error)
        raise KeyError("another")

    for _ in range(3):
        background.submit(job, done)
    background.submit(lambda: None, told.append)
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert [type(error) for error in told].count(TypeError) == 3
    assert None in told
    assert background.defects.count == 6
    assert sorted(record.getMessage() for record in caplog.records) == [
        "a disk job failed by a defect of nsqd: KeyError('another')",
        "a disk job failed by a defect of nsqd: TypeError('a defect')",
    ]
    assert all(record.exc_info for record in caplog.records)


async def test_few_threads_do_many_jobs(background: ThreadBackground) -> None:
    """However many jobs are submitted at once, each is run; four at a time."""
    told: list[Exception | None] = []
    lock = threading.Lock()
    running: list[int] = []
    most = 0

    def job() -> None:
        nonlocal most
        with lock:
            running.append(1)
            most = max(most, len(running))
        time.sleep(0)
        with lock:
            running.pop()

    for _ in range(1_000):
        background.submit(job, told.append)
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert told == [None] * 1_000
    assert 1 <= most <= 4


async def test_without_a_thread_a_job_fails(
    background: ThreadBackground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that has no thread left is a defect that is told; the next job runs again."""
    told: list[Exception | None] = []

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, trio.fail_after(LIMIT_S):
        patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
        background.submit(lambda: None, told.append)
        await background.wait_idle()
    background.submit(lambda: None, told.append)
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert [type(error) for error in told] == [RuntimeError, type(None)]
    assert background.defects.count == 1


async def test_a_series_needs_no_turn_of_the_event_loop(background: ThreadBackground) -> None:
    """One thread goes from job to job while the loop is busy; the ends are told in order, here."""
    here, ran_in = threading.get_ident(), list[int]()
    told: list[tuple[int, int, Exception | None]] = []
    last = threading.Event()
    left = iter(range(5))

    def next_job() -> tuple[Job, JobDone] | None:
        number = next(left, None)
        if number is None:
            last.set()
            return None

        def job() -> None:
            ran_in.append(threading.get_ident())
            if number == 2:
                raise OSError(errno.EIO, "no")

        return job, lambda error: told.append((number, threading.get_ident(), error))

    background.submit_series(next_job)
    assert last.wait(LIMIT_S)
    assert told == []
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert len(set(ran_in)) == 1
    assert here not in ran_in
    assert [(number, thread) for number, thread, _ in told] == [(n, here) for n in range(5)]
    assert [type(error) for _, _, error in told] == [type(None)] * 2 + [OSError] + [type(None)] * 2


async def test_a_series_ends_with_a_defect(background: ThreadBackground) -> None:
    """What cannot say what comes next is a defect that is told; nothing waits for it."""
    told: list[Exception | None] = []

    def next_job() -> tuple[Job, JobDone] | None:
        if threading.current_thread() is threading.main_thread():
            return lambda: None, told.append
        raise KeyError("a defect")

    background.submit_series(next_job)
    background.submit_series(lambda: None)
    with trio.fail_after(LIMIT_S):
        await background.wait_idle()
    assert [type(error) for error in told] == [KeyError]
    assert background.defects.count == 1


async def test_a_series_stops_with_the_background() -> None:
    """Behind the job that runs at the end none begins."""
    began, release, ended = threading.Event(), threading.Event(), threading.Event()
    ran: list[int] = []

    def job() -> None:
        ran.append(1)
        began.set()
        release.wait(LIMIT_S)
        ended.set()

    background = ThreadBackground()
    async with trio.open_nursery() as nursery:
        await nursery.start(background.run)
        background.submit_series(lambda: (job, lambda error: None))
        assert began.wait(LIMIT_S)
        nursery.cancel_scope.cancel()
    release.set()
    assert ended.wait(LIMIT_S)
    assert ran == [1]


# Single writes


@pytest.fixture(params=["kernel", "poller", "thread"])
async def writer(
    request: pytest.FixtureRequest, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> ThreadBackground:
    """What writes, with io_uring and without it."""
    if request.param == "thread":
        monkeypatch.setattr("trionsq.broker.background.open_ring", lambda: None)
    poller = Poller()
    if request.param == "poller":
        nursery.start_soon(poller.run)
        await trio.testing.wait_all_tasks_blocked()
    made = ThreadBackground(poller)
    await nursery.start(made.run)
    if request.param != "thread" and not made.writes_directly:
        pytest.skip("the system has no io_uring, or does not let us use it")
    assert made.writes_directly == (request.param != "thread")
    await trio.testing.wait_all_tasks_blocked()
    assert len(poller) == (request.param == "poller")
    return made


async def test_single_writes_are_in_the_file_when_it_is_told(
    writer: ThreadBackground, tmp_path: Path
) -> None:
    """Many at once, more than the kernel takes; all are there, and each is told of once."""
    file = RealDisk(tmp_path).create("file")
    told: list[Exception | None] = []
    for at in range(30):
        writer.submit_write(file, b"%04d" % at, 4 * at, 0, told.append)
    with trio.fail_after(LIMIT_S):
        await writer.wait_idle()
    assert told == [None] * 30
    assert file.read(1_000, 0) == b"".join(b"%04d" % at for at in range(30))
    file.close()


async def test_a_single_write_that_fails_is_told_of(
    writer: ThreadBackground, tmp_path: Path
) -> None:
    """The error is the system's; a defect of who hears of it does not end the background."""
    (tmp_path / "file").write_bytes(b"")
    file = RealDisk(tmp_path, open_flags=os.O_RDONLY).open("file")
    told: list[Exception | None] = []

    def hear(error: Exception | None) -> None:
        told.append(error)
        raise ValueError("broken")

    for _ in range(2):
        writer.submit_write(file, b"no", 0, 0, hear)
        with trio.fail_after(LIMIT_S):
            await writer.wait_idle()
    assert [isinstance(error, OSError) and error.errno for error in told] == [errno.EBADF] * 2
    assert writer.defects.count == 2
    file.close()


async def test_what_follows_a_single_write_is_waited_for(
    writer: ThreadBackground, tmp_path: Path
) -> None:
    """The next write, or a job, that is submitted when the one before it has ended."""
    file = RealDisk(tmp_path).create("file")
    told: list[str] = []

    def second(error: Exception | None) -> None:
        told.append("second")
        writer.submit(lambda: None, lambda error: told.append("job"))

    def first(error: Exception | None) -> None:
        told.append("first")
        writer.submit_write(file, b"b", 1, 0, second)

    writer.submit_write(file, b"a", 0, 0, first)
    with trio.fail_after(LIMIT_S):
        await writer.wait_idle()
    assert told == ["first", "second", "job"]
    file.close()


async def test_writes_are_heard_of_before_during_and_after_a_poller(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A broker's poller begins after its background, and ends before it."""
    file = RealDisk(tmp_path).create("file")
    poller = Poller()
    background = ThreadBackground(poller)
    await nursery.start(background.run)
    if not background.writes_directly:
        pytest.skip("the system has no io_uring, or does not let us use it")
    told: list[tuple[int, bool]] = []

    async def write() -> None:
        background.submit_write(
            file, b"a", 0, 0, lambda error: told.append((len(poller), poller.turn.is_open))
        )
        with trio.fail_after(LIMIT_S):
            await background.wait_idle()

    await write()
    async with trio.open_nursery() as own:
        own.start_soon(poller.run)
        await trio.testing.wait_all_tasks_blocked()
        await write()
        await write()
        own.cancel_scope.cancel()
    await write()
    assert told == [(0, True), (0, True), (1, True), (0, True)]
    file.close()


async def test_a_single_write_after_the_end_does_not_begin(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """As with jobs: whoever waits for it is being cancelled, too."""
    file = RealDisk(tmp_path).create("file")
    async with trio.open_nursery() as own:
        background = ThreadBackground()
        await own.start(background.run)
        own.cancel_scope.cancel()
    background.submit_write(file, b"no", 0, 0, lambda error: pytest.fail("told"))
    await trio.testing.wait_all_tasks_blocked()
    assert file.size() == 0
    file.close()
