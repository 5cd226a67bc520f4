"""How often somebody may try a password: by address, so that nobody locks out another.

Five wrong passwords at once, then one every ten seconds. A right one costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

__all__ = ["ADDRESSES_MAX", "AT_ONCE", "EVERY_S", "Attempts"]

AT_ONCE: Final = 5
EVERY_S: Final = 10.0
# Of so many addresses it is known; the one that tried longest ago is forgotten first.
ADDRESSES_MAX: Final = 10_000


class Attempts:
    """Counts the attempts of each address; an IPv6 network of 64 bits is one address."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        # When all that was spent will have come back.
        self._full_at_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at_s)

    def take(self, address: str) -> float:
        """Spend an attempt: 0, or the seconds until there is one, and nothing is spent."""
        who, now_s = _who(address), self._now_s()
        full_at_s = max(self._full_at_s.get(who, now_s), now_s) + EVERY_S
        wait_s = full_at_s - now_s - AT_ONCE * EVERY_S
        if wait_s > 0:
            return wait_s
        self._full_at_s[who] = full_at_s
        self._full_at_s.move_to_end(who)
        if len(self._full_at_s) > ADDRESSES_MAX:
            self._full_at_s.popitem(last=False)
        return 0.0

    def give_back(self, address: str) -> None:
        """The attempt was none."""
        who = _who(address)
        full_at_s = self._full_at_s.get(who)
        if full_at_s is None:
            return
        if full_at_s - EVERY_S > self._now_s():
            self._full_at_s[who] = full_at_s - EVERY_S
        else:
            del self._full_at_s[who]


def _who(address: str) -> str:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return found.exploded[:19]
