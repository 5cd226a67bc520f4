"""What is done at the end of a look at the input (trionsq.transports.turn)."""

from __future__ import annotations

import time

import pytest

from trionsq.transports.turn import Turn


def test_moves_come_first_then_writes() -> None:
    """All are done once, at the end of the look, in their order."""
    turn, done = Turn(), list[str]()
    with turn:
        turn.write_later(lambda: done.append("write"))
        turn.move_later(lambda is_late: done.append(f"move late={is_late}"))
        turn.move_later(lambda is_late: done.append("second move"))
        assert done == []
    assert done == ["move late=False", "second move", "write"]
    with turn:
        pass
    assert len(done) == 3


def test_a_move_may_add_moves_and_writes() -> None:
    """They belong to the same turn, which is open until the moves are done."""
    turn, done = Turn(), list[str]()

    def write() -> None:
        done.append(f"write open={turn.is_open}")

    def second(is_late: bool) -> None:
        done.append("second")
        turn.write_later(write)

    def first(is_late: bool) -> None:
        done.append(f"first open={turn.is_open}")
        turn.move_later(second)

    with turn:
        turn.move_later(first)
    assert done == ["first open=True", "second", "write open=False"]


def test_what_is_stored_comes_before_all_else() -> None:
    """It may add moves; a long look stores before it writes."""
    turn, done = Turn(), list[str]()

    def store() -> None:
        done.append("store")
        turn.move_later(lambda is_late: done.append("move"))

    with turn:
        turn.deliver_later(lambda: done.append("deliver"))
        turn.store_later(store)
    assert done == ["store", "move", "deliver"]
    done.clear()
    with turn:
        turn.store_later(store)
        turn.write_later(lambda: done.append("write"))
        turn.write_now()
        assert done == ["store", "write"]
    assert done == ["store", "write", "move"]


def test_answers_come_before_moves_that_write_nothing() -> None:
    """If the last ones wrote, these will: both go out at once."""
    turn, done = Turn(), list[str]()

    def look(*, delivers: bool) -> list[str]:
        done.clear()

        def move(is_late: bool) -> None:
            done.append("move")
            if delivers:
                turn.write_later(lambda: done.append("message"))

        with turn:
            turn.move_later(move)
            turn.write_later(lambda: done.append("answer"))
        return list(done)

    assert look(delivers=False) == ["move", "answer"]
    assert look(delivers=False) == ["answer", "move"]
    assert look(delivers=True) == ["answer", "move", "message"]
    assert look(delivers=True) == ["move", "answer", "message"]


def test_a_long_look_writes_before_its_end() -> None:
    """What is known by then; what comes later is written at the end. Nothing is written twice."""
    turn, done = Turn(), list[str]()
    with turn:
        turn.write_later(lambda: done.append("first"))
        turn.write_now()
        assert done == ["first"]
        turn.write_later(lambda: done.append("second"))
    assert done == ["first", "second"]


def test_moves_that_take_too_long_are_left_to_others() -> None:
    """The rest is told that it is late; all are told."""
    turn, late = Turn(), list[bool]()

    def slow(is_late: bool) -> None:
        late.append(is_late)
        began_s = time.perf_counter()
        while time.perf_counter() < began_s + 0.004:
            pass

    with turn:
        for _ in range(3):
            turn.move_later(slow)
    assert late == [False, True, True]


def test_a_look_that_fails_ends_its_turn() -> None:
    """What others have brought is done, and the turn is over."""
    turn, done = Turn(), list[bool]()

    def look() -> None:
        with turn:
            turn.move_later(done.append)
            raise OSError("it broke")

    with pytest.raises(OSError, match="broke"):
        look()
    assert done == [False]
    assert not turn.is_open
