"""Which TCP connections are let in: so many at once, and so many a second from one address.

Connections of HTTP are not counted here, so that operators and probes get in during a flood; PHP
and curl open one for each message, so a rate that suits consumers would cut them off.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

__all__ = ["Admission", "ConnectionRates", "origin"]

log = logging.getLogger("trionsq")

# A log line for each refusal would be one more thing that a flood of connections costs.
_LOG_INTERVAL_S: Final = 1.0
_ORIGINS_MAX: Final = 65_536
_FORGOTTEN_AT_ONCE: Final = 4
# Whoever has an IPv6 address has, as a rule, all of its /64.
_IPV6_HOST_BITS: Final = 64
_COUNT_FLAG: Final = "--max-connections"
_RATE_FLAG: Final = "--max-connection-rate"


def origin(host: str) -> int | str:
    """What the connections of an address are counted by: IPv4 each, IPv6 by their /64."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return int(address.ipv4_mapped)
        # Beyond all IPv4 ones.
        return (int(address) >> _IPV6_HOST_BITS) + 2**32
    return int(address)


class ConnectionRates:
    """A token bucket for each origin; the clock is an argument.

    An origin may open ``burst`` connections at once and ``rate`` a second on average. Buckets that
    are full again are forgotten. If there are too many others, whoever was let in longest ago is
    forgotten: a flood from so many addresses costs no more memory, and --max-connections alone
    holds it.
    """

    __slots__ = ("_full_at_s", "_interval_s", "_origins_max", "_slack_s")

    def __init__(self, rate: int, burst: int, origins_max: int = _ORIGINS_MAX) -> None:
        """``rate`` and ``burst`` are above 0."""
        self._interval_s = 1 / rate
        self._slack_s = (burst - 1) / rate
        self._origins_max = origins_max
        # When each bucket will be full; whoever was let in last is last.
        self._full_at_s: OrderedDict[int | str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at_s)

    def admit(self, who: int | str, now_s: float) -> bool:
        """Whether one more connection of ``who`` may come; if so, it is counted."""
        self._forget(now_s)
        full_at_s = max(now_s, self._full_at_s.get(who, now_s))
        # A millionth: for sums of intervals that are no binary fractions.
        if full_at_s - now_s > self._slack_s + 1e-6:
            return False
        self._full_at_s[who] = full_at_s + self._interval_s
        self._full_at_s.move_to_end(who)
        if len(self._full_at_s) > self._origins_max:
            self._full_at_s.popitem(last=False)
        return True

    def _forget(self, now_s: float) -> None:
        held = self._full_at_s
        for _ in range(_FORGOTTEN_AT_ONCE):
            if not held:
                return
            first = next(iter(held))
            if held[first] > now_s:
                return
            del held[first]


class Admission:
    """The count of TCP connections, and who is turned away.

    Attributes:
        limit: connections that there may be, 0: any number.
        connections: open now, also those that are only told of their end.
        refused_by: connections that were closed at once since the start, by the limit that was met.
    """

    __slots__ = (
        "_log_from_s",
        "_rates",
        "_refused_logged",
        "connections",
        "limit",
        "refused_by",
    )

    def __init__(self, limit: int, rate: int = 0, burst: int = 0) -> None:
        """``rate``: connections a second of one address, 0: any number.

        ``burst``: as many at once, 0: twice the rate.
        """
        self.limit = limit
        self.connections = 0
        self.refused_by: Counter[str] = Counter(max_connections=0, max_connection_rate=0)
        self._rates = ConnectionRates(rate, burst or 2 * rate) if rate else None
        self._refused_logged = 0
        self._log_from_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Admission {self.connections} of {self.limit}, {self.refused} refused>"

    @property
    def refused(self) -> int:
        """Connections that were closed at once, since the start."""
        return self.refused_by.total()

    @property
    def has_room(self) -> bool:
        """Whether one more connection may come."""
        return not self.limit or self.connections < self.limit

    def admit(self, host: str, peer: str, now_s: float) -> bool:
        """Whether a connection may come; if not, that is counted, and logged once a second at most.

        ``host`` is empty for a unix socket, whose rate is not limited: file permissions say who may
        connect there. ``peer`` is for the log.
        """
        if not self.has_room:
            self._refuse("max_connections", _COUNT_FLAG, peer, now_s)
            return False
        if self._rates is None or not host or self._rates.admit(origin(host), now_s):
            return True
        self._refuse("max_connection_rate", _RATE_FLAG, peer, now_s)
        return False

    def _refuse(self, limit: str, flag: str, peer: str, now_s: float) -> None:
        self.refused_by[limit] += 1
        if now_s < self._log_from_s:
            return
        self._log_from_s = now_s + _LOG_INTERVAL_S
        refused = self.refused
        log.warning(
            "TCP: client(%s) refused by %s, there are %d connections; "
            "%d refused since the last such line",
            peer,
            flag,
            self.connections,
            refused - self._refused_logged,
        )
        self._refused_logged = refused
