"""Sharing max_in_flight over connections: decisions only, without I/O or a clock.

RDY is a ceiling that nsqd keeps to, so at most max(RDY, what was in flight before) messages are in
flight on a connection. A lowered RDY counts as the old one until `settle`: nsqd may not have read
it yet, and messages may be under way. What is free beside these is what others may be given; so
the sum never exceeds max_in_flight, while each connection gets its part as soon as there is room.

Spec: client, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SETTLE_S", "Plan", "Share", "even_share", "plan", "plan_test", "redistribute"]

SETTLE_S = 0.25
"""How long a lowered RDY, and what nsqd sent before it, may be under way."""


@dataclass(slots=True, eq=False)
class Share:
    """What one connection has.

    Attributes:
        rdy_max: it is given no larger one: nsqd's limit, or 0 for a connection that is closing.
        rdy: told last.
        ceiling: the largest that nsqd may still go by.
        in_flight: messages received and not answered.
        given_s: when ``rdy`` rose from 0.
        had_s: when it was given up last; before all times if it never was.
        message_s: when a message came last.
    """

    rdy_max: int
    rdy: int = 0
    ceiling: int = 0
    in_flight: int = 0
    given_s: float = 0.0
    had_s: float = float("-inf")
    message_s: float = 0.0

    @property
    def exposure(self) -> int:
        """The most messages that may be in flight here."""
        return max(self.ceiling, self.in_flight)

    def tell(self, rdy: int, now_s: float) -> None:
        """This RDY is being sent."""
        if rdy and not self.rdy:
            self.given_s = self.message_s = now_s
        if self.rdy and not rdy:
            self.had_s = now_s
        self.rdy = rdy
        self.ceiling = max(self.ceiling, rdy)

    def settle(self) -> None:
        """nsqd has read the last RDY, and what it sent before that has come."""
        self.ceiling = self.rdy


@dataclass(frozen=True, slots=True)
class Plan:
    """The RDY that each connection is to have now, in the order of the connections.

    Attributes:
        rdy: for each.
        is_short: some get less than their part; plan again when messages were answered, or when
            lowered ones have settled.
    """

    rdy: list[int]
    is_short: bool


def even_share(max_in_flight: int, connections: int) -> int:
    """The part of one of so many connections."""
    return min(max(1, max_in_flight // connections), max_in_flight) if connections else 0


def plan(shares: Sequence[Share], max_in_flight: int) -> Plan:
    """Share max_in_flight evenly, as far as there is room; 0 pauses all.

    Who has nothing comes first, of these who has waited longest.
    """
    part = even_share(max_in_flight, sum(share.rdy_max > 0 for share in shares))
    targets = [min(part, share.rdy_max) for share in shares]
    rdy = [min(share.rdy, target) for share, target in zip(shares, targets, strict=True)]
    free = max_in_flight - sum(share.exposure for share in shares)
    order = sorted(range(len(shares)), key=lambda i: (shares[i].rdy > 0, shares[i].had_s))
    # One for each before more for any, so that nobody is left out while there is room.
    for goal in (1, part):
        is_blocked = False
        for i in order:
            wanted = min(goal, targets[i])
            # Nobody overtakes: who has just given up would get it back, for it costs nothing yet.
            if rdy[i] >= wanted or (is_blocked and not rdy[i]):
                continue
            # Up to its exposure a connection can have more without a new message being possible.
            covered = max(shares[i].exposure, rdy[i])
            granted = min(wanted, covered + max(free, 0))
            if granted > rdy[i]:
                free -= max(0, granted - covered)
                rdy[i] = granted
            is_blocked = is_blocked or not rdy[i]
    return Plan(rdy, is_short=rdy != targets)


def plan_test(shares: Sequence[Share], max_in_flight: int, preferred: Sequence[int]) -> Plan:
    """RDY 1 for one connection, the first of ``preferred`` for which there is room; 0 for others.

    Who has RDY already keeps it.
    """
    rdy = [0] * len(shares)
    free = max_in_flight - sum(share.exposure for share in shares)
    having = [i for i in preferred if shares[i].rdy]
    for i in [*having, *preferred]:
        if shares[i].rdy_max and (shares[i].exposure or free > 0):
            rdy[i] = 1
            return Plan(rdy, is_short=False)
    return Plan(rdy, is_short=True)


def redistribute(
    shares: Sequence[Share], now_s: float, idle_timeout_s: float, timeout_s: float
) -> list[int]:
    """The connections that have to give up their RDY: no message for long, or had for long.

    Only for when there is less than 1 for each. With nobody waiting, nobody gives up.
    """
    if all(share.rdy for share in shares):
        return []
    return [
        i
        for i, share in enumerate(shares)
        if share.rdy
        and (now_s - share.message_s >= idle_timeout_s or now_s - share.given_s >= timeout_s)
    ]
