"""The file of the dead letters: what is added stays until it is removed, and is counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from tests.soak import by_level
from trionsq.disk import RealDisk
from trionsq.storage import letters
from trionsq.storage.letters import (
    LETTERS_FILE,
    DeadLetter,
    LetterError,
    LetterFilter,
    SqliteLetters,
)

ALL = 2**62


def letter(number: int, **changes: object) -> DeadLetter:
    one = DeadLetter(
        id=f"{number:016x}",
        dead_topic="orders.dead",
        topic="orders",
        channel="billing",
        node="host:4150",
        message=f"{number + 4096:016x}",
        reason="requeued",
        attempts=3,
        first_ns=1000,
        last_ns=2000 + number,
        client="worker",
        body=b"body %d" % number,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteLetters]:
    opened = SqliteLetters(RealDisk(str(tmp_path)))
    yield opened
    opened.close()


def test_what_is_added_is_there_after_a_new_start(tmp_path: Path) -> None:
    """Byte for byte, also a body that is no text or empty."""
    letters = [letter(1), letter(2, body=bytes(range(256))), letter(3, body=b"")]
    first = SqliteLetters(RealDisk(str(tmp_path)))
    first.add(letters)
    first.close()
    again = SqliteLetters(RealDisk(str(tmp_path)))
    found, total = again.find(LetterFilter(), 10, 1000)
    again.close()
    assert ([one.letter for one in found], total) == (letters, 3)


def test_a_page_has_the_begin_of_bodies(store: SqliteLetters) -> None:
    """The next page goes on behind it."""
    store.add([letter(number) for number in range(5)])
    found, total = store.find(LetterFilter(), 2, 3)
    assert ([one.letter.body for one in found], total) == ([b"bod", b"bod"], 5)
    assert found[0].body_nbytes == 6
    rest, _ = store.find(LetterFilter(after=found[-1].number), 10, 100)
    assert [one.letter for one in rest] == [letter(2), letter(3), letter(4)]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (LetterFilter(topic="orders"), [0, 1, 2]),
        (LetterFilter(topic="other"), [3]),
        (LetterFilter(topic="orders", channel="audit"), [1]),
        (LetterFilter(reason="timed_out"), [2]),
        (LetterFilter(ids=(letter(0).id, letter(3).id)), [0, 3]),
        (LetterFilter(until_ns=2001), [0, 1]),
        (LetterFilter(dead_topic="x"), [3]),
        (LetterFilter(topic="nothing"), []),
    ],
)
def test_a_filter_selects(store: SqliteLetters, wanted: LetterFilter, numbers: list[int]) -> None:
    """The same letters for a list, a replay and a removal."""
    letters = [
        letter(0),
        letter(1, channel="audit"),
        letter(2, reason="timed_out"),
        letter(3, topic="other", dead_topic="x"),
    ]
    store.add(letters)
    found, total = store.find(wanted, 10, 100)
    assert [one.letter for one in found] == [letters[number] for number in numbers]
    assert total == len(numbers)
    assert store.mark_replay(wanted, ALL) == len(numbers)
    assert [one.letter for one in store.to_replay(10)] == [letters[number] for number in numbers]
    assert store.remove(wanted, ALL) == len(numbers)
    assert store.find(LetterFilter(), 10, 0).total == 4 - len(numbers)


def test_a_message_has_one_letter(store: SqliteLetters) -> None:
    """If a crash brings it again the newer letter counts; the removal of the older one by its
    number leaves it alone."""
    store.add([letter(1)])
    [old] = store.find(LetterFilter(), 10, 100).letters
    store.add([letter(2, message=letter(1).message)])
    [new] = store.find(LetterFilter(), 10, 100).letters
    assert new.letter.id == letter(2).id
    assert store.remove_numbers([old.number]) == 0
    assert [one.letters for one in store.tallies()] == [1]


def test_a_file_of_later_or_no_database_is_refused(tmp_path: Path) -> None:
    """With its name: nothing is overwritten."""
    path = tmp_path / LETTERS_FILE
    with sqlite3.connect(path) as later:
        later.execute("PRAGMA user_version = 99")
    later.close()
    with pytest.raises(LetterError, match="of version 99"):
        SqliteLetters(RealDisk(str(tmp_path)))
    path.write_bytes(b"no database" * 100)
    with pytest.raises(LetterError, match=LETTERS_FILE):
        SqliteLetters(RealDisk(str(tmp_path)))
    assert path.read_bytes() == b"no database" * 100


def test_removals_give_the_disk_its_room_back(store: SqliteLetters) -> None:
    """The file does not stay as large as it once was."""
    for number in range(20):
        store.add([letter(number, body=bytes(100_000))])
    before = Path(store.path).stat().st_size
    assert store.remove(LetterFilter(), ALL) == 20
    assert Path(store.path).stat().st_size < before / 10


def test_a_copy_has_what_is_done_while_it_is_made(
    store: SqliteLetters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others do not wait for its end; and it is a store as any other."""
    store.add([letter(number, body=bytes(2_000)) for number in range(20)])
    done: list[int] = []

    def meanwhile(_seconds: float) -> None:
        if len(done) < 3:
            store.remove_numbers([len(done) + 1])
            store.add([letter(20 + len(done))])
            done.append(1)

    monkeypatch.setattr(letters, "_COPIED_PAGES", 2)
    monkeypatch.setattr(letters, "time", SimpleNamespace(sleep=meanwhile))
    (tmp_path / "copy").mkdir()
    folder = RealDisk(str(tmp_path / "copy"))
    store.copy_to(folder)
    assert len(done) == 3
    copy = SqliteLetters(folder)
    found, total = copy.find(LetterFilter(), 100, 10)
    assert total == 20
    assert [one.letter.id for one in found] == [letter(at).id for at in range(3, 23)]
    assert copy.tallies() == store.tallies()
    assert copy.remove(LetterFilter(), ALL) == 20
    copy.close()


@pytest.mark.parametrize("seed", range(by_level(test=5, short=20, full=200)))
def test_the_tallies_are_right_whatever_is_done(seed: int, tmp_path: Path) -> None:
    """Count, bytes, what the topic lacks and the oldest, as a list of all letters says them."""
    random = Random(seed)
    store = SqliteLetters(RealDisk(str(tmp_path)), ":memory:")
    for step in range(60):
        wanted = LetterFilter(channel=random.choice(["", "a", "b"]))
        match random.randrange(5):
            case 0 | 1:
                store.add(
                    [
                        letter(
                            1000 * step + place,
                            channel=random.choice("ab"),
                            message=f"{random.randrange(30):016x}",
                            body=bytes(random.randrange(9)),
                        )
                        for place in range(random.randint(1, 4))
                    ]
                )
            case 2:
                store.mark_fed(one.number for one in store.unfed("orders.dead", 2))
            case 3:
                store.remove(wanted, random.randint(1, 3))
            case 4:
                store.mark_replay(wanted, 2, replay=random.random() < 0.5)
        all_ = store.find(LetterFilter(), 10_000, 100).letters
        for tally in store.tallies():
            mine = [one for one in all_ if one.letter.channel == tally.channel]
            assert tally.letters == len(mine)
            assert tally.nbytes == sum(len(one.letter.body) for one in mine)
            assert tally.unfed == sum(not one.is_fed for one in mine)
            assert tally.oldest_ns == mine[0].letter.last_ns
        assert sum(one.letters for one in store.tallies()) == len(all_)
    store.close()
