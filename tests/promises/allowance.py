"""What may be lost: README, "What is safe and what is not"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Allowance"]


class Allowance:
    """For each nsqd, what it was allowed to lose.

    Attributes:
        killed: nsqds that were killed or lost their power.
        damaged: nsqds whose files were damaged, or could not be read.
        clocks_jumped: nsqds whose wall clock jumped.
        unsaved: nsqds that said at a stop that they could not save everything.
    """

    def __init__(self) -> None:
        self.killed: set[str] = set()
        self.damaged: set[str] = set()
        self.clocks_jumped: set[str] = set()
        self.unsaved: set[str] = set()
        # Messages that were in memory only, by nsqd, topic and channel ("" for the topic).
        self._in_memory: Counter[tuple[str, str, str]] = Counter()
        self._late: dict[str, list[tuple[float, float]]] = {}
        self._due_late: dict[str, list[tuple[float, float]]] = {}
        self._forgetful: dict[str, list[tuple[float, float]]] = {}
        self._power_lost: set[str] = set()

    def note_memory(self, nsqd: str, topic: str, channel: str, count: int) -> None:
        """So many messages of a channel, or of the topic (""), were in memory at a kill."""
        self._in_memory[nsqd, topic, channel] += count

    def note_stats(
        self,
        nsqd: str,
        topics: Iterable[dict[str, Any]],
        ready: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        """It is killed now, and its /stats have these topics.

        If it was at work (``ready`` is given: the sum of the RDY of each channel), it may have read
        messages from files meanwhile: those of the topic, and as many as RDY allows.
        """
        for topic in topics:
            name, on_disk = topic["topic_name"], topic["backend_depth"]
            self.note_memory(nsqd, name, "", topic["depth"] - (on_disk if ready is None else 0))
            for channel in topic["channels"]:
                key = name, channel["channel_name"]
                in_flight, on_disk = channel["in_flight_count"], channel["backend_depth"]
                held = channel["depth"] - on_disk + in_flight + channel["deferred_count"]
                if ready is not None:
                    held += max(0, min(on_disk, ready.get(key, 0) - in_flight))
                self.note_memory(nsqd, *key, held)

    def note_late(
        self, nsqd: str, from_s: float, until_s: float, *, when_due: bool = False
    ) -> None:
        """What it acknowledged in this time may be lost, beside all others.

        ``when_due``: also deferred messages that were due then, and so were written then.
        """
        self._late.setdefault(nsqd, []).append((from_s, until_s))
        if when_due:
            self._due_late.setdefault(nsqd, []).append((from_s, until_s))

    def note_forgetful(self, nsqd: str, from_s: float, until_s: float) -> None:
        """Of what it acknowledged in this time it may have forgotten when it is due."""
        self._forgetful.setdefault(nsqd, []).append((from_s, until_s))

    def note_power_lost(self, nsqd: str) -> None:
        """What no fsync had reached may have become other bytes."""
        self._power_lost.add(nsqd)

    def may_lose_anything(self, nsqd: str) -> bool:
        """Whether no number bounds what an nsqd may lose."""
        return nsqd in self.damaged or nsqd in self.unsaved

    def may_invent(self, nsqd: str) -> bool:
        """Whether bytes of its files may have become others: records have no checksums."""
        return nsqd in self.damaged or nsqd in self._power_lost

    def may_lose_as_late(self, nsqd: str, acked_s: float, due_s: float) -> bool:
        """Whether a message of that time may be lost because of the time."""
        return _is_within(acked_s, self._late.get(nsqd, ())) or _is_within(
            due_s, self._due_late.get(nsqd, ())
        )

    def may_forget_delay(self, nsqd: str, acked_s: float) -> bool:
        """Whether a deferred message of that time, known to somebody or not, may come at once."""
        return _is_within(acked_s, self._forgetful.get(nsqd, ()))

    def most(self, nsqd: str, topic: str, channel: str) -> int:
        """How many older messages of a channel an nsqd may have lost."""
        return self._in_memory[nsqd, topic, ""] + self._in_memory[nsqd, topic, channel]


def _is_within(at_s: float, times: Iterable[tuple[float, float]]) -> bool:
    return any(from_s < at_s <= until_s for from_s, until_s in times)
