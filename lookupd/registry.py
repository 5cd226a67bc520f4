"""The registration database: which producers have which topics and channels.

Synchronous; times are arguments, in nanoseconds of one clock that never goes back. A topic and a
channel of a topic are keys, which may exist without producers. A key is removed only when it is
deleted, or when it is ephemeral and its last producer unregisters; the end of a connection removes
its producer and leaves the keys.

One producer may have 50,000 registrations, so no call walks over them. A producer that has gone is
missing in every answer at once; its registrations are void, and `Registry.sweep` removes them a few
at a time. Long answers are iterators, which stay valid while the registry changes between two
items. The cost of an item does not grow with the registry. Names are copied in one step when such
an iterator starts: 5 ns for each.

Spec: nsqlookupd, section 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Final

from trionsq.wire import gojson
from trionsq.wire.names import is_ephemeral

__all__ = ["ALL", "MAX_NAMES", "Announced", "Entry", "MissingFieldsError", "Producer", "Registry"]
__all__ += ["RegistryFullError", "read_announced"]

ALL: Final = "*"
"""In place of a topic: every topic there is."""


class MissingFieldsError(ValueError):
    """The announcement lacks an address, a port or the version."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The announcement of an nsqd; the names are the keys of the JSON object.

    Attributes:
        broadcast_address, hostname: host names; clients use the first.
        tcp_port, http_port: where it listens.
        version: of nsqd.
    """

    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""


_KINDS: Final[dict[str, type]] = {field.name: type(field.default) for field in fields(Announced)}


def read_announced(body: bytes) -> Announced:
    """The announcement in the body of an IDENTIFY.

    Raises:
        MissingFieldsError: something that clients need is missing, empty or 0.
        ValueError: it is not a JSON object, or a member has the wrong type.
    """
    announced = Announced(**gojson.read_members(body, _KINDS))
    if not (
        announced.broadcast_address
        and announced.tcp_port
        and announced.http_port
        and announced.version
    ):
        raise MissingFieldsError("IDENTIFY missing fields")
    return announced


@dataclass(slots=True, eq=False)
class Producer:
    """An identified connection of an nsqd. Each connection is a producer of its own.

    Attributes:
        remote_address: the other end of the connection, ``ip:port``.
        announced: the content of its IDENTIFY.
        last_update_ns: when it last identified itself or pinged.
    """

    remote_address: str
    announced: Announced
    last_update_ns: int

    @property
    def node(self) -> str:
        """Its name in the HTTP API, ``broadcast_address:http_port``."""
        return f"{self.announced.broadcast_address}:{self.announced.http_port}"


@dataclass(slots=True, eq=False)
class Entry:
    """A producer at a topic.

    Attributes:
        tombstoned_at_ns: when it was hidden from lookups of the topic, None if it was not.
        channels: the channels of the topic that it has registered, None if none yet.
    """

    producer: Producer
    tombstoned_at_ns: int | None = None
    channels: set[str] | None = None


_Entries = dict[Producer, Entry]

MAX_NAMES: Final = 1_000_000
"""Topics and channels together. They stay when their producers go; each takes some 500 bytes."""


class RegistryFullError(Exception):
    """There are `MAX_NAMES` topics and channels: delete some."""


class Registry:
    """All registrations. Lists are in no particular order."""

    def __init__(self, inactive_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        """``inactive_timeout_ns``: producers that were silent for longer are hidden."""
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        # An entry is valid if all three have it; void ones are removed by the next sweep.
        self._producers: dict[Producer, dict[str, Entry]] = {}
        self._topics: dict[str, _Entries] = {}
        self._channels: dict[str, dict[str, _Entries]] = {}
        self._sweeps: deque[Iterator[None]] = deque()
        # Topics, and channels of each topic.
        self.names = 0

    def __repr__(self) -> str:
        channels = sum(map(len, self._channels.values()))
        return (
            f"<Registry {len(self._producers)} producers,"
            f" {len(self._topics)} topics, {channels} channels>"
        )

    # For connections

    def add_producer(self, producer: Producer) -> None:
        """Add a producer that has identified itself."""
        self._producers[producer] = {}

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer whose connection has ended; nothing if it never identified itself."""
        places = self._producers.pop(producer, None)
        if places:
            self._sweeps.append(self._sweep_places(places))

    def register(self, producer: Producer, topic: str, channel: str | None = None) -> None:
        """Register a topic, or a channel and its topic; may raise RegistryFullError. A tombstone
        stays."""
        entries = self._topic(topic)
        entry = entries.get(producer)
        if entry is None:
            entry = entries[producer] = self._producers[producer][topic] = Entry(producer)
        if channel is not None:
            self._channel(topic, channel)[producer] = entry
            if entry.channels is None:
                entry.channels = set()
            entry.channels.add(channel)

    def unregister_channel(self, producer: Producer, topic: str, channel: str) -> None:
        """Unregister a channel; the topic stays registered."""
        entries = self._channels.get(topic, {}).get(channel)
        if entries is None:
            return
        entry = entries.pop(producer, None)
        if entry is not None and entry.channels:
            entry.channels.discard(channel)
        if is_ephemeral(channel) and not self._any(topic, entries):
            self.delete_channel(topic, channel)

    def unregister_topic(self, producer: Producer, topic: str) -> None:
        """Unregister a topic and all of its channels."""
        entries = self._topics.get(topic)
        if entries is None:
            return
        if (entry := entries.pop(producer, None)) is not None:
            del self._producers[producer][topic]
            if entry.channels:
                self._sweeps.append(self._sweep_channels(topic, entry))
        if is_ephemeral(topic) and not self._any(topic, entries):
            del self._topics[topic]
            self.names -= 1

    # For operators

    def create_topic(self, topic: str) -> None:
        """Create the topic, if it does not exist. Raises RegistryFullError."""
        self._topic(topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create the channel and its topic, if they do not exist. Raises RegistryFullError."""
        self._channel(topic, channel)
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic (or `ALL`) and its channels, if they exist."""
        if topic == ALL:
            topics, self._topics, self._channels = self._topics, {}, {}
            self.names = 0
        else:
            self.names -= (topic in self._topics) + self.channel_count(topic)
            topics = {topic: self._topics.pop(topic, {})}
            self._channels.pop(topic, None)
        self._sweeps.append(self._sweep_topics(topics))

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget the channel; whether there was one."""
        channels = self._channels.get(topic, {})
        entries = channels.pop(channel, None)
        if entries is None:
            return False
        self.names -= 1
        if not channels:
            del self._channels[topic]
        if entries:
            self._sweeps.append(self._sweep_channel(topic, channel, entries))
        return True

    def tombstone(self, topic: str, node: str, now_ns: int) -> Iterator[None]:
        """Hide the producers of that name from lookups of the topic (or `ALL`) for a while.

        It is done when the iterator ends; an item is an entry that was looked at.
        """
        for name in self._topics_meant(topic, self._topics):
            for entry in list(self._topics.get(name, {}).values()):
                if entry.producer.node == node:
                    entry.tombstoned_at_ns = now_ns
                yield

    # What is left behind

    def sweep(self, most: int) -> bool:
        """Remove up to ``most`` void registrations; whether some may be left."""
        for _ in range(most):
            if not self._sweeps:
                return False
            try:
                next(self._sweeps[0])
            except StopIteration:
                self._sweeps.popleft()
        return bool(self._sweeps)

    def _sweep_places(self, places: dict[str, Entry]) -> Iterator[None]:
        """Those of a producer that is gone."""
        while places:
            topic, entry = places.popitem()
            entries = self._topics.get(topic, {})
            if entries.get(entry.producer) is entry:
                del entries[entry.producer]
            yield
            yield from self._sweep_channels(topic, entry)

    def _sweep_channels(self, topic: str, entry: Entry) -> Iterator[None]:
        """Those of a producer that has left the topic."""
        while entry.channels:
            entries = self._channels.get(topic, {}).get(entry.channels.pop(), {})
            if entries.get(entry.producer) is entry:
                del entries[entry.producer]
            yield

    def _sweep_topics(self, topics: dict[str, _Entries]) -> Iterator[None]:
        """Those of topics that were deleted."""
        while topics:
            topic, entries = topics.popitem()
            yield
            while entries:
                producer, entry = entries.popitem()
                places = self._producers.get(producer, {})
                if places.get(topic) is entry:
                    del places[topic]
                yield

    def _sweep_channel(self, topic: str, channel: str, entries: _Entries) -> Iterator[None]:
        """Those of a channel that was deleted."""
        while entries:
            producer, entry = entries.popitem()
            anew = self._channels.get(topic, {}).get(channel, {})
            if anew.get(producer) is not entry and entry.channels:
                entry.channels.discard(channel)
            yield

    # What is asked

    @property
    def producer_count(self) -> int:
        """Producers, active or not."""
        return len(self._producers)

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; for `ALL`, whether there is any."""
        return bool(self._topics) if topic == ALL else topic in self._topics

    def topics(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def channel_count(self, topic: str) -> int:
        """How many channels the topic has."""
        return len(self._channels.get(topic, ()))

    def channels(self, topic: str) -> Iterator[str]:
        """The channels of the topic, with or without producers.

        For `ALL` those of every topic; a name that several have comes once for each.
        """
        for name in self._topics_meant(topic, self._channels):
            yield from list(self._channels.get(name, ()))

    def lookup(self, topic: str, now_ns: int) -> Iterator[Producer | None]:
        """The active producers of the topic that are not hidden; for `ALL`, each once.

        None stands for a producer that was checked and is left out, or a topic that has none.
        """
        listed = set[Producer]()
        for name in self._topics_meant(topic, self._topics):
            if not (entries := list(self._topics.get(name, {}).items())):
                yield None
            for producer, entry in entries:
                visible = self._is_active(producer, now_ns) and not self._is_hidden(entry, now_ns)
                if visible and producer not in listed:
                    listed.add(producer)
                    yield producer
                else:
                    yield None

    def active_producers(self, now_ns: int) -> Iterator[Producer | None]:
        """All active producers, hidden ones included; None as in `lookup`."""
        for producer in list(self._producers):
            yield producer if self._is_active(producer, now_ns) else None

    def topics_of(self, producer: Producer, now_ns: int) -> Iterator[tuple[str, bool] | None]:
        """The topics of a producer, each with whether it is hidden there; None as in `lookup`."""
        for topic, entry in list(self._producers.get(producer, {}).items()):
            known = self._topics.get(topic, {}).get(producer) is entry
            yield (topic, self._is_hidden(entry, now_ns)) if known else None

    def everything(self) -> Iterator[tuple[str, Entry] | None]:
        """Each producer, active or not, at each of its keys, as ``category:key:subkey``.

        Those of one key follow each other; None as in `lookup`.
        """
        for producer in list(self._producers):
            yield "client::", Entry(producer)
        for topic in list(self._topics):
            if not (entries := list(self._topics.get(topic, {}).values())):
                yield None
            for entry in entries:
                yield (f"topic:{topic}:", entry) if self._counts(topic, entry) else None
        for topic in list(self._channels):
            for channel in list(self._channels.get(topic, ())):
                for entry in list(self._channels.get(topic, {}).get(channel, {}).values()):
                    if self._counts(topic, entry):
                        yield f"channel:{topic}:{channel}", Entry(entry.producer)
                    else:
                        yield None

    def _topic(self, topic: str) -> _Entries:
        self._count_name(is_new=topic not in self._topics)
        return self._topics.setdefault(topic, {})

    def _channel(self, topic: str, channel: str) -> _Entries:
        self._count_name(is_new=channel not in self._channels.get(topic, {}))
        return self._channels.setdefault(topic, {}).setdefault(channel, {})

    def _count_name(self, *, is_new: bool) -> None:
        if is_new and self.names >= MAX_NAMES:
            raise RegistryFullError("too many topics and channels")
        self.names += is_new

    @staticmethod
    def _topics_meant(topic: str, among: Collection[str]) -> list[str]:
        if topic == ALL:
            return list(among)
        return [topic] if topic in among else []

    def _counts(self, topic: str, entry: Entry) -> bool:
        """Whether the entry is not void."""
        return self._producers.get(entry.producer, {}).get(topic) is entry

    def _any(self, topic: str, entries: _Entries) -> bool:
        return any(self._counts(topic, entry) for entry in entries.values())

    def _is_active(self, producer: Producer, now_ns: int) -> bool:
        """Whether the producer is connected and pinged recently."""
        return (
            now_ns - producer.last_update_ns <= self._inactive_timeout_ns
            and producer in self._producers
        )

    def _is_hidden(self, entry: Entry, now_ns: int) -> bool:
        since_ns = entry.tombstoned_at_ns
        return since_ns is not None and now_ns - since_ns < self._tombstone_lifetime_ns
