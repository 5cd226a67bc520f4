"""The choice of an address for each message: round-robin, hostpool or epsilon-greedy.

Synchronous, without a clock or randomness of its own. Times are arguments, in seconds of any clock
that never goes back.

Spec: tools, nsq_to_http (host pool).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

__all__ = ["MODES", "EpsilonGreedy", "HostPool", "Hosts", "RoundRobin", "hosts_of"]

FIRST_RETRY_S: Final = 30.0
MAX_RETRY_S: Final = 15 * 60.0

FIRST_EPSILON: Final = 0.3
EPSILON_DECAY: Final = 0.9
MIN_EPSILON: Final = 0.01

# An average without a new response time for this long is forgotten. Its weight halves with each
# half-life, so that little of it is left by then.
_MEMORY_S: Final = 5 * 60.0
_HALF_LIFE_S: Final = 60.0
# A response may seem to take no time at all.
_MIN_RESPONSE_S: Final = 1e-6

MODES: Final = ("round-robin", "hostpool", "epsilon-greedy")


class Hosts(Protocol):
    """Addresses, and the choice among them."""

    def choose(self, now_s: float) -> str:
        """Return the address for the next message."""

    def record_response(self, host: str, now_s: float, response_s: float | None) -> None:
        """Record the response time of an address; None: it failed."""


class RoundRobin:
    """One address after the other, whether they work or not."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises ValueError if there is no address."""
        self._hosts = _distinct(hosts)
        self._next = 0

    def choose(self, _now_s: float) -> str:
        """See `Hosts`."""
        host = self._hosts[self._next]
        self._next = (self._next + 1) % len(self._hosts)
        return host

    def record_response(self, host: str, now_s: float, response_s: float | None) -> None:
        """See `Hosts`; round-robin ignores it."""


@dataclass(slots=True)
class _Host:
    """The state of one address.

    Attributes:
        is_dead: its last request failed.
        retry_s: when a dead address gets a message again.
        delay_s: the time from one retry to the next.
        response_s: average response time, in which recent ones count more; 0: unknown.
        weight: the weight of that average.
        responded_s: time of the last response.
    """

    name: str
    is_dead: bool = False
    retry_s: float = 0.0
    delay_s: float = FIRST_RETRY_S
    response_s: float = 0.0
    weight: float = 0.0
    responded_s: float = 0.0

    def may_try(self, now_s: float) -> bool:
        """Whether the address may get a message now."""
        return not self.is_dead or self.retry_s <= now_s

    def use(self, now_s: float) -> str:
        """Choose this address. A dead one gets a single message, then waits for its next retry."""
        if self.is_dead:
            self.delay_s = min(self.delay_s * 2, MAX_RETRY_S)
            self.retry_s = now_s + self.delay_s
        return self.name

    def record_failure(self, now_s: float) -> None:
        """Record a failed request."""
        if not self.is_dead:
            self.is_dead = True
            self.delay_s = FIRST_RETRY_S
            self.retry_s = now_s + self.delay_s

    def record_success(self, now_s: float, response_s: float) -> None:
        """Record a response time."""
        self.is_dead = False
        kept = self.weight * 0.5 ** ((now_s - self.responded_s) / _HALF_LIFE_S)
        self.weight = kept + 1
        response_s = max(response_s, _MIN_RESPONSE_S)
        self.response_s = (self.response_s * kept + response_s) / self.weight
        self.responded_s = now_s

    def known_response_s(self, now_s: float) -> float:
        """The average response time; 0 if the last response is too long ago."""
        return self.response_s if now_s - self.responded_s < _MEMORY_S else 0.0


class HostPool:
    """One address after the other, without those that failed.

    A failed address is left out for 30 s and then gets a single message. If that fails too, the
    pause doubles, up to 15 minutes. When all have failed, all are tried again.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises ValueError if there is no address."""
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
                return host.use(now_s)
        for host in self._hosts:
            host.is_dead = False
        # Not always the first address: otherwise it alone would be tried while all are dead.
        host = self._hosts[self._next]
        self._next = (self._next + 1) % count
        return host.name

    def record_response(self, host: str, now_s: float, response_s: float | None) -> None:
        """See `Hosts`."""
        host_state = self._by_name[host]
        if response_s is None:
            host_state.record_failure(now_s)
        else:
            host_state.record_success(now_s, response_s)


class EpsilonGreedy(HostPool):
    """Prefers fast addresses: each is chosen in inverse proportion to its response time.

    With a probability that falls from 0.3 to 0.01, by a tenth each time, it explores: it chooses
    the next address of the host pool. So it does while no response time is known.
    """

    def __init__(self, hosts: Sequence[str], random: Random) -> None:
        """Raises ValueError if there is no address."""
        super().__init__(hosts)
        self._random = random
        self.epsilon = FIRST_EPSILON

    def choose(self, now_s: float) -> str:
        """See `Hosts`."""
        if self._random.random() < self.epsilon:
            self.epsilon = max(self.epsilon * EPSILON_DECAY, MIN_EPSILON)
            return super().choose(now_s)
        candidates = [
            (host, response_s)
            for host in self._hosts
            if host.may_try(now_s) and (response_s := host.known_response_s(now_s))
        ]
        if not candidates:
            return super().choose(now_s)
        weights = [1 / response_s for _, response_s in candidates]
        ((host, _),) = self._random.choices(candidates, weights)
        return host.use(now_s)


def hosts_of(mode: str, hosts: Sequence[str], random: Random) -> Hosts:
    """The addresses with the choice that ``--mode`` names; any unknown mode is round-robin.

    Raises:
        ValueError: there is no address.
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
