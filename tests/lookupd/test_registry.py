"""The registration database (lookupd.registry), against a plain model of the specification."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lookupd.registry import ALL, Producer, Registry
from tests.lookupd.support import found, producer

INACTIVE_NS = 100
LIFETIME_NS = 30

TOPICS = st.sampled_from(["t1", "t2", "e#ephemeral"])
CHANNELS = st.sampled_from(["c1", "c2", "x#ephemeral"])
ANY_TOPIC = st.one_of(TOPICS, st.just(ALL), st.just("unknown"), st.just("not valid"))

Key = tuple[str, str, str]


class Model:
    """Keys (category, key, subkey) to producers, each with the time of its tombstone if any."""

    def __init__(self) -> None:
        self.keys: dict[Key, dict[Producer, int | None]] = {}

    def find(self, category: str, key: str, subkey: str) -> list[Key]:
        """All keys that match; a star matches anything."""
        return [
            found
            for found in self.keys
            if found[0] == category and key in (ALL, found[1]) and subkey in (ALL, found[2])
        ]

    def add(self, key: Key, who: Producer | None = None) -> None:
        """Let the key be, and have the producer; what it has already stays as it is."""
        held = self.keys.setdefault(key, {})
        if who is not None:
            held.setdefault(who, None)

    def remove(self, key: Key, who: Producer) -> None:
        """UNREGISTER of one key."""
        held = self.keys.get(key)
        if held is None:
            return
        held.pop(who, None)
        if not held and (key[2] or key[1]).endswith("#ephemeral"):
            del self.keys[key]


class RegistryMachine(RuleBasedStateMachine):
    """What connections and operators do, in any order, to both."""

    producers: Bundle[Producer] = Bundle("producers")

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(INACTIVE_NS, LIFETIME_NS)
        self.model = Model()
        self.now_ns = 0
        self.count = 0

    @rule(target=producers, same=st.booleans())
    def identifies(self, same: bool) -> Producer:
        self.count += 1
        # Two connections may announce the same address.
        who = producer(1 if same else self.count, self.now_ns)
        self.registry.add_producer(who)
        self.model.add(("client", "", ""), who)
        return who

    @rule(who=consumes(producers))
    def disconnects(self, who: Producer) -> None:
        self.registry.remove_producer(who)
        for held in self.model.keys.values():
            held.pop(who, None)

    @rule(who=producers)
    def pings(self, who: Producer) -> None:
        who.last_update_ns = self.now_ns

    @rule(duration_ns=st.integers(1, INACTIVE_NS))
    def time_passes(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    @rule(who=producers, topic=TOPICS, channel=st.none() | CHANNELS)
    def registers(self, who: Producer, topic: str, channel: str | None) -> None:
        self.registry.register(who, topic, channel)
        if channel is not None:
            self.model.add(("channel", topic, channel), who)
        self.model.add(("topic", topic, ""), who)

    @rule(who=producers, topic=TOPICS, channel=CHANNELS)
    def unregisters_a_channel(self, who: Producer, topic: str, channel: str) -> None:
        self.registry.unregister_channel(who, topic, channel)
        self.model.remove(("channel", topic, channel), who)

    @rule(who=producers, topic=TOPICS)
    def unregisters_a_topic(self, who: Producer, topic: str) -> None:
        self.registry.unregister_topic(who, topic)
        for key in self.model.find("channel", topic, ALL):
            self.model.keys[key].pop(who, None)
        self.model.remove(("topic", topic, ""), who)

    @rule(topic=TOPICS)
    def topic_is_created(self, topic: str) -> None:
        self.registry.create_topic(topic)
        self.model.add(("topic", topic, ""))

    @rule(topic=TOPICS, channel=CHANNELS)
    def channel_is_created(self, topic: str, channel: str) -> None:
        self.registry.create_channel(topic, channel)
        self.model.add(("topic", topic, ""))
        self.model.add(("channel", topic, channel))

    @rule(topic=ANY_TOPIC)
    def topic_is_deleted(self, topic: str) -> None:
        self.registry.delete_topic(topic)
        for key in self.model.find("channel", topic, ALL) + self.model.find("topic", topic, ""):
            del self.model.keys[key]

    @rule(topic=TOPICS, channel=CHANNELS)
    def channel_is_deleted(self, topic: str, channel: str) -> None:
        found = self.model.keys.pop(("channel", topic, channel), None)
        assert self.registry.delete_channel(topic, channel) == (found is not None)

    @rule(topic=ANY_TOPIC, number=st.integers(1, 3))
    def node_is_tombstoned(self, topic: str, number: int) -> None:
        node = f"10.0.0.{number}:4151"
        deque(self.registry.tombstone(topic, node, self.now_ns), 0)
        for key in self.model.find("topic", topic, ""):
            for who in self.model.keys[key]:
                if who.node == node:
                    self.model.keys[key][who] = self.now_ns

    @rule(most=st.integers(1, 3))
    def what_is_left_is_swept(self, most: int) -> None:
        self.registry.sweep(most)

    def _is_active(self, who: Producer) -> bool:
        return self.now_ns - who.last_update_ns <= INACTIVE_NS

    def _is_hidden(self, since_ns: int | None) -> bool:
        return since_ns is not None and self.now_ns - since_ns < LIFETIME_NS

    @invariant()
    def topics_and_channels_agree(self) -> None:
        found = [key[1] for key in self.model.find("topic", ALL, "")]
        assert Counter(self.registry.topics()) == Counter(found)
        for topic in ("t1", "t2", "e#ephemeral", "unknown", ALL):
            channels = [key[2] for key in self.model.find("channel", topic, ALL)]
            assert Counter(self.registry.channels(topic)) == Counter(channels)
            assert self.registry.has_topic(topic) == bool(self.model.find("topic", topic, ""))

    @invariant()
    def lookups_agree(self) -> None:
        for topic in ("t1", "t2", "e#ephemeral", "unknown", ALL):
            expected = {
                who
                for key in self.model.find("topic", topic, "")
                for who, since_ns in self.model.keys[key].items()
                if self._is_active(who) and not self._is_hidden(since_ns)
            }
            assert Counter(found(self.registry.lookup(topic, self.now_ns))) == Counter(expected)

    @invariant()
    def nodes_agree(self) -> None:
        expected: dict[Producer, dict[str, bool]] = {
            who: {} for who in self.model.keys.get(("client", "", ""), {}) if self._is_active(who)
        }
        for key in self.model.find("topic", ALL, ""):
            for who, since_ns in self.model.keys[key].items():
                if who in expected:
                    expected[who][key[1]] = self._is_hidden(since_ns)
        told = {
            who: dict(place for place in self.registry.topics_of(who, self.now_ns) if place)
            for who in found(self.registry.active_producers(self.now_ns))
        }
        assert told == expected

    @invariant()
    def dumps_agree(self) -> None:
        expected = {":".join(key): held for key, held in self.model.keys.items() if held}
        dumped: dict[str, dict[Producer, int | None]] = {}
        for key, entry in filter(None, self.registry.everything()):
            dumped.setdefault(key, {})[entry.producer] = entry.tombstoned_at_ns
        assert dumped == expected

    def teardown(self) -> None:
        """When all is swept, every question has the same answer, and nothing void is left."""
        while self.registry.sweep(1):
            pass
        self.dumps_agree()
        empty = [not held for key, held in self.model.keys.items() if key[0] == "topic"]
        assert list(self.registry.everything()).count(None) == sum(empty)


TestRegistry = RegistryMachine.TestCase


def test_what_was_never_identified_can_go() -> None:
    """A connection that ends before IDENTIFY leaves the database alone."""
    registry = Registry(INACTIVE_NS, LIFETIME_NS)
    registry.remove_producer(producer())
    assert repr(registry) == "<Registry 0 producers, 0 topics, 0 channels>"


@pytest.mark.parametrize(
    "how", ["disconnect", "topic", "channel", "delete topic", "delete channel"]
)
def test_nothing_of_a_registration_is_kept(how: str) -> None:
    """Whichever way a producer leaves, the sweep removes it from the topic and its channels."""
    registry = Registry(INACTIVE_NS, LIFETIME_NS)
    who, other = producer(1), producer(2)
    for each in (who, other):
        registry.add_producer(each)
        for channel in ("c1", "c2"):
            registry.register(each, "t", channel)
    match how:
        case "disconnect":
            registry.remove_producer(who)
        case "topic":
            registry.unregister_topic(who, "t")
        case "channel":
            registry.unregister_channel(who, "t", "c1")
        case "delete topic":
            registry.delete_topic("t")
        case "delete channel":
            registry.delete_channel("t", "c1")
    while registry.sweep(1):
        pass
    kept = list(registry.everything())
    assert None not in kept, "a void entry"
    ours = [(key, entry) for key, entry in filter(None, kept) if entry.producer is who]
    held = Counter(key for key, _ in ours)
    expected = {
        "disconnect": [],
        "topic": ["client::"],
        "channel": ["client::", "topic:t:", "channel:t:c2"],
        "delete topic": ["client::"],
        "delete channel": ["client::", "topic:t:", "channel:t:c2"],
    }
    assert sorted(held.elements()) == sorted(expected[how])
    for key, entry in ours:
        if key == "topic:t:":
            assert entry.channels == {"c2"}


def test_a_channel_that_is_registered_anew_before_the_sweep_is_swept_in_its_turn() -> None:
    """The sweep of a deleted channel takes nothing of the new one, and when the producer goes
    nothing void is left."""
    registry = Registry(INACTIVE_NS, LIFETIME_NS)
    who = producer(1)
    registry.add_producer(who)
    registry.register(who, "t", "c")
    registry.delete_channel("t", "c")
    registry.register(who, "t", "c")
    while registry.sweep(1):
        pass
    held = {key for key, _ in filter(None, registry.everything())}
    assert held == {"client::", "topic:t:", "channel:t:c"}
    registry.remove_producer(who)
    while registry.sweep(1):
        pass
    assert list(filter(None, registry.everything())) == []


def test_limits_of_time_are_inclusive_and_exclusive() -> None:
    """Active until the time-out has passed, hidden until the lifetime has."""
    registry = Registry(INACTIVE_NS, LIFETIME_NS)
    who = producer(1, now_ns=0)
    registry.add_producer(who)
    registry.register(who, "t")
    assert found(registry.lookup("t", INACTIVE_NS)) == [who]
    assert found(registry.lookup("t", INACTIVE_NS + 1)) == []
    deque(registry.tombstone("t", who.node, 10), 0)
    assert found(registry.lookup("t", 10 + LIFETIME_NS - 1)) == []
    assert found(registry.lookup("t", 10 + LIFETIME_NS)) == [who]


def test_registering_again_keeps_a_tombstone_and_unregistering_takes_it() -> None:
    """An operator's tombstone outlives a repeated REGISTER, but not a new registration."""
    registry = Registry(INACTIVE_NS, LIFETIME_NS)
    who = producer()
    registry.add_producer(who)
    registry.register(who, "t")
    deque(registry.tombstone("t", who.node, 0), 0)
    registry.register(who, "t", "c")
    assert found(registry.lookup("t", 1)) == []
    registry.unregister_topic(who, "t")
    registry.register(who, "t")
    assert found(registry.lookup("t", 1)) == [who]
