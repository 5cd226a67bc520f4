"""Two processes that have a log in an object store: it has one writer, whoever sleeps, and when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from obstore.exceptions import PermissionDeniedError

from pipelines.errors import WalError, WalFencedError
from pipelines.wal import LogView, Wal
from tests.pipelines.wal.logs import block
from tests.pipelines.wal.stores import FaultyStore, numbers_in, open_stored, view_of


def test_the_former_writer_writes_no_more() -> None:
    """Whoever opens the log has it; the former one's appends are refused for ever, also when all
    that was there has been trimmed."""
    store = FaultyStore()
    former = open_stored(store)
    former.append([block(0)])
    log = open_stored(store)
    with pytest.raises(WalFencedError, match="taken over by another process"):
        former.append([block(1)])
    for number in range(1, 9):
        log.append([block(number)])
        log.commit(log.end)
    sleeper = open_stored(store)
    last = open_stored(store)
    last.append([block(9)])
    last.append([block(10)])
    last.commit(last.end)
    last = open_stored(store)
    for writer in (former, log, sleeper):
        with pytest.raises(WalFencedError):
            writer.append([block(77)])
    assert last.append([block(11)]) == 12
    view = view_of(store)
    assert numbers_in(store, view.segments(view.first, view.end))[-1:] == [11]


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_takeover_at_any_request_of_the_former_writer(at: int, lost: str) -> None:
    """The former writer sleeps at any of its requests, and wakes up when the new one has appended:
    its segment is in the log for both, or for none."""
    store = FaultyStore()
    former = open_stored(store)
    former.append([block(0)])
    left = [at]
    taken: list[tuple[Wal, int]] = []

    def take(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            log = open_stored(store)
            taken.append((log, log.end))
            log.append([block(7)])

    setattr(store, lost, take)
    done = 0
    try:
        for number in range(1, 8):
            former.append([block(number)])
            done += 1
            former.commit(0)
    except WalFencedError:
        assert taken
    ((log, end),) = taken
    setattr(store, lost, FaultyStore().before)
    found = numbers_in(store, log.segments(0, log.end))
    # What was stored while its writer slept counts, answered or not.
    assert found in ([*range(end), 7], [*range(done + 1), 7])
    assert done <= end
    with pytest.raises(WalFencedError):
        former.append([block(99)])
    assert numbers_in(store, view_of(store).segments(0, log.end)) == found


def test_two_that_open_at_the_same_time() -> None:
    """One of them has the log in the end, and both know which."""
    for at in range(1, 20):
        store = FaultyStore()
        open_stored(store).append([block(0)])
        others: list[Wal] = []
        left = [at]

        def other(
            *_: object,
            left: list[int] = left,
            store: FaultyStore = store,
            others: list[Wal] = others,
        ) -> None:
            left[0] -= 1
            if not left[0]:
                others.append(open_stored(store))

        store.before = other
        first = open_stored(store)
        store.before = FaultyStore().before
        if not others:
            assert at > 6
            return
        results = []
        for log in (first, *others):
            try:
                log.append([block(1)])
                results.append(True)
            except WalFencedError:
                results.append(False)
        assert results.count(True) == 1
        assert open_stored(store).end == 2
    raise AssertionError("opening takes too many requests")


@pytest.mark.parametrize("look", [open_stored, view_of])
def test_a_log_is_opened_while_another_process_appends_commits_and_trims(
    look: Callable[[FaultyStore], Wal | LogView],
) -> None:
    """Whatever happens between two requests, it is no damage; and no message is missing."""
    for at in range(1, 20):
        store = FaultyStore()
        log = open_stored(store)
        for number in range(3):
            log.append([block(number)])
        left = [at]

        def work(*_: object, left: list[int] = left, log: Wal = log) -> None:
            left[0] -= 1
            if not left[0]:
                with suppress(WalFencedError):
                    log.append([block(3)])
                    log.append([block(4)])
                    log.commit(4)

        store.before = work
        found = look(store)
        if left[0] > 0:
            assert at > 4
            return
        store.before = FaultyStore().before
        first = max(found.committed, found.first)
        refs = found.segments(first, found.end)
        assert numbers_in(store, refs) == list(range(first, found.end))
        if isinstance(found, Wal):
            with pytest.raises(WalFencedError):
                log.append([block(99)])
            assert found.append([block(found.end)]) == found.end
            assert view_of(store).end == found.end
    raise AssertionError("opening takes too many requests")


@pytest.mark.parametrize("appends", [2, 3])
def test_a_new_writer_that_comes_too_late_and_dies_does_no_harm(appends: int) -> None:
    """Its empty segment got the name of one with messages that was trimmed meanwhile."""
    store = FaultyStore()
    log = open_stored(store)
    log.append([block(0)])

    def work(name: str, key: object = "", *_: object) -> None:
        if name != "put" or "segments/" not in str(key):
            return
        store.before = FaultyStore().before
        for number in range(1, appends + 1):
            log.append([block(number)])
        log.commit(log.end)
        store.after = die

    def die(*_: object) -> None:
        raise PermissionDeniedError("403")

    store.before = work
    with pytest.raises(WalError, match="403"):
        open_stored(store)
    store.after = FaultyStore().after
    view = view_of(store)
    assert (view.first, view.end) == (log.first, log.end)
    again = open_stored(store)
    assert [len(ids) for parts in again.recent_ids(10) for _, ids in parts] == [1]
    assert again.append([block(78)]) == log.end + 1
    with pytest.raises(WalFencedError):
        log.append([block(99)])
    assert view.refresh()
    assert numbers_in(store, view.segments(log.end, again.end)) == [78]
