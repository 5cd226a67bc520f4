"""The damaged places of a node's logs, as operators see them.

A place stays in `DataFolder.faults`, and so in /ping, until its segment is gone, or an operator has
taken note of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from trionsq.storage.folder import error_text
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.segments import Damage

__all__ = ["DamagedPlace", "DamagedPlaces", "show_error"]

log = logging.getLogger("trionsq")

# More places of one node are counted, but not named.
_MAX_PLACES: Final = 10_000


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """A place of which messages are lost.

    Attributes:
        topic: its name; empty for a journal, which has messages of several.
        file: name of the segment, or journal.
        offset: where the place begins; 0 if the whole file is missing or unreadable.
        text: what is wrong, for the operator.
    """

    topic: str
    file: str
    offset: int
    text: str

    @property
    def key(self) -> str:
        return f"{self.file} at {self.offset}"


class DamagedPlaces:
    """See the module. For the event loop's thread."""

    def __init__(self, faults: MutableMapping[Any, str]) -> None:
        """``faults`` has the text of each place by its `DamagedPlace.key`."""
        self._faults = faults
        self._places: dict[str, DamagedPlace] = {}
        # Noted by an operator; reading finds them again.
        self._noted: dict[str, DamagedPlace] = {}

    def __repr__(self) -> str:
        return f"<DamagedPlaces {len(self._places)} noted={len(self._noted)}>"

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[DamagedPlace]:
        """Yield the places that no operator has noted, in the order in which they were found."""
        return iter(self._places.values())

    def report(self, topic: str, file: str, damage: Damage) -> None:
        """Name a damaged stretch, once."""
        text = f"{file}: bytes {damage.offset} to {damage.end} are damaged: {_lost(damage)}"
        self.report_place(DamagedPlace(topic, file, damage.offset, text))

    def report_place(self, place: DamagedPlace) -> None:
        """Name a place, once."""
        key = place.key
        if key in self._places or key in self._noted:
            return
        log.error("LOG%s: %s", place.topic and f"({place.topic})", place.text)
        if len(self._places) + len(self._noted) < _MAX_PLACES:
            self._places[key] = place
            self._faults[key] = place.text

    def note(self, topic: str) -> int:
        """An operator takes note of a topic's places: they are no fault any more.

        Returns how many.
        """
        noted = {key: place for key, place in self._places.items() if place.topic == topic}
        self._noted.update(noted)
        for key in noted:
            del self._places[key]
            self._faults.pop(key, None)
        return len(noted)

    def forget_segments(self, number: int, before: int | None = None) -> None:
        """Forget the places of the log ``number``: its segments are gone.

        ``before``: only those that begin before this sequence are.
        """
        if self._places or self._noted:
            self._forget(lambda file: _is_gone(file, number, before))

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        for places in (self._places, self._noted):
            for key in [key for key, place in places.items() if is_gone(place.file)]:
                del places[key]
                self._faults.pop(key, None)


def _is_gone(file: str, number: int, before: int | None) -> bool:
    parsed = parse_segment_name(file)
    return parsed is not None and parsed[1] == number and (before is None or parsed[2] < before)


def _lost(damage: Damage) -> str:
    if damage.sequence is None or damage.next_sequence is None:
        return "nobody knows which messages are lost"
    count, last = damage.next_sequence - damage.sequence, damage.next_sequence - 1
    if count == 1:
        return f"message {last} is lost"
    return f"messages {damage.sequence} to {last} are lost" if count else "no message is lost"


def show_error(faults: MutableMapping[Any, str], name: str, error: Exception | None) -> None:
    """Show an error of the disk among the faults of a topic's log, or (None) that there is none."""
    key = f"log of {name}"
    if error is None:
        faults.pop(key, None)
        return
    text = error_text(error)
    if faults.get(key) != text:
        log.error("LOG(%s): %s", name, text)
    faults[key] = text
