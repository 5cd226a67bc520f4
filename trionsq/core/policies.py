"""Policies: settings of topics and channels by pattern. What one says, and what applies to whom.

A policy whose pattern of channels is ``*`` is of the matching topics and of all their channels; one
with a narrower pattern of those channels alone, and one with an empty pattern of the topics alone.
Each setting comes from the policy with the highest priority that has it; among equals from the one
whose name is first.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from trionsq import durations
from trionsq.wire.names import MAX_NAME_BYTES, is_valid_name

__all__ = [
    "DEAD_LETTER",
    "DROP",
    "DROP_NEWEST",
    "DROP_OLDEST",
    "REFUSE",
    "AppliedSettings",
    "Policy",
    "PolicyError",
    "PolicySet",
    "PolicyValue",
    "parse_policies",
    "parse_policy",
]

PolicyValue: TypeAlias = int | str | tuple[int, ...]

DROP_OLDEST: Final = "drop_oldest"
DROP_NEWEST: Final = "drop_newest"
REFUSE: Final = "refuse"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead_letter"

_MAX_INT: Final = 2**62
_MAX_PRIORITY: Final = 1_000_000
_MAX_ATTEMPTS: Final = 65_535
_MAX_DELAYS: Final = 100
# Of patterns, kept compiled: each change makes a new set of all policies.
_MAX_EXPRESSIONS: Final = 10_000
_PATTERN: Final = re.compile(rf"[.a-zA-Z0-9_*?#-]{{1,{MAX_NAME_BYTES}}}")
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]{1,64}")
_TOPIC: Final = "{topic}"
_DEAD: Final = "{topic}.dead"


class PolicyError(ValueError):
    """A policy that cannot be understood; the text says which, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class AppliedSettings:
    """What the policies set of one topic or channel. 0 and () are no limit, and no schedule.

    Attributes:
        max_attempts: deliveries of a message before it becomes a dead letter.
        dead_letter_topic: where it goes; see `dead_letter_name`.
        retry_delays_ns: delays of the second delivery, the third and so on; the last one repeats.
        max_messages, max_bytes, max_age_ns: bounds of what waits.
        when_full: ``drop_oldest``, ``drop_newest`` or ``refuse``.
        message_ttl_ns: age at which a message is not delivered any more.
        when_expired: what becomes of it: ``drop`` or ``dead_letter``. At a topic it waits for a
            channel in the second case.
        max_in_flight: messages that all clients of the channel hold together.
        retry_share: percent of the deliveries that are of retried messages while fresh ones wait
            too; 0: they wait in one queue.
        sources: the name of the policy that each setting is from, by the policy's key.
    """

    max_attempts: int = 0
    dead_letter_topic: str = _DEAD
    retry_delays_ns: tuple[int, ...] = ()
    max_messages: int = 0
    max_bytes: int = 0
    max_age_ns: int = 0
    when_full: str = DROP_OLDEST
    message_ttl_ns: int = 0
    when_expired: str = DROP
    max_in_flight: int = 0
    retry_share: int = 0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def dead_letter_name(self, topic: str) -> str:
        """Return the name of the dead-letter topic of a topic; it may be no valid name."""
        return self.dead_letter_topic.replace(_TOPIC, topic)

    def document(self) -> dict[str, object]:
        """Return each setting that a policy made, in the notation of policies."""
        return {key: _KEYS[key].render(getattr(self, _KEYS[key].field)) for key in self.sources}


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy.

    Attributes:
        name: of the policy.
        topics, channels: patterns of names: ``*`` is any text, ``?`` any character.
        priority: which policy wins: the higher one.
        values: its settings, by the key of the policy.
    """

    name: str
    topics: str = "*"
    channels: str = "*"
    priority: int = 0
    values: Mapping[str, PolicyValue] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Return it in the notation that `parse_policy` reads."""
        settings = {key: _KEYS[key].render(value) for key, value in self.values.items()}
        return {
            "topics": self.topics,
            "channels": self.channels,
            "priority": self.priority,
            **settings,
        }


def _number(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise PolicyError("is not an integer")
        if not least <= value <= most:
            raise PolicyError(f"is not {least}..{most}")
        return value

    return parse


def _duration(value: object) -> int:
    if not isinstance(value, str):
        raise PolicyError('is not a duration such as "10s"')
    try:
        nanoseconds = durations.parse(value)
    except ValueError:
        raise PolicyError('is not a duration such as "10s"') from None
    if nanoseconds < 0:
        raise PolicyError("is below 0")
    return nanoseconds


def _delays(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DELAYS:
        raise PolicyError(f"is not a list of at most {_MAX_DELAYS} durations")
    return tuple(map(_duration, value))


def _when_full(value: object) -> str:
    if value not in (DROP_OLDEST, DROP_NEWEST, REFUSE):
        raise PolicyError("is not drop_oldest, drop_newest or refuse")
    assert isinstance(value, str)
    return value


def _when_expired(value: object) -> str:
    if value not in (DROP, DEAD_LETTER):
        raise PolicyError("is not drop or dead_letter")
    assert isinstance(value, str)
    return value


def _dead_letter_topic(value: object) -> str:
    if not isinstance(value, str) or not is_valid_name(value.replace(_TOPIC, "t").encode()):
        raise PolicyError("is not the name of a topic; {topic} in it stands for the origin's")
    return value


def _pattern(value: object) -> str:
    if not isinstance(value, str) or _PATTERN.fullmatch(value) is None:
        raise PolicyError("is not a pattern: letters, digits, . _ - #, * for any text, ? for one")
    return value


def _same(value: PolicyValue) -> object:
    return value


def _render_duration(value: PolicyValue) -> object:
    assert isinstance(value, int)
    return durations.render(value)


def _render_delays(value: PolicyValue) -> object:
    assert isinstance(value, tuple)
    return [durations.render(delay_ns) for delay_ns in value]


@dataclass(frozen=True, slots=True)
class _Key:
    """A setting: its field in `AppliedSettings`, and how its value is read and shown."""

    field: str
    parse: Callable[[object], PolicyValue]
    render: Callable[[PolicyValue], object] = _same
    is_of_topics: bool = False


_KEYS: Final[Mapping[str, _Key]] = {
    "max_attempts": _Key("max_attempts", _number(0, _MAX_ATTEMPTS)),
    "dead_letter_topic": _Key("dead_letter_topic", _dead_letter_topic),
    "retry_delays": _Key("retry_delays_ns", _delays, _render_delays),
    "max_messages": _Key("max_messages", _number(0, _MAX_INT), is_of_topics=True),
    "max_bytes": _Key("max_bytes", _number(0, _MAX_INT), is_of_topics=True),
    "max_age": _Key("max_age_ns", _duration, _render_duration, is_of_topics=True),
    "when_full": _Key("when_full", _when_full, is_of_topics=True),
    "message_ttl": _Key("message_ttl_ns", _duration, _render_duration, is_of_topics=True),
    "when_expired": _Key("when_expired", _when_expired, is_of_topics=True),
    "max_in_flight": _Key("max_in_flight", _number(0, _MAX_INT)),
    "retry_share": _Key("retry_share", _number(0, 100)),
}


def parse_policy(name: str, document: object) -> Policy:
    """Return the policy of a name that a decoded JSON or TOML table says.

    Raises:
        PolicyError: it is none; the text names the policy and the key.
    """
    if _NAME.fullmatch(name) is None:
        raise PolicyError(f"{name[:80]!r} is no name of a policy: letters, digits, . _ -, up to 64")
    if not isinstance(document, dict):
        raise PolicyError(f"policy {name}: it is no table of settings")
    topics, channels, priority = "*", "*", 0
    values: dict[str, PolicyValue] = {}
    for key, value in document.items():
        try:
            if key == "topics":
                topics = _pattern(value)
            elif key == "channels":
                channels = "" if value == "" else _pattern(value)
            elif key == "priority":
                priority = _number(-_MAX_PRIORITY, _MAX_PRIORITY)(value)
            elif key in _KEYS:
                values[key] = _KEYS[key].parse(value)
            else:
                raise PolicyError("is unknown")
        except PolicyError as error:
            raise PolicyError(f"policy {name}: {str(key)[:80]} {error}") from None
    for key in values:
        if not channels and not _KEYS[key].is_of_topics:
            raise PolicyError(f"policy {name}: {key} is of channels, and channels is empty")
    return Policy(name, topics, channels, priority, values)


def parse_policies(text: str) -> list[Policy]:
    """Return the policies of a TOML file: a table for each, under its name.

    Raises:
        PolicyError: it is no TOML, or one of them is none.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"it is not TOML: {error}") from error
    return [parse_policy(name, table) for name, table in tables.items()]


class _Affixes:
    """Places by a text that names begin or end with."""

    def __init__(self, *, at_end: bool) -> None:
        self._places: dict[str, list[int]] = {}
        self._lengths: set[int] = set()
        self._at_end = at_end

    def add(self, place: int, text: str) -> None:
        self._places.setdefault(text, []).append(place)
        self._lengths.add(len(text))

    def places(self, name: str) -> Iterator[int]:
        for length in self._lengths:
            if length <= len(name):
                text = name[len(name) - length :] if self._at_end else name[:length]
                yield from self._places.get(text, ())


class _Patterns:
    """Patterns of policies. A name is compared only with those that have more than one wildcard."""

    def __init__(self) -> None:
        self._exact: dict[str, list[int]] = {}
        self._begins = _Affixes(at_end=False)
        self._ends = _Affixes(at_end=True)
        self._others: list[tuple[int, re.Pattern[str]]] = []

    def add(self, place: int, pattern: str) -> None:
        wildcards = pattern.count("*") + pattern.count("?")
        if not wildcards:
            self._exact.setdefault(pattern, []).append(place)
        elif wildcards == 1 and pattern.endswith("*"):
            self._begins.add(place, pattern[:-1])
        elif wildcards == 1 and pattern.startswith("*"):
            self._ends.add(place, pattern[1:])
        else:
            self._others.append((place, _expression(pattern)))

    def places(self, name: str) -> list[int]:
        """Return the places of those whose pattern fits a name, in no order."""
        found = [*self._exact.get(name, ()), *self._begins.places(name), *self._ends.places(name)]
        found += [place for place, expression in self._others if expression.fullmatch(name)]
        return found


class PolicySet:
    """Policies, and what they set of each topic and channel. Immutable."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self.policies = {policy.name: policy for policy in policies}
        # The stronger ones first.
        self._order = sorted(self.policies.values(), key=lambda one: (-one.priority, one.name))
        self._patterns = _Patterns()
        self._channels: list[re.Pattern[str] | None] = []
        for place, policy in enumerate(self._order):
            self._patterns.add(place, policy.topics)
            self._channels.append(_expression(policy.channels) if policy.channels else None)
        # Of those that are together, by their places: there are few such groups.
        self._settings: dict[tuple[int, ...], AppliedSettings | None] = {(): None}

    def __repr__(self) -> str:
        return f"<PolicySet of {len(self.policies)}>"

    def __len__(self) -> int:
        return len(self.policies)

    def match(self, topic: str) -> list[int]:
        """Return what `topic_settings` and `channel_settings` need to know of a topic."""
        return sorted(self._patterns.places(topic))

    def topic_settings(self, matching: list[int]) -> AppliedSettings | None:
        """Return what is set of the queue of a topic; None if nothing is."""
        order = self._order
        places = [one for one in matching if order[one].channels in ("", "*")]
        return self._merged(tuple(places), of_topic=True)

    def channel_settings(self, matching: list[int], channel: str) -> AppliedSettings | None:
        """Return what is set of a channel of a topic; None if nothing is."""
        found = []
        for place in matching:
            expression = self._channels[place]
            if expression is not None and expression.fullmatch(channel) is not None:
                found.append(place)
        return self._merged(tuple(found), of_topic=False)

    def _merged(self, places: tuple[int, ...], *, of_topic: bool) -> AppliedSettings | None:
        group = (*places, -1) if of_topic and places else places
        if group in self._settings:
            return self._settings[group]
        values: dict[str, PolicyValue] = {}
        sources: dict[str, str] = {}
        for policy in map(self._order.__getitem__, places):
            for key, value in policy.values.items():
                if key not in sources and (_KEYS[key].is_of_topics or not of_topic):
                    sources[key] = policy.name
                    values[key] = value
        settings: AppliedSettings | None = None
        if sources:
            fields = {_KEYS[key].field: value for key, value in values.items()}
            settings = AppliedSettings(**fields, sources=sources)  # type: ignore[arg-type]
        self._settings[group] = settings
        return settings


@lru_cache(_MAX_EXPRESSIONS)
def _expression(pattern: str) -> re.Pattern[str]:
    wildcards = {"*": ".*", "?": "."}
    return re.compile("".join(wildcards.get(one) or re.escape(one) for one in pattern))
