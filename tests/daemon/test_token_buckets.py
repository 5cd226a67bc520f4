"""Token buckets: the rate of connections, and of wrong passwords, from one address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.daemon.token_buckets import TokenBuckets, origin_of


def connections(rate: int, burst: int) -> TokenBuckets:
    """As --max-connection-rate and --max-connection-burst have them."""
    return TokenBuckets(1 / rate, burst, 65_536)


def admits(buckets: TokenBuckets, host: int, now_s: float) -> bool:
    """Whether the host of that number gets a token."""
    return buckets.take_token(f"10.0.{host >> 8}.{host & 255}", now_s) == 0


def test_a_burst_and_then_the_rate() -> None:
    """As many as the burst at once, then one in each interval; what is refused costs nothing."""
    buckets = connections(rate=2, burst=5)
    assert [admits(buckets, 1, 0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert not admits(buckets, 1, 0.4)
    assert admits(buckets, 1, 0.5)
    assert not admits(buckets, 1, 0.5)
    assert [admits(buckets, 1, 100.0) for _ in range(6)] == [True] * 5 + [False]


def test_one_address_does_not_hold_up_another() -> None:
    """Each has a bucket of its own."""
    buckets = connections(rate=1, burst=1)
    assert admits(buckets, 1, 0.0)
    assert not admits(buckets, 1, 0.0)
    assert admits(buckets, 2, 0.0)


@given(
    st.integers(1, 20),
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000)), max_size=80),
)
def test_in_no_span_of_time_come_more_than_promised(
    rate: int, burst: int, tries: list[tuple[int, int]]
) -> None:
    """At most burst + rate * span of one address, and one who keeps below is never refused."""
    buckets = connections(rate, burst)
    now_s = 0.0
    admitted: dict[int, list[float]] = {}
    tokens: dict[int, tuple[float, float]] = {}
    for who, pause_ms in tries:
        now_s += pause_ms / 1000
        held, since_s = tokens.get(who, (float(burst), now_s))
        held = min(float(burst), held + (now_s - since_s) * rate)
        came = admits(buckets, who, now_s)
        if abs(held - 1) > 1e-3:
            assert came == (held >= 1)
        tokens[who] = (held - came, now_s)
        if came:
            admitted.setdefault(who, []).append(now_s)
    for times in admitted.values():
        for first, start_s in enumerate(times):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + rate * (times[last] - start_s) + 0.01


def test_full_buckets_are_forgotten() -> None:
    """Whoever has not come for a while costs no memory."""
    buckets = connections(rate=1, burst=2)
    for who in range(100):
        admits(buckets, who, 0.0)
    assert len(buckets) == 100
    for number in range(60):
        admits(buckets, 1000, 10.0 + number)
    assert len(buckets) == 1


def test_a_flood_of_addresses_has_a_bound() -> None:
    """With more addresses than the table holds, whoever was let in longest ago is forgotten."""
    buckets = TokenBuckets(1.0, 1, 50)
    for who in range(10_000):
        assert admits(buckets, who, 0.0)
        assert len(buckets) <= 50
    assert not admits(buckets, 9_999, 0.0)
    assert admits(buckets, 0, 0.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::1", "0.0.0.0", False),
        ("::1", "0.0.0.1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("no address", "no address", True),
        ("no address", "10.0.0.1", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    """IPv4 each, however it is written; of IPv6 all that one host can choose from."""
    assert (origin_of(one) == origin_of(other)) is same


def test_how_long_to_wait() -> None:
    """Who has no token is told the time until it has one, however often it asks."""
    buckets = TokenBuckets(10.0, 5, 100)
    assert [buckets.take_token("::1", 0.0) for _ in range(7)] == [0.0] * 5 + [10.0, 10.0]
    assert buckets.take_token("::1", 4.0) == 6.0
    assert buckets.take_token("::1", 10.0) == 0.0


def test_a_token_is_returned() -> None:
    """A token that is put back was never taken; a full bucket is forgotten, and takes no more."""
    buckets = TokenBuckets(10.0, 2, 100)
    assert buckets.take_token("a", 0.0) == buckets.take_token("a", 0.0) == 0.0
    buckets.return_token("a", 0.0)
    assert buckets.take_token("a", 0.0) == 0.0
    assert buckets.take_token("a", 0.0) == 10.0
    for _ in range(3):
        buckets.return_token("a", 0.0)
    assert len(buckets) == 0
    assert [buckets.take_token("a", 0.0) for _ in range(3)] == [0.0, 0.0, 10.0]
