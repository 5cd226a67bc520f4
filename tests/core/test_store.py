"""Memory up to a limit, and a backend behind it (trionsq.core.queue)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.helpers import MemoryBackend, contents, message_ids, run_out, segment
from trionsq.core.containers import free
from trionsq.core.queue import BackendBusy, BackendError, Store
from trionsq.core.round import Round


def stored(store: Store) -> list[bytes]:
    """The ids in memory, then those in the backend; takes them out."""
    ids: list[bytes] = []
    while store.memory:
        ids += store.memory.pop_segment(2**63, 2**63).ids()
    while (read := store.backend.read(2**63, 2**63)) is not None:
        ids += read.ids()
    return ids


def test_memory_first_then_the_backend() -> None:
    """A segment that does not fit is split at the limit."""
    backend = MemoryBackend()
    store = Store(5, backend)
    assert store.append(segment(0, 3)) == 3
    assert store.append(segment(3, 4, attempts=2)) == 2
    *_, in_memory = store.memory.peek()
    assert contents(in_memory) == contents(segment(3, 4, attempts=2))[:2]
    assert (store.memory.depth, backend.depth, store.depth, store.room) == (5, 2, 7, 0)
    assert store.append(segment(7, 2)) == 0
    assert backend.segments[0].attempts == 2
    assert stored(store) == message_ids(0, 9)


def test_many_messages_are_saved_at_once() -> None:
    """As many as 4 MiB hold, or one if it is larger; each append may cost a write."""
    backend = MemoryBackend()
    store = Store(10**6, backend)
    store.memory.append(segment(0, 5000))
    store.memory.append(segment(5000, 5, (2 * 1024 * 1024,)))
    store.save_memory()
    assert [one.count for one in backend.segments] == [5000, 2, 2, 1]


@pytest.mark.parametrize("waiting", [0, 3, 5, 6])
def test_a_refused_segment_leaves_nothing_behind(waiting: int) -> None:
    """All messages or none, also when some would have fitted in memory."""
    store = Store(5, MemoryBackend(refuses=True))
    if waiting:
        store.memory.append(segment(0, waiting))
    with pytest.raises(BackendError, match="no space"):
        store.append(segment(10, 6))
    assert (store.depth, store.backend.depth) == (waiting, 0)


def test_what_was_there_before_is_never_refused() -> None:
    """Requeued messages go to the backend if memory is full, and over the limit if that fails."""
    backend = MemoryBackend()
    store = Store(2, backend)
    store.restore(segment(0, 2, attempts=1))
    assert (store.memory.depth, backend.depth) == (2, 0)
    store.restore(segment(2, 2, attempts=1))
    assert (store.memory.depth, backend.depth) == (2, 2)
    backend.refuses = True
    store.restore(segment(4, 2, attempts=1))
    assert (store.memory.depth, backend.depth, backend.refusals) == (4, 2, 1)
    assert store.room == -2
    with pytest.raises(BackendError):
        store.append(segment(6, 1))
    assert sorted(stored(store)) == message_ids(0, 6)


def test_empty_drops_both_parts() -> None:
    """And says how many messages that were."""
    store = Store(2, MemoryBackend())
    store.memory.append(segment(0, 2))
    assert store.append(segment(2, 4)) == 0
    memory = store.empty()
    assert (len(memory), store.dropped, store.depth) == (2, {"emptied": 6}, 0)
    assert run_out(free(memory)) == 1
    assert len(memory) == 0


def test_a_backend_that_is_behind_is_left_alone() -> None:
    """`BackendBusy`, and nothing changed; what has room in memory is taken all the same."""
    backend = MemoryBackend()
    backend.behind = True
    store = Store(5, backend)
    assert store.append(segment(0, 5)) == 5
    with pytest.raises(BackendBusy):
        store.append(segment(5, 1))
    assert (store.depth, backend.depth, backend.refusals) == (5, 0, 0)
    # What was there before does not wait.
    store.restore(segment(5, 1))
    assert backend.depth == 1


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_saving_keeps_what_was_not_taken(takes: int) -> None:
    """In order, in memory, to be tried again."""
    backend = MemoryBackend()
    store = Store(10, backend)
    for first in (0, 3, 6):
        store.memory.append(segment(first, 3))
    backend.takes = takes
    with pytest.raises(BackendError):
        store.save_memory()
    assert (backend.depth, store.memory.depth) == (3 * takes, 9 - 3 * takes)
    backend.takes = None
    store.save_memory()
    assert (store.memory.depth, stored(store)) == (0, message_ids(0, 9))


def test_no_memory_at_all() -> None:
    """With --mem-queue-size=0 everything goes to the backend."""
    store = Store(0, MemoryBackend())
    assert store.append(segment(0, 3)) == 0
    store.restore(segment(3, 1))
    assert (store.memory.depth, store.backend.depth) == (0, 4)


def test_a_backend_that_takes_all_that_is_published() -> None:
    """Memory is for what returns: none of what is published goes there, whatever room it has."""
    backend = MemoryBackend(has_published=True)
    store = Store(3, backend)
    assert store.append(segment(0, 2)) == 0
    store.restore(segment(2, 2, attempts=1))
    assert store.append(segment(4, 2)) == 0
    assert (store.memory.depth, backend.depth) == (2, 4)
    store.restore(segment(6, 2, attempts=1))  # over the limit, as with any backend
    assert (store.memory.depth, backend.depth, store.backend_in_count) == (2, 6, 6)
    backend.behind = True
    with pytest.raises(BackendBusy):
        store.append(segment(8, 1))


def test_a_round_calls_back_in_order_and_once() -> None:
    """Who asks while it is open is called when it ends, who asks later at once."""
    one = Round()
    heard: list[str] = []
    one.when_done(lambda: heard.append("first"))
    one.when_done(lambda: heard.append(f"second {one.is_done} {one.error}"))
    assert (heard, one.is_done) == ([], False)
    one.finish("no space")
    one.when_done(lambda: heard.append("late"))
    assert heard == ["first", "second True no space", "late"]


def test_a_callback_that_raises_holds_up_no_other() -> None:
    """Whoever waits for a round hears of its end, whatever became of another; the defect shows."""
    one = Round()
    heard: list[str] = []

    def fail() -> None:
        raise ValueError("defect")

    one.when_done(fail)
    one.when_done(lambda: heard.append("called"))
    with pytest.raises(ValueError, match="defect"):
        one.finish()
    assert (heard, one.is_done, one.error) == (["called"], True, None)


def test_a_turn_calls_some_of_very_many_back() -> None:
    """Thousands of publishers hear in several turns, in their order, each once."""
    one = Round()
    heard: list[int] = []
    later: list[Callable[[], None]] = []
    for number in range(600):
        one.when_done(lambda number=number: heard.append(number))  # type: ignore[misc]
    one.finish(soon=later.append)
    turns = [len(heard)]
    one.when_done(lambda: heard.append(-1))
    while later:
        later.pop()()
        turns.append(len(heard))
    assert turns == [256, 513, 601]
    assert heard == [*range(256), -1, *range(256, 600)]
