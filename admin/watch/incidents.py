"""Since when a problem exists; problems of one place become one; what has changed since a poll."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import trio

from admin.watch.health import rank
from admin.watch.snapshot import Problem

__all__ = ["PATIENCE_S", "REMEMBERED_S", "Incidents", "grouped"]

PATIENCE_S: Final[Mapping[str, float]] = {
    # nsqds register again some seconds after an nsqlookupd was restarted.
    "node-unregistered": 30.0,
    # Consumers look for nodes once a minute by default.
    "channel-node-unserved": 90.0,
    # Two readings of /metrics: a short time of much work is usual.
    "node-late": 90.0,
    "node-fsync": 90.0,
}
"""How long a problem of a kind exists before it is shown, in seconds."""
REMEMBERED_S: Final = 120.0
"""A problem that comes back within this time did not end."""
_MAX_INCIDENTS: Final = 20_000
# Problems dated per turn of the event loop: a millisecond.
_PER_TURN: Final = 200

Key = tuple[str, str]


class Incidents:
    """The problems of the last polls, by kind and place."""

    def __init__(self) -> None:
        self._times: dict[Key, tuple[float, float]] = {}

    def state(self) -> list[tuple[str, str, float, float]]:
        """Kind, place, and when each began and was last seen, for the state file."""
        return [(*key, *times) for key, times in self._times.items()]

    def restore(self, state: Iterable[tuple[str, str, float, float]]) -> None:
        """Continue with what `state` returned."""
        self._times = {(kind, where): (began, seen) for kind, where, began, seen in state}

    async def date(self, problems: Iterable[Problem], now_s: float) -> list[Problem]:
        """The problems, each with the time when it began; too young ones are left out.

        Other tasks get their turn in between.
        """
        dated = []
        for number, problem in enumerate(problems):
            if number % _PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            key = problem.kind, problem.where
            began_s, seen_s = self._times.get(key, (now_s, now_s))
            if now_s - seen_s > REMEMBERED_S:
                began_s = now_s
            if key in self._times or len(self._times) < _MAX_INCIDENTS:
                self._times[key] = began_s, now_s
            if problem.since_s is not None:
                # The clock of a node may be ahead of ours.
                began_s = min(problem.since_s, now_s)
            if now_s - began_s >= PATIENCE_S.get(problem.kind, 0.0):
                dated.append(dataclasses.replace(problem, since_s=began_s))
        ended = [key for key, times in self._times.items() if now_s - times[1] > REMEMBERED_S]
        for key in ended:
            del self._times[key]
        return dated


def grouped(problems: Sequence[Problem]) -> list[Problem]:
    """One problem for each place, the worst one with the sentences of all; the worst first."""
    by_place: dict[str, list[Problem]] = {}
    alone = []
    for problem in sorted(problems, key=rank):
        if problem.where:
            by_place.setdefault(problem.where, []).append(problem)
        else:
            alone.append(problem)
    joined = [
        dataclasses.replace(
            first,
            what=" ".join([first.what, *(each.what for each in more)]),
            since_s=min(
                (each.since_s for each in (first, *more) if each.since_s is not None),
                default=None,
            ),
        )
        for first, *more in by_place.values()
    ]
    return sorted([*alone, *joined], key=rank)
