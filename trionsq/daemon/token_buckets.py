"""Rate limits by address: connections to nsqd, password attempts at nsqadmin."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final

__all__ = ["TokenBuckets", "origin_of"]

# A host with an IPv6 address can, as a rule, use the whole /64 around it.
_IPV6_HOST_BITS: Final = 64
# Each call forgets up to this many full buckets. One call adds one bucket at most, so they shrink.
_MAX_FORGOTTEN: Final = 4
# Sums of intervals that are no binary fractions may be off by this much.
_SLACK_S: Final = 1e-6


def origin_of(host: str) -> int | str:
    """The key by which a host is limited: an IPv4 address, or the /64 network of an IPv6 address.

    An IPv4 address mapped into IPv6 is that IPv4 address. Anything else, such as a name, is its
    own key.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return int(address)
    if address.ipv4_mapped is not None:
        return int(address.ipv4_mapped)
    # Above all IPv4 addresses.
    return (int(address) >> _IPV6_HOST_BITS) + 2**32


class TokenBuckets:
    """A token bucket for each origin (see `origin_of`). Times are monotonic seconds.

    A bucket holds ``burst`` tokens and gains one every ``interval_s``. Full buckets are forgotten.
    If more than ``max_origins`` are not full, the one that gave a token longest ago is forgotten,
    so a flood from many addresses takes no more memory.
    """

    __slots__ = ("_full_at_s", "_interval_s", "_max_origins", "_max_wait_s")

    def __init__(self, interval_s: float, burst: int, max_origins: int) -> None:
        self._interval_s = interval_s
        # A bucket has a token as long as it will be full within this time.
        self._max_wait_s = (burst - 1) * interval_s
        self._max_origins = max_origins
        # When each bucket will be full, in the order of the last tokens taken.
        self._full_at_s: OrderedDict[int | str, float] = OrderedDict()

    def __len__(self) -> int:
        """Buckets that are held."""
        return len(self._full_at_s)

    def take_token(self, host: str, now_s: float) -> float:
        """Take a token of ``host``.

        Returns:
            0 if it had one, else the seconds until it has one; then none is taken.
        """
        self._forget_full(now_s)
        origin = origin_of(host)
        full_at_s = max(now_s, self._full_at_s.get(origin, now_s))
        wait_s = full_at_s - now_s - self._max_wait_s
        if wait_s > _SLACK_S:
            return wait_s
        self._full_at_s[origin] = full_at_s + self._interval_s
        self._full_at_s.move_to_end(origin)
        if len(self._full_at_s) > self._max_origins:
            self._full_at_s.popitem(last=False)
        return 0.0

    def return_token(self, host: str, now_s: float) -> None:
        """Put a token of ``host`` back: what it was taken for did not count."""
        origin = origin_of(host)
        full_at_s = self._full_at_s.get(origin)
        if full_at_s is None:
            return
        if full_at_s - self._interval_s > now_s:
            self._full_at_s[origin] = full_at_s - self._interval_s
        else:
            del self._full_at_s[origin]

    def _forget_full(self, now_s: float) -> None:
        buckets = self._full_at_s
        for _ in range(_MAX_FORGOTTEN):
            if not buckets:
                return
            oldest = next(iter(buckets))
            if buckets[oldest] > now_s:
                return
            del buckets[oldest]
