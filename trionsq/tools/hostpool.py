"""Which of several addresses gets the next message: round-robin, hostpool, epsilon-greedy.

Synchronous, without a clock or randomness of its own: times are arguments, in seconds of any
clock that never goes back.

Spec: tools, nsq_to_http (host pool).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

__all__ = ["MODES", "EpsilonGreedy", "HostPool", "Hosts", "RoundRobin", "hosts_of"]

RETRY_FIRST_S: Final = 30.0
RETRY_MAX_S: Final = 15 * 60.0

EPSILON_FIRST: Final = 0.3
EPSILON_DECAY: Final = 0.9
EPSILON_MIN: Final = 0.01

# Response times count for so long; a half-life that leaves little of them at the end of it.
_MEMORY_S: Final = 5 * 60.0
_HALF_LIFE_S: Final = 60.0
# An answer may seem to take no time at all.
_RESPONSE_MIN_S: Final = 1e-6

MODES: Final = ("round-robin", "hostpool", "epsilon-greedy")


class Hosts(Protocol):
    """Addresses, and whose turn it is."""

    def choose(self, now_s: float) -> str:
        """The address for the next message; there always is one."""

    def mark(self, host: str, now_s: float, response_s: float | None) -> None:
        """Take note that an address answered in so many seconds; None: it failed."""


class RoundRobin:
    """One after the other, whether they work or not."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises ValueError: no address."""
        self._hosts = _distinct(hosts)
        self._next = 0

    def choose(self, _now_s: float) -> str:
        """See `Hosts`."""
        host = self._hosts[self._next]
        self._next = (self._next + 1) % len(self._hosts)
        return host

    def mark(self, host: str, now_s: float, response_s: float | None) -> None:
        """See `Hosts`: nothing is learned."""


@dataclass(slots=True)
class _Host:
    """What is known of one address.

    Attributes:
        is_dead: the last that was heard of it is a failure.
        retry_s: when a dead one gets a message again.
        delay_s: from a retry to the next.
        response_s: average response time, the later ones count more; 0: not known.
        weight: how much is behind that average.
        heard_s: when it was heard of last.
    """

    name: str
    is_dead: bool = False
    retry_s: float = 0.0
    delay_s: float = RETRY_FIRST_S
    response_s: float = 0.0
    weight: float = 0.0
    heard_s: float = 0.0

    def may_try(self, now_s: float) -> bool:
        """Whether it may get a message now."""
        return not self.is_dead or self.retry_s <= now_s

    def take(self, now_s: float) -> str:
        """Give it a message. A dead one gets this one alone until its next retry."""
        if self.is_dead:
            self.delay_s = min(self.delay_s * 2, RETRY_MAX_S)
            self.retry_s = now_s + self.delay_s
        return self.name

    def fail(self, now_s: float) -> None:
        """It failed."""
        if not self.is_dead:
            self.is_dead = True
            self.delay_s = RETRY_FIRST_S
            self.retry_s = now_s + self.delay_s

    def learn(self, now_s: float, response_s: float) -> None:
        """It answered."""
        self.is_dead = False
        kept = self.weight * 0.5 ** ((now_s - self.heard_s) / _HALF_LIFE_S)
        self.weight = kept + 1
        response_s = max(response_s, _RESPONSE_MIN_S)
        self.response_s = (self.response_s * kept + response_s) / self.weight
        self.heard_s = now_s

    def known_response_s(self, now_s: float) -> float:
        """The average, or 0 if nothing was heard for too long."""
        return self.response_s if now_s - self.heard_s < _MEMORY_S else 0.0


class HostPool:
    """One after the other, without those that failed.

    One that failed is left out for 30 s; then it gets a single message, and if that fails too,
    the pause doubles, up to 15 minutes. When all have failed, all are tried again.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises ValueError: no address."""
        self._hosts = [_Host(name) for name in _distinct(hosts)]
        self._by_name = {host.name: host for host in self._hosts}
        self._next = 0

    def choose(self, now_s: float) -> str:
        """See `Hosts`."""
        count = len(self._hosts)
        for step in range(count):
            index = (self._next + step) % count
            host = self._hosts[index]
            if host.may_try(now_s):
                self._next = (index + 1) % count
                return host.take(now_s)
        for host in self._hosts:
            host.is_dead = False
        # Not always from the first: it alone would be tried while all are dead.
        host = self._hosts[self._next]
        self._next = (self._next + 1) % count
        return host.name

    def mark(self, host: str, now_s: float, response_s: float | None) -> None:
        """See `Hosts`."""
        known = self._by_name[host]
        if response_s is None:
            known.fail(now_s)
        else:
            known.learn(now_s, response_s)


class EpsilonGreedy(HostPool):
    """Prefers what answers fast: each address in inverse proportion to its response time.

    With a probability that falls from 0.3 to 0.01, by a tenth each time, it explores: the next of
    the host pool, which also is the choice while nothing is known.
    """

    def __init__(self, hosts: Sequence[str], random: Random) -> None:
        """Raises ValueError: no address."""
        super().__init__(hosts)
        self._random = random
        self.epsilon = EPSILON_FIRST

    def choose(self, now_s: float) -> str:
        """See `Hosts`."""
        if self._random.random() < self.epsilon:
            self.epsilon = max(self.epsilon * EPSILON_DECAY, EPSILON_MIN)
            return super().choose(now_s)
        known = [
            (host, response_s)
            for host in self._hosts
            if host.may_try(now_s) and (response_s := host.known_response_s(now_s))
        ]
        if not known:
            return super().choose(now_s)
        weights = [1 / response_s for _, response_s in known]
        ((host, _),) = self._random.choices(known, weights)
        return host.take(now_s)


def hosts_of(mode: str, hosts: Sequence[str], random: Random) -> Hosts:
    """The addresses in the manner of a ``--mode``; one that is none of MODES is round-robin.

    Raises:
        ValueError: no address.
    """
    if mode == "hostpool":
        return HostPool(hosts)
    if mode == "epsilon-greedy":
        return EpsilonGreedy(hosts, random)
    return RoundRobin(hosts)


def _distinct(hosts: Sequence[str]) -> list[str]:
    if not hosts:
        raise ValueError("no address")
    return list(dict.fromkeys(hosts))
