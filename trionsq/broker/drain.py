"""The drain of a broker: it takes no more messages, and delivers those that it has.

Clients and nsqlookupds notice nothing else of it: consumers must find the node to empty it.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Final, Protocol

import trio

from trionsq.core.channel import ChannelState
from trionsq.core.topic import TopicState
from trionsq.durations import SECOND_NS, render
from trionsq.wire.errors import DRAINING

__all__ = ["Drain", "DrainPhase"]

log = logging.getLogger("trionsq")

# Time between two counts.
_COUNT_S: Final = 0.2
# Time between two lines of the log.
_LOG_S: Final = 10.0
# Topics and channels that are counted before other tasks run: less than a millisecond.
_MAX_COUNTED: Final = 500
# A drain lasts at least so long, and so does a connection from its first refused publish on: for
# answers to what was sent before the client knew. Closed, it can be given another node.
_LINGER_S: Final = 1.0


class DrainPhase(Enum):
    """How far a drain is; the values are those of /config/drain."""

    OFF = "off"
    DRAINING = "draining"
    EMPTY = "empty"
    """No message is left."""
    LIMIT = "limit"
    """The limit has passed, and messages are left."""


class Publisher(Hashable, Protocol):
    """A connection, as a drain sees it."""

    @property
    def channel(self) -> object | None: ...
    def close(self) -> None: ...


class DrainedChannel(Protocol):
    """A channel, as a drain sees it."""

    @property
    def core(self) -> ChannelState: ...


class DrainedTopic(Protocol):
    """A topic, as a drain sees it."""

    refusal: str

    @property
    def core(self) -> TopicState: ...
    @property
    def channels(self) -> Mapping[str, DrainedChannel]: ...


class Drain:
    """The drain of one broker; off at the start.

    Attributes:
        phase: how far it is.
        remaining: messages that were left at the last count: waiting, in flight and deferred; None
            if they were not counted yet.
        limit_s: after this time it ends with whatever is left; infinite: never.
        began_s: when it began, in monotonic time.
        exits: nsqd is to end with the drain.
        ended: set when nsqd is to end.
    """

    def __init__(self, topics: Mapping[str, DrainedTopic], default_limit_ns: int) -> None:
        """``default_limit_ns``: --drain-timeout; 0 is no limit."""
        self.phase = DrainPhase.OFF
        self.remaining: int | None = None
        self.limit_s = float("inf")
        self.exits = True
        self.ended = trio.Event()
        self._topics = topics
        self._default_limit_ns = default_limit_ns
        self._began = trio.Event()
        self.began_s = 0.0
        # Since when their publishes are refused.
        self._refused: dict[Publisher, float] = {}

    def __repr__(self) -> str:
        return f"<Drain {self.phase.value} remaining={self.remaining}>"

    @property
    def is_on(self) -> bool:
        """Whether publishes are refused."""
        return self.phase is not DrainPhase.OFF

    def begin(self, limit_ns: int | None = None, *, exits: bool = True) -> None:
        """Refuse publishes from now on; one that is under way begins anew.

        Args:
            limit_ns: after this time it ends with whatever is left; 0: never; None: as
                --drain-timeout says.
            exits: nsqd is to end with the drain; else it only stays as it is.
        """
        limit_ns = self._default_limit_ns if limit_ns is None else limit_ns
        self.limit_s = limit_ns / SECOND_NS if limit_ns else float("inf")
        self.exits = exits
        self.phase = DrainPhase.DRAINING
        self.remaining = None
        self.began_s = trio.current_time()
        for topic in self._topics.values():
            topic.refusal = topic.refusal or DRAINING
        self._began.set()
        limit = f"for {render(limit_ns)} at most" if limit_ns else "without a limit"
        log.info("NSQ: draining %s: publishes are refused", limit)

    def cancel(self) -> None:
        """Take publishes again."""
        if not self.is_on:
            return
        self.phase = DrainPhase.OFF
        self.remaining = None
        self._began = trio.Event()
        self._refused.clear()
        for topic in self._topics.values():
            if topic.refusal == DRAINING:
                topic.refusal = ""
        log.info("NSQ: the drain is cancelled")

    def add_topic(self, topic: DrainedTopic) -> None:
        """Let a new topic refuse publishes as well."""
        if self.is_on:
            topic.refusal = DRAINING

    def note_refused(self, client: Publisher) -> None:
        """Note a client whose publish was refused by the drain."""
        self._refused.setdefault(client, trio.current_time())

    @property
    def passed_s(self) -> float:
        """How long it has been on."""
        return trio.current_time() - self.began_s if self.is_on else 0.0

    async def run(self) -> None:
        """Count what is left while it is on, for ever."""
        while True:
            await self._began.wait()
            log_at_s = trio.current_time() + _LOG_S
            while self.is_on:
                await self._count()
                now_s = trio.current_time()
                self._close_publishers(now_s)
                if self.phase is DrainPhase.DRAINING:
                    self._check_end()
                    if now_s >= log_at_s:
                        log_at_s = now_s + _LOG_S
                        log.info("NSQ: draining: %d messages are left", self.remaining)
                await trio.sleep(_COUNT_S)

    def _check_end(self) -> None:
        if self.remaining == 0 and self.passed_s >= _LINGER_S:
            self.phase = DrainPhase.EMPTY
            log.info("NSQ: drained in %.1f s", self.passed_s)
        elif self.passed_s >= self.limit_s:
            self.phase = DrainPhase.LIMIT
            log.warning("NSQ: the drain has reached its limit; %d messages stay", self.remaining)
        else:
            return
        if self.exits:
            self.ended.set()

    async def _count(self) -> None:
        """Count what is left, in turns."""
        began = self._began
        total = counted = 0
        for topic in list(self._topics.values()):
            total += topic.core.depth
            pending = topic.core.store.backend.pending
            if pending is not None and not pending.is_done:
                total += 1  # what is being stored is not at the channels yet
            for channel in list(topic.channels.values()):
                core = channel.core
                total += core.depth + core.in_flight_count + core.deferred_count
                counted += 1
            counted += 1
            if counted >= _MAX_COUNTED:
                counted = 0
                await trio.lowlevel.checkpoint()
        if began is self._began:  # else it was cancelled meanwhile
            self.remaining = total

    def _close_publishers(self, now_s: float) -> None:
        for client, since_s in list(self._refused.items()):
            if now_s - since_s >= _LINGER_S:
                del self._refused[client]
                if client.channel is None:
                    client.close()
