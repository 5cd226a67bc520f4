"""What a consumer takes from whom: RDY over its subscriptions, in backoff and out of it.

Decides by the pure functions of `rdy` and the state machine of `backoff`; keeps their time.

A plan looks at every connection, about a microsecond for each. So what happens only asks for one,
and a task makes it: one for each turn of the event loop, however many messages were answered or
connections lost in it.

Spec: client, sections 4 and 6.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from random import Random
from typing import Final, NoReturn

import trio

from trionsq.client import rdy
from trionsq.client.backoff import Backoff, Outcome, Pause, Phase, Resume, strategy_of
from trionsq.client.config import Config
from trionsq.client.subscription import Subscription
from trionsq.client.waiting import Token

__all__ = ["Flow"]

log = logging.getLogger("trionsq.client")

# Connections that are told their RDY in one turn of the event loop; each may wake its writer.
_TOLD_MAX: Final = 256


class Flow:
    """RDY of all subscriptions of one consumer.

    Attributes:
        subscriptions: those that may get messages.
        max_in_flight: set it by `change_max_in_flight`.
        backoff: its state.
    """

    def __init__(self, config: Config, random: Random) -> None:
        self.subscriptions: dict[Subscription, None] = {}
        self.max_in_flight = config.max_in_flight
        self.backoff = Backoff(strategy_of(config, random), config.max_backoff_duration_s)
        self._config = config
        self._random = random
        self._is_short = False
        # Those that are to be tried last.
        self._avoided: Collection[Subscription] = ()
        self._resume_at_s = 0.0
        self._wanted = Token()
        self._paused = Token()
        self._lowered = Token()

    def start(self, tasks: trio.Nursery) -> None:
        """Begin to plan, and to keep the time."""
        tasks.start_soon(self._keep_planned)
        tasks.start_soon(self._settle)
        tasks.start_soon(self._redistribute)
        tasks.start_soon(self._end_pauses)

    # What happens

    def add(self, subscription: Subscription) -> None:
        """A connection was made."""
        self.subscriptions[subscription] = None
        self._wanted.set()

    def retire(self, subscription: Subscription) -> None:
        """A connection is being closed: it gets RDY 0, and others its part as that is answered."""
        subscription.share.rdy_max = 0
        subscription.tell(0)
        self._lowered.set()
        self._wanted.set()

    def remove(self, subscription: Subscription) -> None:
        """A connection is gone."""
        if subscription in self.subscriptions:
            del self.subscriptions[subscription]
            self._wanted.set()

    def change_max_in_flight(self, max_in_flight: int) -> None:
        """Take so many messages from now on; 0 pauses."""
        self.max_in_flight = max_in_flight
        self._wanted.set()

    def stop(self) -> None:
        """Take no more messages, so that those that are given back do not come again."""
        self.change_max_in_flight(0)

    def answered(self, outcome: Outcome | None, has_made_room: bool) -> None:
        """A message was answered."""
        if outcome is not None and (self.backoff.level or outcome is Outcome.FAILURE):
            todo = self.backoff.signal(outcome)
            if todo is not None:
                self._back_off(todo)
                return
        if self._is_short and has_made_room:
            self._wanted.set()

    @property
    def is_starved(self) -> bool:
        """Whether a connection has nearly as much in flight as it may."""
        shares = [subscription.share for subscription in self.subscriptions]
        return any(share.in_flight > 0 and share.in_flight >= 0.85 * share.rdy for share in shares)

    # What follows from it

    def _back_off(self, todo: Pause | Resume) -> None:
        if isinstance(todo, Pause):
            log.warning("backing off for %g s (level %d)", todo.duration_s, self.backoff.level)
            self._resume_at_s = trio.current_time() + todo.duration_s
            self._paused.set()
        else:
            log.info("leaving backoff")
        self._wanted.set()

    async def _keep_planned(self) -> NoReturn:
        while True:
            await self._wanted.wait()
            await self._plan()

    async def _plan(self) -> None:
        """Tell each connection the RDY that it is to have now.

        The one that is tried in backoff is, if possible, none of those to be avoided.
        """
        subscriptions = list(self.subscriptions)
        avoided, self._avoided = self._avoided, ()
        shares = [subscription.share for subscription in subscriptions]
        if self.backoff.phase is Phase.NORMAL or not self.max_in_flight:
            plan = rdy.plan(shares, self.max_in_flight)
        elif self.backoff.phase is Phase.PAUSED:
            plan = rdy.Plan([0] * len(shares), is_short=False)
        else:
            order = self._random.sample(range(len(shares)), len(shares))
            order.sort(key=lambda i: subscriptions[i] in avoided)
            plan = rdy.plan_test(shares, self.max_in_flight, order)
        self._is_short = plan.is_short
        if any(share.ceiling > wanted for share, wanted in zip(shares, plan.rdy, strict=True)):
            self._lowered.set()
        for told, (subscription, wanted) in enumerate(zip(subscriptions, plan.rdy, strict=True), 1):
            # It may have begun to close since.
            subscription.tell(min(wanted, subscription.share.rdy_max))
            if told % _TOLD_MAX == 0:
                await trio.lowlevel.checkpoint()

    async def _settle(self) -> NoReturn:
        """Some time after RDY was lowered it is in force, and what it left free can be given."""
        while True:
            await self._lowered.wait()
            await trio.sleep(rdy.SETTLE_S)
            now_s = trio.current_time()
            for subscription in self.subscriptions:
                if now_s - subscription.lowered_s >= rdy.SETTLE_S:
                    subscription.share.settle()
            self._wanted.set()

    async def _redistribute(self) -> NoReturn:
        """With less than one for each connection, let them take turns."""
        while True:
            await trio.sleep(self._config.rdy_redistribute_interval_s)
            count = len(self.subscriptions)
            has_too_few = count > self.max_in_flight
            is_testing = self.backoff.phase is Phase.TESTING and count > 1
            if self.backoff.phase is Phase.PAUSED or not (has_too_few or is_testing):
                continue
            subscriptions = list(self.subscriptions)
            tired = rdy.redistribute(
                [subscription.share for subscription in subscriptions],
                trio.current_time(),
                self._config.low_rdy_idle_timeout_s,
                self._config.low_rdy_timeout_s,
            )
            self._avoided = {subscriptions[i] for i in tired}
            for subscription in self._avoided:
                subscription.tell(0)
            self._lowered.set()
            self._wanted.set()

    async def _end_pauses(self) -> NoReturn:
        while True:
            await self._paused.wait()
            await trio.sleep_until(self._resume_at_s)
            self.backoff.pause_over()
            self._wanted.set()
