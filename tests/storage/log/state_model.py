"""What the log engine's state has to be: the changes one after the other, in dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random

from tests.storage.log.sqlite_disk import open_state
from trionsq.storage.log.rows import (
    AddChannel,
    AddTopic,
    Change,
    DropChannel,
    DropHeld,
    DropTopic,
    ForgetTopic,
    PutHeld,
    PutMeta,
    State,
    StateContent,
    StateError,
    StoredChannel,
    StoredHeld,
    StoredTopic,
    UpdateChannel,
    UpdateTopic,
)
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import MemoryState

__all__ = ["KINDS", "Candidates", "StateModel", "draw_changes", "history"]

KINDS: dict[str, Callable[[SimulatedDisk], State]] = {
    "SQLite": open_state,
    "in memory": MemoryState,
}
"""How to open the state on a simulated disk."""


class StateModel:
    """The rows by key. The interface of `StateTables` one change at a time."""

    def __init__(self) -> None:
        self.topics: dict[int, StoredTopic] = {}
        self.channels: dict[int, StoredChannel] = {}
        self.held: dict[tuple[int, int], StoredHeld] = {}
        self.tombstones: dict[int, str] = {}
        self.meta: dict[str, bytes] = {}
        self.next_number = 1

    def content(self) -> StateContent:
        return StateContent(
            topics=[row for _, row in sorted(self.topics.items())],
            channels=[row for _, row in sorted(self.channels.items())],
            held=[row for _, row in sorted(self.held.items())],
            tombstones=self.tombstones,
            meta=self.meta,
            next_number=self.next_number,
        )

    def after(self, changes: Sequence[Change]) -> StateModel:
        """Return another model, with the changes."""
        result = deepcopy(self)
        for change in changes:
            result._apply(change)
        return result

    def _apply(self, change: Change) -> None:
        match change:
            case AddTopic(row):
                self.topics[row.number] = row
                self.next_number = max(self.next_number, row.number + 1)
            case AddChannel(row):
                self.next_number = max(self.next_number, row.number + 1)
                if row.topic in self.topics:
                    self.channels[row.number] = row
            case UpdateTopic(row):
                if old_topic := self.topics.get(row.number):
                    self.topics[row.number] = replace(row, name=old_topic.name)
            case UpdateChannel(row):
                if old := self.channels.get(row.number):
                    self.channels[row.number] = replace(row, name=old.name, topic=old.topic)
            case DropTopic(number):
                if topic := self.topics.pop(number, None):
                    self.tombstones[number] = topic.name
                for channel in list(self.channels.values()):
                    if channel.topic == number:
                        self._drop_channel(channel.number)
            case DropChannel(number):
                self._drop_channel(number)
            case ForgetTopic(number):
                self.tombstones.pop(number, None)
            case PutHeld(row):
                if row.channel in self.channels:
                    self.held[row.channel, row.chunk] = row
            case DropHeld(channel_number, chunks):
                for chunk in chunks:
                    self.held.pop((channel_number, chunk), None)
            case PutMeta(key, value):
                self.meta[key] = value

    def _drop_channel(self, number: int) -> None:
        self.channels.pop(number, None)
        self.held = {key: row for key, row in self.held.items() if key[0] != number}


class Candidates:
    """A state beside its model: what a crash may leave, and what was not applied yet.

    Attributes:
        model: with all that was applied.
    """

    def __init__(self, state: State, model: StateModel | None = None) -> None:
        self.state = state
        self.model = model or StateModel()
        self.uncertain: list[StateModel] = []
        self.failed: list[Change] = []

    def apply(self, changes: Sequence[Change]) -> bool:
        """Apply them behind those that failed; return whether that worked."""
        changes = [*self.failed, *changes]
        if not changes:
            return True
        after = self.model.after(changes)
        self.uncertain.append(after)  # from the first operation on
        try:
            self.state.apply(changes)
        except StateError:
            self.failed = changes
            return False
        self.model, self.uncertain, self.failed = after, [], []
        return True

    def reopened(self, state: State) -> Candidates:
        """The same state after a crash, opened again; fails if it is none of the candidates."""
        content = state.load()
        for model in (self.model, *self.uncertain):
            if content == model.content():
                return Candidates(state, model)
        raise AssertionError(f"{content} is none of {[m.content() for m in self.uncertain]}")


def history(random: Random, count: int) -> list[list[Change]]:
    """Draw so many transactions. Numbers are never given again; late changes come as well."""
    numbers = [1]
    return [draw_changes(random, numbers, random.choice((1, 1, 3, 12))) for _ in range(count)]


def draw_changes(random: Random, numbers: list[int], count: int) -> list[Change]:
    """Draw a transaction. ``numbers`` are those given so far, and those given by it."""
    return [_change(random, numbers) for _ in range(count)]


_WEIGHTS = {
    AddTopic: 3,
    AddChannel: 5,
    UpdateTopic: 4,
    UpdateChannel: 6,
    DropTopic: 1,
    ForgetTopic: 1,
    DropChannel: 1,
    PutHeld: 6,
    DropHeld: 3,
    PutMeta: 1,
}


def _change(random: Random, numbers: list[int]) -> Change:
    """Draw a change of one of the last numbers, be it of a topic or of a channel."""
    kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    number, other = (random.choice(numbers[-12:]) for _ in range(2))
    data = random.randbytes(random.choice((0, 0, 7, 60, 700, 9_000)))
    if kind is AddTopic or kind is AddChannel:
        number = numbers[-1] + random.choice((1, 1, 5))
        numbers.append(number)
    position = random.choice((0, random.getrandbits(20), random.getrandbits(63)))
    if kind is AddTopic or kind is UpdateTopic:
        frontier = random.choice((None, position))
        gaps = tuple((at, at + 2**62) for at in range(random.choice((0, 0, 3))))
        topic = StoredTopic(
            number, f"t{number % 5}", "always", position % 2 == 0, frontier, 7, position, gaps
        )
        return kind(topic)
    if kind is AddChannel or kind is UpdateChannel:
        is_paused = random.random() < 0.5
        channel = StoredChannel(number, other, "c#é", is_paused, position, 2**63 - 1, data, -1)
        return kind(channel)
    if kind is PutHeld:
        return PutHeld(StoredHeld(number, random.randrange(3), 1, position, data))
    if kind is DropHeld:
        return DropHeld(number, tuple(range(random.randrange(3))))
    if kind is PutMeta:
        return PutMeta(random.choice(("a", "b")), data)
    assert kind is DropTopic or kind is ForgetTopic or kind is DropChannel
    return kind(number)
