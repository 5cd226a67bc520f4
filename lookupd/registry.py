"""The registration database: which producers have which topics and channels.

Synchronous; times are arguments, in nanoseconds of one clock that never goes back. A topic, a
channel of a topic: each is a key that can be there without producers. A key goes only when it is
deleted, or when it is ephemeral and its last producer unregisters; the end of a connection takes
its producer away and leaves the keys.

Spec: nsqlookupd, section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lookupd.producer import Producer
from trionsq.wire.names import is_ephemeral

__all__ = ["ALL", "Entry", "Node", "Registry"]

ALL: Final = "*"
"""In place of a topic: every topic there is."""


@dataclass(slots=True)
class Entry:
    """A producer at a topic.

    Attributes:
        tombstoned_at_ns: since when it is hidden from lookups of that topic, None if never.
    """

    producer: Producer
    tombstoned_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """An active producer and its topics.

    Attributes:
        topics: each with whether the producer is hidden from its lookups.
    """

    producer: Producer
    topics: Mapping[str, bool]


class Registry:
    """All registrations. Lists are in no particular order."""

    def __init__(self, inactive_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        """``inactive_timeout_ns``: a producer that was silent for longer is hidden."""
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        # Of each producer, the topics and (topic, channel) pairs that it is registered for.
        self._producers: dict[Producer, _Places] = {}
        self._topics: dict[str, dict[Producer, Entry]] = {}
        self._channels: dict[str, dict[str, set[Producer]]] = {}

    def __repr__(self) -> str:
        channels = sum(map(len, self._channels.values()))
        return (
            f"<Registry {len(self._producers)} producers,"
            f" {len(self._topics)} topics, {channels} channels>"
        )

    # What connections do

    def add_producer(self, producer: Producer) -> None:
        """It has identified itself."""
        self._producers[producer] = _Places(set(), set())

    def remove_producer(self, producer: Producer) -> None:
        """Its connection has ended. Nothing happens if it never identified itself."""
        places = self._producers.pop(producer, None)
        if places is None:
            return
        for topic in places.topics:
            del self._topics[topic][producer]
        for topic, channel in places.channels:
            self._channels[topic][channel].discard(producer)

    def register(self, producer: Producer, topic: str, channel: str | None = None) -> None:
        """It has the topic, or the channel and thereby the topic. A tombstone stays."""
        places = self._producers[producer]
        if channel is not None:
            self._channel(topic, channel).add(producer)
            places.channels.add((topic, channel))
        if topic not in places.topics:
            self._topics.setdefault(topic, {})[producer] = Entry(producer)
            places.topics.add(topic)

    def unregister_channel(self, producer: Producer, topic: str, channel: str) -> None:
        """It does not have the channel any more; the topic stays."""
        self._producers[producer].channels.discard((topic, channel))
        held = self._channels.get(topic, {}).get(channel)
        if held is not None:
            held.discard(producer)
            if not held and is_ephemeral(channel):
                self.delete_channel(topic, channel)

    def unregister_topic(self, producer: Producer, topic: str) -> None:
        """It has neither the topic nor any channel of it any more."""
        places = self._producers[producer]
        for channel, held in self._channels.get(topic, {}).items():
            held.discard(producer)
            places.channels.discard((topic, channel))
        entries = self._topics.get(topic)
        if entries is not None:
            entries.pop(producer, None)
            places.topics.discard(topic)
            if not entries and is_ephemeral(topic):
                del self._topics[topic]

    # What operators do

    def create_topic(self, topic: str) -> None:
        """Let the topic be, with or without producers."""
        self._topics.setdefault(topic, {})

    def create_channel(self, topic: str, channel: str) -> None:
        """Let the channel be, and its topic."""
        self._channel(topic, channel)
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget the topic (or `ALL`) and its channels, if there are any."""
        for name in self._topics_meant(topic, self._topics):
            for producer in self._topics.pop(name):
                self._producers[producer].topics.discard(name)
        for name in self._topics_meant(topic, self._channels):
            for channel in list(self._channels[name]):
                self.delete_channel(name, channel)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget the channel; whether there was one."""
        held = self._channels.get(topic, {}).pop(channel, None)
        if held is None:
            return False
        for producer in held:
            self._producers[producer].channels.discard((topic, channel))
        if not self._channels[topic]:
            del self._channels[topic]
        return True

    def tombstone(self, topic: str, node: str, now_ns: int) -> None:
        """Hide the producers of that name from lookups of the topic (or `ALL`) for a while."""
        for name in self._topics_meant(topic, self._topics):
            for entry in self._topics[name].values():
                if entry.producer.node == node:
                    entry.tombstoned_at_ns = now_ns

    # What is asked

    @property
    def producer_count(self) -> int:
        """Producers, active or not."""
        return len(self._producers)

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; for `ALL`, whether there is any."""
        return bool(self._topics_meant(topic, self._topics))

    def topics(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """The channels of the topic, with or without producers.

        For `ALL` those of every topic; a name that several have comes once for each.
        """
        meant = self._topics_meant(topic, self._channels)
        return [channel for name in meant for channel in self._channels[name]]

    def lookup(self, topic: str, now_ns: int) -> list[Producer]:
        """The topic's producers that are active and not hidden; for `ALL`, each but once."""
        found: dict[Producer, None] = {}
        for name in self._topics_meant(topic, self._topics):
            for entry in self._topics[name].values():
                if self._is_active(entry.producer, now_ns) and not self._is_hidden(entry, now_ns):
                    found[entry.producer] = None
        return list(found)

    def nodes(self, now_ns: int) -> Iterator[Node]:
        """All active producers, the hidden ones included."""
        for producer, places in self._producers.items():
            if self._is_active(producer, now_ns):
                hidden = {
                    topic: self._is_hidden(self._topics[topic][producer], now_ns)
                    for topic in places.topics
                }
                yield Node(producer, hidden)

    def everything(self) -> Iterator[tuple[str, list[Entry]]]:
        """Each key that has producers, active or not, as ``category:key:subkey``."""
        if self._producers:
            yield "client::", [Entry(producer) for producer in self._producers]
        for topic, entries in self._topics.items():
            if entries:
                yield f"topic:{topic}:", list(entries.values())
        for topic, channels in self._channels.items():
            for channel, held in channels.items():
                if held:
                    yield f"channel:{topic}:{channel}", [Entry(producer) for producer in held]

    def _channel(self, topic: str, channel: str) -> set[Producer]:
        return self._channels.setdefault(topic, {}).setdefault(channel, set())

    @staticmethod
    def _topics_meant(topic: str, among: Collection[str]) -> list[str]:
        if topic == ALL:
            return list(among)
        return [topic] if topic in among else []

    def _is_active(self, producer: Producer, now_ns: int) -> bool:
        return now_ns - producer.last_update_ns <= self._inactive_timeout_ns

    def _is_hidden(self, entry: Entry, now_ns: int) -> bool:
        since_ns = entry.tombstoned_at_ns
        return since_ns is not None and now_ns - since_ns < self._tombstone_lifetime_ns


@dataclass(slots=True)
class _Places:
    topics: set[str]
    channels: set[tuple[str, str]]
