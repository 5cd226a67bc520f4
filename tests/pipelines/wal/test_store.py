"""A log in an object store: what it promises while requests fail, and while two have it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from obstore.exceptions import GenericError, NotSupportedError, PermissionDeniedError

from pipelines.errors import (
    SetupError,
    WalDamagedError,
    WalError,
    WalFencedError,
    WalFullError,
    WalMissingError,
    WalRangeError,
)
from pipelines.wal import Wal, WalLimits, oldest_ns
from pipelines.wal.objects import open_store
from tests.pipelines.wal.logs import block
from tests.pipelines.wal.stores import (
    URL,
    FakeTime,
    FaultyStore,
    numbers_in,
    open_stored,
    unreachable,
    view_of,
)


def segments_in(store: FaultyStore) -> list[str]:
    return [name for name in store.names() if name.startswith("segments/")]


def test_a_log_is_there_again_after_a_restart() -> None:
    """Id, positions and messages; what is committed and past the retention is removed."""
    store, time = FaultyStore(), FakeTime()
    limits = WalLimits(retention_s=10)
    log = open_stored(store, limits, time)
    assert log.append([block(0, 1), block(2, nsqd="n:2")]) == 3
    assert log.append([block(3)]) == 4
    log.commit(3)
    again = open_stored(store, limits, time)
    assert (again.id, again.first, again.end, again.committed) == (log.id, 0, 4, 3)
    assert [len(parts) for parts in again.recent_ids(100)] == [0, 2, 1, 0]
    assert numbers_in(store, again.segments(1, 4)) == [0, 1, 2, 3]
    time.now_s = 20
    again.append([block(4)])
    again.commit(3)
    assert (again.first, numbers_in(store, again.segments(3, 5))) == (3, [3, 4])
    again.commit(5)
    assert again.first == 4
    last = open_stored(store, limits, time)
    assert (last.end, last.committed) == (5, 5)
    assert last.append([block(5)]) == 6
    with pytest.raises(WalRangeError, match="4 to 6, not 0 to 6"):
        last.segments(0, 6)


def test_the_age_of_a_segment_is_one_request() -> None:
    """The head of a segment has the time of its oldest message; the segment is asked once."""
    store = FaultyStore()
    log = open_stored(store)
    log.append([block(7, 5), block(6, nsqd="n:2")])
    (ref,) = log.segments(0, 3)
    store.requests.clear()
    assert [oldest_ns(ref, store) for _ in range(2)] == [1_700_000_000_000_000_005] * 2
    assert store.requests == ["get_range"]
    with pytest.raises(WalRangeError, match="was committed and trimmed"):
        oldest_ns(replace(ref, path=f"{URL}/segments/gone.arrow"), store)


def test_the_limit_of_the_size_holds() -> None:
    """wal.maxBytes is counted as for a folder; a probe asks nothing of the store."""
    store = FaultyStore()
    log = open_stored(store, WalLimits(max_bytes=5000, retention_s=1000))
    for number in range(3):
        log.append([block(number)])
    with pytest.raises(WalFullError, match=r"wal\.maxBytes"):
        log.append([block(3)])
    with pytest.raises(WalFullError):
        log.probe(3000)
    log.commit(log.end)
    log.probe(1000)
    log.append([block(10)])


def test_without_a_log_there_is_none() -> None:
    """Neither for a writer that may not create one, nor for a reader."""
    store = FaultyStore()
    with pytest.raises(WalMissingError):
        open_stored(store, create=False)
    with pytest.raises(WalMissingError):
        view_of(store)
    assert store.names() == []


@pytest.mark.parametrize("how", ["ignored", "refused"])
def test_a_store_without_conditional_writes_is_refused(how: str) -> None:
    """Whether it ignores the condition or says that it has none; a log that is there stays."""
    store = FaultyStore()
    open_stored(store).append([block(0)])
    before = store.names()

    def refuse(name: str, *_: object) -> None:
        if name == "put":
            raise NotSupportedError("A header you provided implies functionality that is not")

    if how == "ignored":
        store.is_conditional = False
    else:
        store.before = refuse
    for at in (store, FaultyStore()):
        at.is_conditional, at.before = store.is_conditional, store.before
        with pytest.raises(WalError, match="no conditional writes"):
            open_stored(at)
    assert store.names() == before


# Requests that fail


@pytest.mark.parametrize("failures", [1, 7])
@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("work", ["open", "append", "commit", "reopen"])
def test_a_store_that_is_away_for_a_while_does_not_matter(
    work: str, lost: str, failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever requests or answers are lost, the log has each message once."""
    caplog.set_level(logging.ERROR)
    at = 1
    while True:
        store = FaultyStore()
        left = [at, failures]

        def lose(*_: object, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] <= 0 < left[1]:
                left[1] -= 1
                raise GenericError("error sending request")

        def arm(store: FaultyStore = store, lose: object = lose) -> None:
            setattr(store, "before" if lost == "request" else "after", lose)

        if work == "open":
            arm()
        log = open_stored(store)
        if work == "append":
            arm()
        log.append([block(0, 1)])
        if work == "commit":
            arm()
        log.commit(1)
        if work == "reopen":
            arm()
        again = open_stored(store)
        again.append([block(2)])
        view = view_of(store)
        assert (view.committed, numbers_in(store, view.segments(0, 3))) == (1, [0, 1, 2])
        if left[0] > 0:
            assert at > 2
            return
        at += 1


def test_a_store_that_stays_away_is_an_error_after_two_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The text has the reason; one line is logged, at once. Reopened, the log has all of the
    segment or nothing."""
    for lost in ("before", "after"):
        store, time = FaultyStore(), FakeTime()
        log = open_stored(store, time=time)
        log.append([block(0)])
        caplog.clear()
        setattr(store, lost, unreachable)
        with pytest.raises(WalError, match="did not answer for 120 s: error sending") as caught:
            log.append([block(1)])
        assert not isinstance(caught.value, WalFencedError | WalFullError)
        assert 120 <= time.now_s < 200
        assert len(caplog.records) == 1
        with pytest.raises(WalError, match="open the log again"):
            log.append([block(2)])
        setattr(store, lost, FaultyStore().before)
        again = open_stored(store)
        again.append([block(3)])
        expected = [0, 3] if lost == "before" else [0, 1, 3]
        assert numbers_in(store, again.segments(0, again.end)) == expected
        with pytest.raises(WalError, match="open the log again"):
            log.append([block(4)])


def test_a_refusal_is_an_error_at_once_without_its_secrets() -> None:
    """Missing permissions are not waited for; a query in a URL may be a signature."""
    store, time = FaultyStore(), FakeTime()
    log = open_stored(store, time=time)

    def refuse(*_: object) -> None:
        raise PermissionDeniedError("PUT https://x/y?sig=geheim: 403\n\nDebug: geheim")

    store.before = refuse
    with pytest.raises(WalError, match="403") as caught:
        log.append([block(1)])
    assert "geheim" not in str(caught.value)
    assert time.now_s == 0


def test_a_missing_package_and_a_wrong_environment_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    open_store.cache_clear()
    with pytest.raises(SetupError, match=r"pip install 'trionsq\[spark,stores\]'"):
        Wal.open("s3://bucket/a")


# Readers


def test_a_reader_follows_a_log_and_commits() -> None:
    """One listing a look while nothing is new; the writer takes its position over and trims."""
    store, time = FaultyStore(), FakeTime()
    log = open_stored(store, WalLimits(retention_s=0), time)
    view = view_of(store)
    assert (view.id, view.end) == (log.id, 0)
    for number in range(4):
        log.append([block(number)])
    assert view.refresh()
    assert view.segments(0, 4) == log.segments(0, 4)
    store.requests.clear()
    assert not view.refresh()
    assert store.requests == ["list"]
    view.commit(3)
    view.commit(2)
    assert view.segments(3, 4) == log.segments(3, 4)
    time.now_s = 10
    log.append([block(4)])
    assert (log.committed, log.first) == (3, 3)
    late = view_of(store)
    assert (late.first, late.committed, late.end) == (3, 3, 5)
    assert view.refresh()
    view.commit(5)
    late.commit(4)
    assert [name for name in store.names() if name.startswith("committed/")] == [
        f"committed/{5:020}"
    ]
    # A takeover, and a writer that is ahead of the reader
    last = open_stored(store, WalLimits(retention_s=0), time)
    last.append([block(5)])
    assert view.refresh()
    assert numbers_in(store, view.segments(5, 6)) == [5]
    last.append([block(6)])
    last.append([block(7)])
    last.commit(7)
    assert view.refresh()
    assert view.end == 8
    assert numbers_in(store, view.segments(7, 8)) == [7]


def test_a_segment_that_is_missing_is_an_error() -> None:
    """One that was not committed, in the middle or at the end of what was committed."""
    store = FaultyStore()
    log = open_stored(store)
    for number in range(4):
        log.append([block(number)])
    names = segments_in(store)
    store.store.delete([names[2]])
    for look in (open_stored, view_of):
        with pytest.raises(WalDamagedError, match="lacks the segments of"):
            look(store)
    log.commit(4)
    store.store.delete(segments_in(store)[1:])
    with pytest.raises(WalDamagedError, match="lacks the segments of 0 to 4"):
        open_stored(store)


def test_a_segment_of_another_log_or_damaged_is_an_error() -> None:
    """The newest one is read whole when the log is opened."""
    store, other = FaultyStore(), FaultyStore()
    for at in (store, other):
        log = open_stored(at)
        log.append([block(0, 1)])
    name = segments_in(store)[-1]
    good = bytes(store.store.get(name).bytes())
    foreign = bytes(other.store.get(name).bytes())
    for content in (b"", b"{}", good[:50], good[:-20], foreign):
        store.store.put(name, content)
        with pytest.raises(WalDamagedError):
            open_stored(store)
