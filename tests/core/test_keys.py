"""Keys of idempotent publishes: what is known of them, for how long, and in how much memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trionsq.core.keys import (
    KeyReused,
    KeyWindow,
    PublishKey,
    StoredKey,
    TopicKeys,
    digest_now,
    digest_steps,
)
from trionsq.core.round import Round
from trionsq.wire.bodies import Bodies, ListBodies, PackedBodies, StridedBodies

LENGTH_S = 10.0
MAX_KEYS = 4
S = 10**9


@dataclass
class Use:
    """What a topic's key was used for first, as the model has it."""

    digest: bytes
    at_s: float
    round: Round | None

    @property
    def failed(self) -> bool:
        return self.round is not None and self.round.error is not None


class KeysMachine(RuleBasedStateMachine):
    """Publishes with few keys to two topics, rounds that end in any order, and time.

    The model keeps all uses for ever, and says of each publish what the answer has to be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.window = KeyWindow(LENGTH_S, MAX_KEYS)
        self.topics = [TopicKeys(self.window), TopicKeys(self.window)]
        self.now_s = 100.0
        self.uses: dict[tuple[int, bytes], Use] = {}
        self.order: list[tuple[int, bytes, Use]] = []
        self.rounds: list[Round] = []

    @rule(
        topic=st.integers(0, 1),
        text=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]),
        digest=st.sampled_from([b"1", b"2"]),
        kind=st.sampled_from(["stored", "new round", "same round", "refused"]),
    )
    def publish(self, topic: int, text: bytes, digest: bytes, kind: str) -> None:
        """One publish, as `Topic.publish_once` does it."""
        keys, key = self.topics[topic], PublishKey(text, digest)
        expected = self.known(topic, text)
        if expected is not None and expected.digest != digest:
            with pytest.raises(KeyReused):
                keys.find(key, self.now_s)
            return
        known = keys.find(key, self.now_s)
        if expected is not None:
            assert known is not None
            assert known.round is expected.round or (
                known.round is None and expected.round is not None and expected.round.is_done
            )
            return
        assert known is None
        if kind == "refused":
            return
        round_ = None
        if kind != "stored":
            if kind == "new round" or not self.rounds:
                self.rounds.append(Round())
            round_ = self.rounds[-1]
        keys.add(key, self.now_s, round_)
        use = self.uses[topic, text] = Use(digest, self.now_s, round_)
        self.order.append((topic, text, use))

    def known(self, topic: int, text: bytes) -> Use | None:
        """What the window must know: not old, not failed, and among the last."""
        use = self.uses.get((topic, text))
        if use is None or use.failed or self.now_s >= use.at_s + LENGTH_S:
            return None
        return use if any(one is use for _, _, one in self.order[-MAX_KEYS:]) else None

    @precondition(lambda self: self.rounds)
    @rule(at=st.integers(0, 100), fails=st.booleans())
    def end_round(self, at: int, fails: bool) -> None:
        """Any round ends, not only the oldest."""
        self.rounds.pop(at % len(self.rounds)).finish("the disk" if fails else None)

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 11.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; the timer may not have looked yet."""
        self.now_s += seconds

    @rule()
    def look(self) -> None:
        """The timer forgets all that is old."""
        self.window.settle()
        assert self.window.forget_old(self.now_s)
        for topic, keys in enumerate(self.topics):
            fresh = {text for at, text, _ in self.order if at == topic}
            assert len(keys) <= len(fresh)
        recent = [use for _, _, use in self.order if self.now_s < use.at_s + LENGTH_S]
        assert len(self.window) == len(recent[-MAX_KEYS:])

    @invariant()
    def is_bounded(self) -> None:
        """Neither the window nor its topics have more keys than allowed."""
        assert len(self.window) <= MAX_KEYS
        assert sum(map(len, self.topics)) <= len(self.window)


KeysMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestKeys = KeysMachine.TestCase


def plain_list(bodies: list[bytes]) -> list[Bodies]:
    """The same messages in each form that a transport gives them."""
    ends = [0]
    for body in bodies:
        ends.append(ends[-1] + 2 + len(body))
    forms: list[Bodies] = [
        ListBodies(bodies),
        PackedBodies(b"".join(b"--" + body for body in bodies), ends, 2),
    ]
    if len({len(body) for body in bodies}) == 1:
        forms.append(StridedBodies(b"".join(b"-" + body for body in bodies), 1, len(bodies[0])))
    return forms


def digest(bodies: Bodies, defer_ms: int = 0) -> bytes:
    """The digest, whether it takes one step or more."""
    steps = digest_steps(bodies, defer_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: bytes = end.value
            return value


some_bodies = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=4)


@given(some_bodies, some_bodies, st.integers(0, 2), st.integers(0, 2))
def test_a_digest_stands_for_the_messages_and_their_delay(
    one: list[bytes], other: list[bytes], one_ms: int, other_ms: int
) -> None:
    """Equal for equal messages in whatever form they came, and for no others."""
    digests = {digest(form, one_ms) for form in plain_list(one)}
    assert len(digests) == 1
    assert (digests == {digest(ListBodies(other), other_ms)}) == (
        (one, one_ms) == (other, other_ms)
    )


@pytest.mark.parametrize(
    ("count", "size", "steps"), [(1, 1 << 20, 1), (2048, 1, 1), (2049, 1, 2), (10, 1 << 20, 10)]
)
def test_a_digest_is_made_in_short_steps(count: int, size: int, steps: int) -> None:
    """By the number of messages and by their size; one message is one step."""
    bodies = StridedBodies(bytes(count * size), 0, size)
    assert sum(1 for _ in digest_steps(bodies, 0)) == steps - 1
    assert (digest_now(bodies, 0) is None) == (steps > 1)
    if steps == 1:
        assert digest_now(bodies, 0) == digest(bodies)


def test_keys_that_a_start_finds_are_as_old_as_their_records() -> None:
    """Those outside of the window are gone, and a time that is to come is taken for now."""
    window = KeyWindow(LENGTH_S, 100)
    keys = TopicKeys(window)
    ages_s = {b"old": 10, b"older": 60, b"last": 9, b"now": 0, b"to come": -1000}
    found = [StoredKey(PublishKey(text, b"1"), (1000 - age) * S) for text, age in ages_s.items()]
    list(window.load_steps([(keys, one) for one in found], now_s=50.0, now_ns=1000 * S))
    assert len(keys) == 3
    fresh = {b"now", b"to come"}
    for now_s, known in ((50.9, {b"last", *fresh}), (51, fresh), (60, set())):
        assert {text for text in ages_s if keys.find(PublishKey(text, b"1"), now_s)} == known


def test_keys_of_a_start_are_taken_over_in_short_steps() -> None:
    """Whatever their number is; and so many as the window has room for, the newest."""
    window = KeyWindow(LENGTH_S, 2_500)
    keys = TopicKeys(window)
    found = ((keys, StoredKey(PublishKey(b"%d" % at, b"1"), at)) for at in range(3_500))
    counts = [len(window) for _ in window.load_steps(found, now_s=0.0, now_ns=3_500)]
    assert counts == [1_000, 2_000, 2_500]
    assert len(window) == len(keys) == 2_500
    assert keys.find(PublishKey(b"999", b"1"), 0.0) is None
    assert keys.find(PublishKey(b"1000", b"1"), 0.0) is not None


def test_what_is_forgotten_early_is_counted() -> None:
    """Keys that the window should have known, and that were too many."""
    window = KeyWindow(LENGTH_S, 2)
    keys = TopicKeys(window)
    for at in range(5):
        keys.add(PublishKey(b"%d" % at, b"1"), 0.0, None)
    assert (window.early_count, window.stored_count, len(window)) == (3, 5, 2)
    assert keys.find(PublishKey(b"2", b"1"), 0.0) is None
    assert keys.find(PublishKey(b"3", b"1"), 0.0) is not None
