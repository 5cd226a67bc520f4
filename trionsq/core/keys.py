"""Keys of idempotent publishes: a publish that is repeated with its key is stored once.

A key stands for what was published with it first, for as long as the window is. The keys of a node
are bounded in number: the oldest are forgotten first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from trionsq.core.round import Round
from trionsq.wire.bodies import Bodies

__all__ = [
    "DIGEST_BYTES",
    "KeyReused",
    "KeyUnknown",
    "KeyWindow",
    "KnownKey",
    "PublishKey",
    "StoredKey",
    "TopicKeys",
    "digest_now",
    "digest_steps",
]

DIGEST_BYTES: Final = 16
"""Size of a digest of what was published."""

_HEAD: Final = Struct(">QQ")
_SIZE: Final = Struct(">I")
# What is hashed in one step: less than a millisecond.
_STEP_MESSAGES: Final = 2048
_STEP_BYTES: Final = 256 * 1024
# Keys that one publish forgets beside its own work, and that one turn forgets.
_FORGOTTEN_PER_PUBLISH: Final = 8
_FORGOTTEN_PER_TURN: Final = 5_000
# Keys that one step of a start takes over: about 2 ms.
_LOADED_PER_STEP: Final = 1_000


class KeyReused(Exception):
    """The key stands for other messages than those of this publish."""


class KeyUnknown(Exception):
    """Nobody knows whether the messages were stored before: the keys of then are forgotten."""


class PublishKey(NamedTuple):
    """The key of a publish, and a digest of the messages that it stands for."""

    text: bytes
    digest: bytes


class StoredKey(NamedTuple):
    """A key that was found on disk; ``time_ns``: when it was used, since the epoch."""

    key: PublishKey
    time_ns: int


def digest_steps(bodies: Bodies, defer_ms: int) -> Generator[None, None, bytes]:
    """Return the digest of a publish, made in short steps: its count, delay, sizes and bodies."""
    count = bodies.count
    hashed = blake2b(_HEAD.pack(count, defer_ms), digest_size=DIGEST_BYTES)
    step = max(1, min(_STEP_MESSAGES, count * _STEP_BYTES // bodies.nbytes))
    for first in range(0, count, step):
        if first:
            yield
        for body in bodies.slice(first, min(count, first + step)):
            hashed.update(_SIZE.pack(len(body)))
            hashed.update(body)
    return hashed.digest()


def digest_now(bodies: Bodies, defer_ms: int) -> bytes | None:
    """Return the digest of a publish that takes one short step; None if it takes more."""
    try:
        next(digest_steps(bodies, defer_ms))
    except StopIteration as end:
        digest: bytes = end.value
        return digest
    return None


class KnownKey:
    """What was published with a key.

    Attributes:
        text, digest: as of `PublishKey`.
        round: that decides whether it is stored; None if it is.
        expires_s: monotonic time at which the key is forgotten.
        topic: its topic's keys.
    """

    __slots__ = ("digest", "expires_s", "round", "text", "topic")

    def __init__(
        self, key: PublishKey, round_: Round | None, expires_s: float, topic: TopicKeys
    ) -> None:
        self.text, self.digest = key
        self.round = round_
        self.expires_s = expires_s
        self.topic = topic

    def __repr__(self) -> str:
        return f"<KnownKey {self.text!r} until {self.expires_s:.3f} {self.round}>"


class KeyWindow:
    """The keys of all topics of a node, by age.

    Attributes:
        length_s: how long a key is known.
        max_keys: how many are known at most.
        epoch: names this run of nsqd: another one has another.
        stored_count: publishes with a key that were taken.
        repeated_count: publishes that were repeated, and not stored again.
        reused_count: publishes that were refused: the key stood for other messages.
        early_count: keys that were forgotten within the window, because there were too many.
    """

    def __init__(self, length_s: float, max_keys: int, epoch: str = "") -> None:
        self.length_s = length_s
        self.max_keys = max_keys
        self.epoch = epoch
        self.stored_count = self.repeated_count = self.reused_count = self.early_count = 0
        self._by_age: deque[KnownKey] = deque()
        # Those whose round has not ended, by age.
        self._unsafe: deque[KnownKey] = deque()

    def __repr__(self) -> str:
        return f"<KeyWindow of {self.length_s:g} s, {len(self)} keys>"

    def __len__(self) -> int:
        """Keys in memory. A few may be of publishes that failed, or of topics that are deleted."""
        return len(self._by_age)

    @property
    def is_open(self) -> bool:
        """Whether keys count at all."""
        return self.length_s > 0 and self.max_keys > 0

    def add(self, known: KnownKey) -> None:
        """Take in the key of a publish; the oldest goes if there are too many."""
        while len(self._by_age) >= self.max_keys:
            self.early_count += self._forget_oldest()
        self._by_age.append(known)
        if known.round is not None:
            self._unsafe.append(known)

    def load_steps(
        self, found: Iterable[tuple[TopicKeys, StoredKey]], now_s: float, now_ns: int
    ) -> Iterator[None]:
        """Take over the keys that a start has found, about the oldest first, in short steps."""
        for count, (topic, (key, time_ns)) in enumerate(found):
            if count and not count % _LOADED_PER_STEP:
                yield
            age_s = max(0, now_ns - time_ns) / 1e9
            if age_s < self.length_s:
                known = topic.load(key, now_s + self.length_s - age_s)
                if known is not None:
                    self.add(known)

    def settle(self) -> None:
        """Look at the rounds that have ended: what was published in a failed one is forgotten."""
        unsafe = self._unsafe
        while unsafe:
            round_ = unsafe[0].round
            if round_ is not None:
                if not round_.is_done:
                    return
                if round_.error is not None:
                    unsafe[0].topic.forget(unsafe[0])
                unsafe[0].round = None
            unsafe.popleft()

    def forget_old(self, now_s: float, max_count: int = _FORGOTTEN_PER_TURN) -> bool:
        """Forget keys that are older than the window; return whether that is all of them."""
        for _ in range(max_count):
            if not self._by_age or self._by_age[0].expires_s > now_s:
                return True
            self._forget_oldest()
        return False

    def _forget_oldest(self) -> int:
        known = self._by_age.popleft()
        return known.topic.forget(known)


class TopicKeys:
    """The keys of one topic."""

    __slots__ = ("_known", "_window")

    def __init__(self, window: KeyWindow) -> None:
        self._window = window
        self._known: dict[bytes, KnownKey] = {}

    def __repr__(self) -> str:
        return f"<TopicKeys {len(self._known)}>"

    def __len__(self) -> int:
        return len(self._known)

    @property
    def epoch(self) -> str:
        """As of `KeyWindow`."""
        return self._window.epoch

    def find(self, key: PublishKey, now_s: float) -> KnownKey | None:
        """Return what was published with this key; None if nothing was, or it failed.

        Raises:
            KeyReused: other messages were.
        """
        window = self._window
        window.settle()
        window.forget_old(now_s, _FORGOTTEN_PER_PUBLISH)
        known = self._known.get(key.text)
        if known is None or known.expires_s <= now_s or _has_failed(known):
            return None
        if known.digest != key.digest:
            window.reused_count += 1
            raise KeyReused
        window.repeated_count += 1
        return known

    def add(self, key: PublishKey, now_s: float, round_: Round | None) -> None:
        """Note that a publish with this key was taken; ``round_`` decides whether it is stored."""
        window = self._window
        window.stored_count += 1
        known = self._known[key.text] = KnownKey(key, round_, now_s + window.length_s, self)
        window.add(known)

    def forget(self, known: KnownKey) -> int:
        """Forget a key, unless it was used anew meanwhile; return how many are forgotten."""
        if self._known.get(known.text) is not known:
            return 0
        del self._known[known.text]
        return 1

    def load(self, key: PublishKey, expires_s: float) -> KnownKey | None:
        """Return what a start found on disk, as this topic's; None if it was found before."""
        known = self._known.get(key.text)
        if known is not None and known.expires_s >= expires_s:
            return None
        known = self._known[key.text] = KnownKey(key, None, expires_s, self)
        return known


def _has_failed(known: KnownKey) -> bool:
    # Its round may have ended before one that is older.
    round_ = known.round
    return round_ is not None and round_.is_done and round_.error is not None
