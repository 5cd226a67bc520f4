"""A file system between two syncs: contents and names, in the page cache and durable."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from random import Random
from typing import Generic, TypeVar

__all__ = ["FileContent", "FolderNames", "torn_range"]

_Change = TypeVar("_Change")

# A change of a content: bytes written at an offset; None: truncated there.
_ContentChange = tuple[int, bytes | None]
# An atomic change of names: the content that each of them means afterwards.
_NameChange = tuple[tuple[str, "FileContent | None"], ...]


class _ChangeState(Enum):
    """How durable a change is."""

    DIRTY = auto()  # the next sync makes it durable
    UNCERTAIN = auto()  # a sync of it failed: later syncs ignore it, and it may get lost
    DURABLE = auto()  # kept in the history only because an earlier change is not


class _History(Generic[_Change]):
    """The changes since the last completely durable state, in order."""

    def __init__(self) -> None:
        self._changes: list[tuple[_Change, _ChangeState]] = []

    def __iter__(self) -> Iterator[tuple[_Change, bool]]:
        """Yield each change, and whether it is durable."""
        return ((change, state is _ChangeState.DURABLE) for change, state in self._changes)

    def uncertain(self) -> list[_Change]:
        """Return the changes whose sync failed: they may get lost."""
        return [change for change, state in self._changes if state is _ChangeState.UNCERTAIN]

    def add(self, change: _Change, state: _ChangeState = _ChangeState.DIRTY) -> None:
        self._changes.append((change, state))

    def mark(self, new_state: _ChangeState) -> list[_Change]:
        """Set the state of all dirty changes; remove and return the first ones that are durable."""
        self._changes = [
            (change, new_state if state is _ChangeState.DIRTY else state)
            for change, state in self._changes
        ]
        return self._pop_durable()

    def mark_newest(self, new_state: _ChangeState) -> list[_Change]:
        """Do the same with the newest change alone."""
        change, _ = self._changes[-1]
        self._changes[-1] = (change, new_state)
        return self._pop_durable()

    def _pop_durable(self) -> list[_Change]:
        count = 0
        for _, is_durable in self:
            if not is_durable:
                break
            count += 1
        done = [change for change, _ in self._changes[:count]]
        del self._changes[:count]
        return done


class FileContent:
    """The content of a file, apart from its name."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.history: _History[_ContentChange] = _History()

    def change(self, offset: int, data: bytes | None) -> None:
        self.history.add((offset, data))
        _apply(self.data, offset, data)

    def mark_durable(self) -> None:
        self._mark(_ChangeState.DURABLE)

    def mark_uncertain(self) -> None:
        self._mark(_ChangeState.UNCERTAIN)

    def mark_newest_durable(self) -> None:
        """Make the newest change durable, but not those before it."""
        for change in self.history.mark_newest(_ChangeState.DURABLE):
            _apply(self.durable, *change)

    def mark_newest_uncertain(self) -> None:
        self.history.mark_newest(_ChangeState.UNCERTAIN)

    def _mark(self, new_state: _ChangeState) -> None:
        for change in self.history.mark(new_state):
            _apply(self.durable, *change)

    def after_power_loss(self, random: Random) -> bytes:
        result = bytearray(self.durable)
        keep = random.choice((0.0, 0.5, 0.9, 1.0))
        for (offset, data), is_durable in self.history:
            if is_durable or random.random() < keep:
                _apply(result, offset, data)
            elif data is not None:
                first, last = torn_range(random, len(data))
                _apply(result, offset, data[:first])
                _apply(result, offset + last, data[last:])
                if random.random() < 0.5:  # the new size became durable, the bytes did not
                    result.extend(bytes(max(0, offset + len(data) - len(result))))
        return bytes(result)


class FolderNames:
    """The content that each name means."""

    def __init__(self) -> None:
        self.names: dict[str, FileContent] = {}
        self.durable: dict[str, FileContent] = {}
        self.history: _History[_NameChange] = _History()

    def change(self, change: _NameChange) -> None:
        self.history.add(change)
        _rename(self.names, change)

    def change_durably(self, change: _NameChange) -> None:
        self.history.add(change, _ChangeState.DURABLE)
        _rename(self.names, change)

    def mark_durable(self) -> None:
        self._mark(_ChangeState.DURABLE)

    def mark_uncertain(self) -> None:
        self._mark(_ChangeState.UNCERTAIN)

    def uncertain(self) -> set[str]:
        """Return the names whose content or meaning may get lost, for a sync failed."""
        found = {name for name, file in self.names.items() if file.history.uncertain()}
        return found.union(name for change in self.history.uncertain() for name, _ in change)

    def _mark(self, new_state: _ChangeState) -> None:
        for change in self.history.mark(new_state):
            _rename(self.durable, change)

    def after_power_loss(self, random: Random) -> dict[str, bytes]:
        names = dict(self.durable)
        keep = random.choice((0.0, 0.5, 1.0))
        lost: set[str] = set()
        for change, is_durable in self.history:
            touched = {name for name, _ in change}
            # Changes of one name happen in order.
            if is_durable or (not touched & lost and random.random() < keep):
                _rename(names, change)
            else:
                lost |= touched
        contents: dict[FileContent, bytes] = {}
        for content in names.values():
            if content not in contents:
                contents[content] = content.after_power_loss(random)
        return {name: contents[content] for name, content in names.items()}


def _apply(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del target[offset:]
    if data is None or data:
        target.extend(bytes(max(0, offset - len(target))))
    if data:
        target[offset : offset + len(data)] = data


def _rename(target: dict[str, FileContent], change: _NameChange) -> None:
    for name, content in change:
        if content is None:
            target.pop(name, None)
        else:
            target[name] = content


def torn_range(random: Random, size: int) -> tuple[int, int]:
    """Draw the missing part of a torn write: all of it, its end, or any part."""
    first, last = sorted((random.randint(0, size), random.randint(0, size)))
    return random.choice(((0, size), (first, size), (first, last)))
