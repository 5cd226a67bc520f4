"""The choice of the address for the next message."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.tools.hostpool import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    MIN_EPSILON,
    EpsilonGreedy,
    HostPool,
    Hosts,
    RoundRobin,
    hosts_of,
)

NAMES = ["a", "b", "c", "d"]
MODES = ["round-robin", "hostpool", "epsilon-greedy", "anything"]


@given(
    st.sampled_from(MODES),
    st.lists(st.sampled_from(NAMES), min_size=1),
    st.lists(st.tuples(st.floats(0, 2000), st.none() | st.floats(0, 60))),
    st.randoms(use_true_random=False),
)
def test_there_is_always_an_address(
    mode: str, names: list[str], steps: list[tuple[float, float | None]], random: Random
) -> None:
    """Whatever fails and whenever, one of the addresses is chosen."""
    hosts = hosts_of(mode, names, random)
    now_s = 0.0
    for passes_s, response_s in steps:
        now_s += passes_s
        host = hosts.choose(now_s)
        assert host in names
        hosts.record_response(host, now_s, response_s)


@given(st.sampled_from(MODES[:2]), st.integers(1, 4), st.integers(0, 50))
def test_none_starves(mode: str, count: int, rounds: int) -> None:
    """While all work, each address gets exactly its share."""
    hosts = hosts_of(mode, NAMES[:count], Random(1))
    chosen = Counter(hosts.choose(0.0) for _ in range(count * rounds))
    assert set(chosen.values()) <= {rounds}
    assert len(chosen) == (count if rounds else 0)


def test_round_robin_learns_nothing() -> None:
    """Round-robin ignores failures."""
    hosts = RoundRobin(["a", "b", "a"])
    hosts.record_response("a", 0.0, None)
    assert [hosts.choose(0.0) for _ in range(4)] == ["a", "b", "a", "b"]


def _choices(hosts: Hosts, now_s: float, count: int = 20) -> Counter[str]:
    """Choices for this many messages, of which only those to a fail."""
    found: Counter[str] = Counter()
    for _ in range(count):
        host = hosts.choose(now_s)
        found[host] += 1
        hosts.record_response(host, now_s, None if host == "a" else 0.001)
    return found


@pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy"])
def test_a_dead_one_comes_back_less_and_less(mode: str) -> None:
    """After 30 s it gets one message; the pauses double up to 15 minutes; a success ends them."""
    hosts = hosts_of(mode, ["a", "b", "c"], Random(5))
    hosts.record_response("a", 0.0, None)
    now_s, pause_s = 0.0, FIRST_RETRY_S
    pauses = []
    for _ in range(8):
        assert _choices(hosts, now_s + pause_s - 0.1)["a"] == 0
        now_s += pause_s
        assert _choices(hosts, now_s, 3000)["a"] == 1
        pauses.append(pause_s)
        pause_s = min(pause_s * 2, MAX_RETRY_S)
    assert pauses == [30, 60, 120, 240, 480, 900, 900, 900]
    hosts.record_response("a", now_s, 0.001)
    assert hosts.choose(now_s) in "abc"
    assert {hosts.choose(now_s) for _ in range(200)} == {"a", "b", "c"}
    hosts.record_response("a", now_s, None)
    assert _choices(hosts, now_s + FIRST_RETRY_S - 0.1)["a"] == 0
    assert _choices(hosts, now_s + FIRST_RETRY_S, 3000)["a"] == 1


def test_all_dead() -> None:
    """When all have failed, all are tried again, at once."""
    hosts = HostPool(["a", "b", "c"])
    for name in "abc":
        hosts.record_response(name, 0.0, None)
    assert sorted(hosts.choose(0.0) for _ in range(3)) == ["a", "b", "c"]
    tried = set()
    for _ in range(6):
        host = hosts.choose(1.0)
        tried.add(host)
        hosts.record_response(host, 1.0, None)
    assert tried == {"a", "b", "c"}


def test_the_fast_one_is_preferred() -> None:
    """Once it rarely explores, it chooses in inverse proportion to the response time."""
    hosts = EpsilonGreedy(["fast", "slow"], Random(1))
    found: Counter[str] = Counter()
    for step in range(5000):
        now_s = step * 0.01
        host = hosts.choose(now_s)
        hosts.record_response(host, now_s, 0.01 if host == "fast" else 0.09)
        found[host] += step >= 1000
    assert hosts.epsilon == MIN_EPSILON
    assert 0.86 < found["fast"] / 4000 < 0.94


def test_what_was_long_ago_counts_no_more() -> None:
    """A slow address gets another chance: later response times outweigh earlier ones."""
    hosts = EpsilonGreedy(["a", "b"], Random(1))
    for _ in range(100):
        hosts.record_response("a", 0.0, 10.0)
        hosts.record_response("b", 0.0, 0.01)
    hosts.epsilon = 0.0
    assert Counter(hosts.choose(0.0) for _ in range(300))["a"] < 10
    # Nothing was heard for five minutes, then of one alone: that one is known.
    hosts.record_response("a", 301.0, 0.01)
    assert {hosts.choose(302.0) for _ in range(50)} == {"a"}
    hosts.record_response("b", 303.0, 0.01)
    assert Counter(hosts.choose(304.0) for _ in range(300))["b"] > 100


def test_no_address() -> None:
    """Without an address the constructor raises ValueError."""
    for mode in MODES:
        with pytest.raises(ValueError, match="no address"):
            hosts_of(mode, [], Random(1))
