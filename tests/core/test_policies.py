"""What a policy may say, and which policy a setting of a topic or channel is from."""

from __future__ import annotations

import json
import re

import pytest

from trionsq.core.policies import (
    AppliedSettings,
    Policy,
    PolicyError,
    PolicySet,
    parse_policies,
    parse_policy,
)
from trionsq.durations import HOUR_NS, MINUTE_NS, SECOND_NS

POISON = {
    "topics": "orders*",
    "channels": "*",
    "priority": 0,
    "max_attempts": 3,
    "dead_letter_topic": "{topic}.dead",
    "retry_delays": ["1s", "10s", "1m"],
    "max_messages": 1000000,
    "max_bytes": 10737418240,
    "max_age": "24h",
    "when_full": "drop_oldest",
    "message_ttl": "1h",
    "when_expired": "dead_letter",
    "max_in_flight": 500,
    "retry_share": 80,
}


def channel_of(policies: list[Policy], topic: str, channel: str) -> AppliedSettings | None:
    """Return what the policies set of one channel."""
    policy_set = PolicySet(policies)
    return policy_set.channel_settings(policy_set.match(topic), channel)


def topic_of(policies: list[Policy], topic: str) -> AppliedSettings | None:
    """Return what the policies set of one topic."""
    policy_set = PolicySet(policies)
    return policy_set.topic_settings(policy_set.match(topic))


def test_every_key_is_read() -> None:
    """Each key of the interface becomes a setting of a matching channel."""
    found = channel_of([parse_policy("poison", POISON)], "orders.eu", "billing")
    assert found is not None
    assert found.max_attempts == 3
    assert found.dead_letter_name("orders.eu") == "orders.eu.dead"
    assert found.retry_delays_ns == (SECOND_NS, 10 * SECOND_NS, MINUTE_NS)
    assert (found.max_messages, found.max_bytes) == (1_000_000, 10_737_418_240)
    assert (found.max_age_ns, found.message_ttl_ns) == (24 * HOUR_NS, HOUR_NS)
    assert (found.when_full, found.max_in_flight) == ("drop_oldest", 500)
    assert (found.when_expired, found.retry_share) == ("dead_letter", 80)
    assert set(found.sources.values()) == {"poison"}
    assert set(found.sources) == set(POISON) - {"topics", "channels", "priority"}


def test_a_policy_survives_its_notation() -> None:
    """What a policy says of itself is read as the same policy."""
    policy = parse_policy("poison", POISON)
    assert parse_policy("poison", json.loads(json.dumps(policy.document()))) == policy


def test_toml_has_a_table_for_each() -> None:
    """A file has a table for each policy, under its name."""
    text = '[a]\ntopics = "x"\nmax_messages = 5\n[b]\nretry_delays = ["1s"]\n'
    a, b = parse_policies(text)
    assert (a.name, a.topics, a.values) == ("a", "x", {"max_messages": 5})
    assert (b.name, b.topics, b.values) == ("b", "*", {"retry_delays": (SECOND_NS,)})


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"max_atempts": 3}, "max_atempts is unknown"),
        ({"max_messages": -1}, "max_messages is not 0.."),
        ({"max_messages": "5"}, "max_messages is not an integer"),
        ({"max_messages": True}, "max_messages is not an integer"),
        ({"max_bytes": 1.5}, "max_bytes is not an integer"),
        ({"max_attempts": 65536}, "max_attempts is not 0..65535"),
        ({"max_age": 5}, "max_age is not a duration"),
        ({"max_age": "5"}, "max_age is not a duration"),
        ({"message_ttl": "-1s"}, "message_ttl is below 0"),
        ({"retry_delays": "1s"}, "retry_delays is not a list"),
        ({"retry_delays": ["1s", "x"]}, "retry_delays is not a duration"),
        ({"retry_delays": ["1s"] * 101}, "retry_delays is not a list of at most 100"),
        ({"when_full": "block"}, "when_full is not drop_oldest"),
        ({"when_expired": "refuse"}, "when_expired is not drop or dead_letter"),
        ({"retry_share": 101}, "retry_share is not 0..100"),
        ({"channels": "", "retry_share": 1}, "retry_share is of channels"),
        ({"dead_letter_topic": "a b"}, "dead_letter_topic is not the name"),
        ({"topics": "a/b"}, "topics is not a pattern"),
        ({"topics": ""}, "topics is not a pattern"),
        ({"topics": 5}, "topics is not a pattern"),
        ({"channels": "["}, "channels is not a pattern"),
        ({"priority": "high"}, "priority is not an integer"),
        ({"channels": "", "max_in_flight": 1}, "max_in_flight is of channels"),
        ([], "no table"),
    ],
)
def test_what_is_refused_is_named(document: object, text: str) -> None:
    """A policy with a wrong key or value is refused, and the error names policy and key."""
    with pytest.raises(PolicyError, match=re.escape(text)) as raised:
        parse_policy("poison", document)
    assert str(raised.value).startswith("policy poison: ")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65])
def test_a_policy_has_a_plain_name(name: str) -> None:
    """A name that does not fit into a path or a log line is refused."""
    with pytest.raises(PolicyError, match="no name of a policy"):
        parse_policy(name, {})


def test_toml_is_refused_whole() -> None:
    """A file is refused for one wrong policy, and for what is no TOML."""
    with pytest.raises(PolicyError, match="policy b: x is unknown"):
        parse_policies("[a]\nmax_messages = 1\n[b]\nx = 1\n")
    with pytest.raises(PolicyError, match="not TOML"):
        parse_policies("[a\n")
    with pytest.raises(PolicyError, match="policy a: it is no table"):
        parse_policies("a = 5\n")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "orders", True),
        ("orders", "orders", True),
        ("orders", "order", False),
        ("orders", "orders2", False),
        ("orders*", "orders", True),
        ("orders*", "orders.eu", True),
        ("orders*", "border", False),
        ("*.dead", "orders.dead", True),
        ("*.dead", "ordersXdead", False),
        ("o?ders", "orders", True),
        ("o?ders", "oders", False),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "aXcYb", False),
        ("*#ephemeral", "t#ephemeral", True),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    """A star is any text, a question mark any character, all else itself, for both kinds."""
    of_topic = [parse_policy("p", {"topics": pattern, "max_messages": 1})]
    of_channel = [parse_policy("p", {"channels": pattern, "max_messages": 1})]
    assert (channel_of(of_topic, name, "c") is not None) == matches
    assert (topic_of(of_topic, name) is not None) == matches
    assert (channel_of(of_channel, "t", name) is not None) == matches


def test_who_a_policy_is_of() -> None:
    """Any channels: topic and channels; some channels: those alone; no channel: the topic alone."""
    both = [parse_policy("p", {"max_messages": 1})]
    some = [parse_policy("p", {"channels": "b*", "max_messages": 1})]
    none = [parse_policy("p", {"channels": "", "max_messages": 1})]
    assert topic_of(both, "t") is not None
    assert channel_of(both, "t", "b") is not None
    assert topic_of(some, "t") is None
    assert channel_of(some, "t", "b") is not None
    assert channel_of(some, "t", "c") is None
    assert topic_of(none, "t") is not None
    assert channel_of(none, "t", "b") is None


def test_a_topic_has_no_settings_of_channels() -> None:
    """What only channels can have does not show at a topic."""
    assert topic_of([parse_policy("p", {"max_in_flight": 1})], "t") is None
    found = topic_of([parse_policy("p", {"max_in_flight": 1, "max_bytes": 2})], "t")
    assert found is not None
    assert dict(found.sources) == {"max_bytes": "p"}


def test_each_setting_is_from_the_strongest_policy() -> None:
    """Priority decides for each setting by itself; among equals the first name does."""
    policies = [
        parse_policy("low", {"priority": -1, "max_messages": 1, "max_bytes": 1, "max_age": "1h"}),
        parse_policy("b", {"max_messages": 2, "max_bytes": 2}),
        parse_policy("a", {"max_messages": 3}),
        parse_policy("other", {"topics": "x", "priority": 9, "max_messages": 4}),
    ]
    for order in (policies, policies[::-1]):
        found = channel_of(order, "t", "c")
        assert found is not None
        assert dict(found.sources) == {"max_messages": "a", "max_bytes": "b", "max_age": "low"}
        assert (found.max_messages, found.max_bytes, found.max_age_ns) == (3, 2, HOUR_NS)
        assert found.document() == {"max_messages": 3, "max_bytes": 2, "max_age": "1h0m0s"}


def test_nothing_applies_without_a_match() -> None:
    """A topic or channel that no policy is of has no settings at all."""
    policies = [parse_policy("p", {"topics": "orders*", "max_messages": 1})]
    assert topic_of(policies, "clicks") is None
    assert channel_of(policies, "clicks", "c") is None
    assert topic_of([parse_policy("p", {})], "t") is None
