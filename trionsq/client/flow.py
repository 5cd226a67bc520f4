"""Flow control: how a consumer shares max_in_flight over its connections, by RDY.

nsqd never sends more than RDY allows, so at most max(RDY, messages already in flight) are in flight
on a connection. A lowered RDY counts as the old one until `Share.settle`: nsqd may not have read
it yet, and messages may be on their way. Only the rest may be given to others. So the sum never
exceeds max_in_flight, and each connection gets its part as soon as there is room.

The decisions are functions without I/O or a clock (`plan`, `plan_test`, `redistribute`);
`FlowControl` applies them in time and sends the RDY.

Spec: client, sections 4 and 6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NoReturn, Protocol

import anyio

from trionsq.client.backoff import Backoff, Outcome, Pause, Phase, Resume, strategy_of
from trionsq.client.config import Config
from trionsq.transports.runtime import Token, checkpoint, current_time

__all__ = ["SETTLE_S", "FlowControl", "Plan", "RdyReceiver", "Share", "even_share", "plan"]
__all__ += ["plan_test", "redistribute"]

log = logging.getLogger("trionsq.client")

SETTLE_S: Final = 0.25
"""How long a lowered RDY may take to reach nsqd, and nsqd's last messages to reach the consumer."""

# Connections that are sent their RDY in one turn of the event loop; each may wake its writer.
_MAX_CONNECTIONS_A_TURN: Final = 256
# A connection is starved when this part of its RDY is in flight, as in go-nsq.
_STARVED: Final = 0.85


@dataclass(slots=True, eq=False)
class Share:
    """The part of max_in_flight that one connection has.

    Attributes:
        max_rdy: the largest RDY that it may be given: nsqd's limit, or 0 when it is closing.
        rdy: the RDY sent last.
        ceiling: the largest RDY that nsqd may still go by.
        in_flight: messages received and not answered.
        overdue: how many of them had timed out at nsqd at the last look, and are on this connection
            no more: one that the program forgot must not hold up its max_in_flight for ever.
        raised_s: when ``rdy`` last rose from 0.
        dropped_s: when ``rdy`` last fell to 0; minus infinity if it never did.
        message_s: when the last message arrived.
    """

    max_rdy: int
    rdy: int = 0
    ceiling: int = 0
    in_flight: int = 0
    overdue: int = 0
    raised_s: float = 0.0
    dropped_s: float = float("-inf")
    message_s: float = 0.0

    @property
    def exposure(self) -> int:
        """The most messages that may be in flight on this connection."""
        return max(self.ceiling, self.in_flight - self.overdue)

    def set_rdy(self, rdy: int, now_s: float) -> None:
        """Record that this RDY is being sent."""
        if rdy and not self.rdy:
            self.raised_s = self.message_s = now_s
        if self.rdy and not rdy:
            self.dropped_s = now_s
        self.rdy = rdy
        self.ceiling = max(self.ceiling, rdy)

    def settle(self) -> None:
        """Record that nsqd has read the last RDY, and that its earlier messages have arrived."""
        self.ceiling = self.rdy


@dataclass(frozen=True, slots=True)
class Plan:
    """The RDY that each connection should have now, in the order of the connections.

    Attributes:
        rdy: one for each connection.
        is_short: some connections get less than their part. Plan again when messages are answered
            or lowered RDYs have settled.
    """

    rdy: list[int]
    is_short: bool


def even_share(max_in_flight: int, connections: int) -> int:
    """The RDY of each of so many connections when all have the same."""
    return min(max(1, max_in_flight // connections), max_in_flight) if connections else 0


def plan(shares: Sequence[Share], max_in_flight: int) -> Plan:
    """Share max_in_flight evenly, as far as there is room; 0 pauses all.

    Connections at RDY 0 come first, the one that has waited longest before the others.
    """
    part = even_share(max_in_flight, sum(share.max_rdy > 0 for share in shares))
    targets = [min(part, share.max_rdy) for share in shares]
    rdy = [min(share.rdy, target) for share, target in zip(shares, targets, strict=True)]
    free = max_in_flight - sum(share.exposure for share in shares)
    order = sorted(range(len(shares)), key=lambda i: (shares[i].rdy > 0, shares[i].dropped_s))
    # One for each before more for any, so that no connection is left out while there is room.
    for goal in (1, part):
        is_blocked = False
        for i in order:
            target = min(goal, targets[i])
            # No connection overtakes a blocked one. Else the one that has just dropped to 0 would
            # be the first to rise again: its old ceiling still covers it.
            if rdy[i] >= target or (is_blocked and not rdy[i]):
                continue
            # Up to its exposure a connection can have more without a new message being possible.
            covered = max(shares[i].exposure, rdy[i])
            granted = min(target, covered + max(free, 0))
            if granted > rdy[i]:
                free -= max(0, granted - covered)
                rdy[i] = granted
            is_blocked = is_blocked or not rdy[i]
    return Plan(rdy, is_short=rdy != targets)


def plan_test(shares: Sequence[Share], max_in_flight: int, preferred: Sequence[int]) -> Plan:
    """RDY 1 for one connection, 0 for the others.

    A connection that has RDY already keeps it; otherwise the first of ``preferred`` for which there
    is room gets it. While lowered RDYs have yet to settle, the first one waits for their room: else
    the connection that has just dropped to 0 would be the only one with room, and rise again.
    """
    rdy = [0] * len(shares)
    free = max_in_flight - sum(share.exposure for share in shares)
    ready = [i for i in preferred if shares[i].rdy]
    is_settling = any(share.ceiling > share.rdy for share in shares)
    for i in [*ready, *preferred]:
        if shares[i].max_rdy and (shares[i].exposure or free > 0):
            rdy[i] = 1
            return Plan(rdy, is_short=False)
        if shares[i].max_rdy and is_settling:
            break
    return Plan(rdy, is_short=True)


def redistribute(
    shares: Sequence[Share], now_s: float, idle_timeout_s: float, timeout_s: float
) -> list[int]:
    """The connections that must drop to RDY 0: idle for too long, or ready for too long.

    To be called only when there is less than RDY 1 for each connection. If no connection is
    waiting, none has to drop.
    """
    if all(share.rdy for share in shares):
        return []
    return [
        i
        for i, share in enumerate(shares)
        if share.rdy
        and (now_s - share.message_s >= idle_timeout_s or now_s - share.raised_s >= timeout_s)
    ]


class TaskStarter(Protocol):
    """A task group or a nursery."""

    def start_soon(self, func: Callable[[], Coroutine[Any, Any, Any]], /) -> Any: ...


class RdyReceiver(Protocol):
    """A connection, as flow control knows it.

    Attributes:
        share: its part of max_in_flight.
        lowered_s: when its RDY was last lowered.
    """

    share: Share
    lowered_s: float

    def send_rdy(self, rdy: int) -> None:
        """Send this RDY unless it is the one sent last."""

    def count_overdue(self, now_s: float) -> None:
        """Set the share's ``overdue``."""


class FlowControl:
    """RDY of all connections of one consumer, with and without backoff.

    A plan looks at every connection, about a microsecond for each. Events therefore only request
    a plan, and one task makes it: once in a turn of the event loop, however many messages were
    answered or connections lost in that turn.

    Attributes:
        connections: those that may receive messages.
        max_in_flight: change it by `set_max_in_flight`.
        backoff: its state.
    """

    def __init__(self, config: Config, random: Random) -> None:
        self.connections: dict[RdyReceiver, None] = {}
        self.max_in_flight = config.max_in_flight
        self.backoff = Backoff(strategy_of(config, random), config.max_backoff_duration_s)
        self._config = config
        self._random = random
        self._is_short = False
        # Connections to try last while testing.
        self._avoided: Collection[RdyReceiver] = ()
        self._resume_at_s = 0.0
        self._plan_requested = Token()
        self._paused = Token()
        self._lowered = Token()

    def start(self, tasks: TaskStarter) -> None:
        """Start the tasks that plan and keep the time."""
        tasks.start_soon(self._plan_on_request)
        tasks.start_soon(self._settle_lowered)
        tasks.start_soon(self._redistribute)
        tasks.start_soon(self._end_pauses)

    # Events

    def add_connection(self, connection: RdyReceiver) -> None:
        """A connection was made: give it a share."""
        self.connections[connection] = None
        self._plan_requested.set()

    def retire_connection(self, connection: RdyReceiver) -> None:
        """A connection is closing: RDY 0. Others get its share as its messages are answered."""
        connection.share.max_rdy = 0
        connection.send_rdy(0)
        self._lowered.set()
        self._plan_requested.set()

    def remove_connection(self, connection: RdyReceiver) -> None:
        """A connection has ended: others get its share."""
        if connection in self.connections:
            del self.connections[connection]
            self._plan_requested.set()

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Allow this many messages in flight; 0 pauses."""
        self.max_in_flight = max_in_flight
        self._plan_requested.set()

    def note_answer(self, outcome: Outcome | None, has_made_room: bool) -> None:
        """Messages were answered: back off, resume, or give the room to another connection."""
        if outcome is not None and (self.backoff.level or outcome is Outcome.FAILURE):
            action = self.backoff.signal(outcome)
            if action is not None:
                self._apply_backoff(action)
                return
        if self._is_short and has_made_room:
            self._plan_requested.set()

    @property
    def is_starved(self) -> bool:
        """Whether a connection has at least 85 % of its RDY in flight."""
        shares = [connection.share for connection in self.connections]
        return any(
            share.in_flight > 0 and share.in_flight >= _STARVED * share.rdy for share in shares
        )

    def _apply_backoff(self, action: Pause | Resume) -> None:
        if isinstance(action, Pause):
            log.warning("backing off for %g s (level %d)", action.duration_s, self.backoff.level)
            self._resume_at_s = current_time() + action.duration_s
            self._paused.set()
        else:
            log.info("leaving backoff")
        self._plan_requested.set()

    # Tasks

    async def _plan_on_request(self) -> NoReturn:
        while True:
            await self._plan_requested.wait()
            await self._send_plan()

    async def _send_plan(self) -> None:
        """Send each connection the RDY that it should have now.

        The connection that is tested in backoff is, if possible, none of those to avoid.
        """
        connections = list(self.connections)
        avoided = self._avoided
        shares = [connection.share for connection in connections]
        if self.backoff.phase is Phase.NORMAL or not self.max_in_flight:
            target = plan(shares, self.max_in_flight)
        elif self.backoff.phase is Phase.PAUSED:
            target = Plan([0] * len(shares), is_short=False)
        else:
            order = self._random.sample(range(len(shares)), len(shares))
            order.sort(key=lambda i: connections[i] in avoided)
            target = plan_test(shares, self.max_in_flight, order)
        if any(target.rdy):
            self._avoided = ()
        self._is_short = target.is_short
        if any(share.ceiling > rdy for share, rdy in zip(shares, target.rdy, strict=True)):
            self._lowered.set()
        for number, (connection, rdy) in enumerate(zip(connections, target.rdy, strict=True), 1):
            # The connection may have begun to close since the plan was made.
            connection.send_rdy(min(rdy, connection.share.max_rdy))
            if number % _MAX_CONNECTIONS_A_TURN == 0:
                await checkpoint()

    async def _settle_lowered(self) -> NoReturn:
        """Settle each lowered RDY after a while; the room that it left can then be given away."""
        while True:
            await self._lowered.wait()
            await anyio.sleep(SETTLE_S)
            now_s = current_time()
            for connection in self.connections:
                if now_s - connection.lowered_s >= SETTLE_S:
                    connection.share.settle()
            self._plan_requested.set()

    async def _redistribute(self) -> NoReturn:
        """Let connections take turns when there is less than RDY 1 for each."""
        while True:
            await anyio.sleep(self._config.rdy_redistribute_interval_s)
            if self._is_short:
                await self._count_overdue()
            count = len(self.connections)
            has_too_few = count > self.max_in_flight
            is_testing = self.backoff.phase is Phase.TESTING and count > 1
            if self.backoff.phase is Phase.PAUSED or not (has_too_few or is_testing):
                continue
            connections = list(self.connections)
            dropped = redistribute(
                [connection.share for connection in connections],
                current_time(),
                self._config.low_rdy_idle_timeout_s,
                self._config.low_rdy_timeout_s,
            )
            self._avoided = {connections[i] for i in dropped}
            for connection in self._avoided:
                connection.send_rdy(0)
            self._lowered.set()
            self._plan_requested.set()

    async def _count_overdue(self) -> None:
        for number, connection in enumerate(list(self.connections), 1):
            before = connection.share.exposure
            connection.count_overdue(current_time())
            if connection.share.exposure < before:
                self._plan_requested.set()
            if number % _MAX_CONNECTIONS_A_TURN == 0:
                await checkpoint()

    async def _end_pauses(self) -> NoReturn:
        while True:
            await self._paused.wait()
            await anyio.sleep_until(self._resume_at_s)
            self.backoff.pause_over()
            self._plan_requested.set()
