"""What publishers, consumers and operators were told, and what a node therefore owes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from trionsq.core.keys import PublishKey
from trionsq.core.round import Round

__all__ = [
    "Broken",
    "ChannelAccount",
    "KeyedPublish",
    "Message",
    "Place",
    "Told",
    "TopicAccount",
]


class Broken(Exception):
    """A promise was broken; the text says which."""


class Told(Enum):
    """What a publisher, or an operator, has heard."""

    NOTHING = auto()
    OK = auto()
    REFUSED = auto()
    EMPTIED = auto()  # it was stored, and then dropped by an operator
    UNKNOWN = auto()  # the node stopped before the answer, or the answer has lost its worth


class Place(Enum):
    """Where a message is in a channel."""

    OWED = auto()  # it must come
    POSSIBLE = auto()  # it may come
    IN_FLIGHT = auto()
    FINISHED = auto()  # comes again only after a crash
    GONE = auto()  # never comes again


@dataclass(slots=True, eq=False)
class Message:
    """A message.

    Attributes:
        body: no other has it.
        told: what its publisher knows.
        durable: whether it has to outlive a power cut.
        is_unsure: an fsync failed, and a kill came before it was written again: no later fsync is
            a proof that it is durable.
        due_ns: no channel gets it earlier.
        id: as it came, once it has come.
        sequence: in the log, as it was published last.
        lowest_sequence: of all its publishes. A crash may bring a refused one back.
    """

    body: bytes
    told: Told = Told.NOTHING
    durable: bool = False
    is_unsure: bool = False
    due_ns: int = 0
    id: bytes | None = None
    sequence: int = 0
    lowest_sequence: int = 2**63


@dataclass(slots=True, eq=False)
class KeyedPublish:
    """A publish that may be repeated: its messages have a key.

    Attributes:
        is_confirmed: a repeat heard OK, and nothing was stored again.
    """

    key: PublishKey
    messages: list[Message]
    defer_ms: int
    is_confirmed: bool = False


@dataclass(slots=True)
class _Entry:
    place: Place
    due_ns: int = 0
    # Whether `due_ns`, of a requeued message, has to outlive a crash.
    due_is_saved: bool = False
    # Owed since a seek that a crash may undo.
    is_sought: bool = False


@dataclass(eq=False)
class ChannelAccount:
    """What a channel owes.

    Attributes:
        created, deleted: what the operator heard of that; NOTHING if there was no such command.
        paused: whether it is paused.
        pause_is_saved: whether that has to outlive a crash.
        pauses: how often that was changed.
        is_sampled: a consumer may have left out any message.
    """

    name: str
    number: int
    created: Told = Told.NOTHING
    deleted: Told = Told.NOTHING
    is_deleted: bool = False
    paused: bool = False
    pause_is_saved: bool = True
    pauses: int = 0
    is_sampled: bool = False
    entries: dict[Message, _Entry] = field(default_factory=dict)

    def place(self, message: Message) -> Place:
        entry = self.entries.get(message)
        return Place.POSSIBLE if entry is None else entry.place

    def put(self, message: Message, place: Place) -> None:
        self.entries[message] = _Entry(place)

    def forget(self, messages: Iterable[Message]) -> None:
        """They are published anew: only their ids are known."""
        for message in messages:
            self.entries.pop(message, None)

    def fan_out(self, messages: Iterable[Message]) -> None:
        """The channel owes these from now on."""
        for message in messages:
            if message not in self.entries:
                place = Place.POSSIBLE if self.is_sampled else Place.OWED
                self.entries[message] = _Entry(place, message.due_ns)

    def deliver(self, message: Message, now_ns: int) -> None:
        """A consumer has got it."""
        entry = self.entries.setdefault(message, _Entry(Place.POSSIBLE, message.due_ns))
        if entry.place not in (Place.OWED, Place.POSSIBLE):
            raise Broken(f"{message.body!r} came to {self.name}, where it is {entry.place.name}")
        if message.told not in (Told.OK, Told.UNKNOWN):
            raise Broken(f"{message.body!r} came to {self.name}, its publisher: {message.told}")
        if now_ns < max(entry.due_ns, message.due_ns):
            raise Broken(f"{message.body!r} came to {self.name} before its time")
        entry.place = Place.IN_FLIGHT

    def finish(self, message: Message) -> None:
        self.entries[message].place = Place.FINISHED

    def give_back(self, message: Message, due_ns: int = 0) -> None:
        """It was requeued, or has timed out: it comes again."""
        place = Place.OWED if message.told is Told.OK else Place.POSSIBLE
        if self.is_sampled:
            place = Place.POSSIBLE
        self.entries[message] = _Entry(place, due_ns)

    def seen_by_snapshot(self) -> Callable[[], None]:
        """Return what is to be called when the snapshot that is taken now is committed."""
        entries = self.entries.values()
        finished = [entry for entry in entries if entry.place is Place.FINISHED]
        with_due = [entry for entry in entries if entry.due_ns and not entry.due_is_saved]
        sought = [entry for entry in entries if entry.is_sought]

        def saved() -> None:
            for entry in finished:
                entry.place = Place.GONE
            for entry in with_due:
                entry.due_is_saved = True
            for entry in sought:
                entry.is_sought = False

        return saved

    def empty(self, *, is_sure: bool) -> list[_Entry]:
        """Drop all; return what an answer makes sure."""
        dropped: list[_Entry] = []
        for entry in self.entries.values():
            if entry.place is not Place.GONE:
                entry.place = Place.FINISHED if is_sure else Place.POSSIBLE
                if is_sure:
                    dropped.append(entry)
        return dropped

    def seek(
        self, messages: Iterable[Message], first: int, end: int, *, is_sure: bool, is_new: bool
    ) -> None:
        """Those from ``first`` up to ``end`` come once more, and no others of before.

        ``is_new``: the channel was made with that.
        """
        for message in messages:
            entry = self.entries.get(message)
            if message.sequence >= end or entry is None:
                continue
            if not is_sure:
                self.put(message, Place.POSSIBLE)  # a commit of before says nothing of it
            elif message.sequence < first:
                if entry.place is not Place.GONE:
                    entry.place = Place.FINISHED
            else:
                was_owed = entry.place in (Place.OWED, Place.IN_FLIGHT) and not entry.is_sought
                self.give_back(message)
                self.entries[message].is_sought = not (was_owed or is_new)

    def stop(self, *, is_crash: bool) -> None:
        """The node has stopped, and begins again."""
        for message, entry in self.entries.items():
            if entry.place is Place.IN_FLIGHT:
                is_owed = message.told is Told.OK and not self.is_sampled
                entry.place = Place.OWED if is_owed else Place.POSSIBLE
                entry.due_ns = 0
            if is_crash and (entry.place is Place.FINISHED or entry.is_sought):
                entry.place = Place.POSSIBLE
            entry.is_sought = False
            if is_crash and not entry.due_is_saved:
                entry.due_ns = 0

    def owed(self) -> list[Message]:
        return [message for message, entry in self.entries.items() if entry.place is Place.OWED]

    def possible(self) -> int:
        return sum(entry.place is Place.POSSIBLE for entry in self.entries.values())

    def doubt(self, messages: Iterable[Message]) -> None:
        """These may be lost."""
        for message in messages:
            entry = self.entries.get(message)
            if entry is not None and entry.place in (Place.OWED, Place.IN_FLIGHT):
                entry.place = Place.POSSIBLE


@dataclass(eq=False)
class TopicAccount:
    """What a topic owes.

    Attributes:
        number: of its log.
        messages: all, by body.
        waiting: those that no channel has got.
        rounds: when each began, in nanoseconds since the epoch.
        owners: messages by id, as far as they came.
        channels: those that exist, or may.
        refused, saved_refused: messages that were refused, and of how many the state knows that.
        is_torn: the disk failed, and a crash found messages on their way, or before the state knew
            that some were refused: what is missing of them may be taken for damage.
        keyed: the publishes with a key.
    """

    name: str
    number: int
    created: Told = Told.NOTHING
    deleted: Told = Told.NOTHING
    is_deleted: bool = False
    paused: bool = False
    pause_is_saved: bool = True
    pauses: int = 0
    messages: dict[bytes, Message] = field(default_factory=dict)
    waiting: list[Message] = field(default_factory=list)
    rounds: dict[Round, int] = field(default_factory=dict)
    owners: dict[bytes, Message] = field(default_factory=dict)
    channels: dict[int, ChannelAccount] = field(default_factory=dict)
    refused: int = 0
    saved_refused: int = 0
    is_torn: bool = False
    keyed: list[KeyedPublish] = field(default_factory=list)

    def live_channels(self) -> list[ChannelAccount]:
        return [channel for channel in self.channels.values() if not channel.is_deleted]

    def add_channel(self, name: str, number: int, *, is_sure: bool) -> ChannelAccount:
        """``is_sure``: what does not wait here was handed to other channels, or dropped."""
        channel = self.channels[number] = ChannelAccount(name, number)
        if is_sure:
            waiting = set(self.waiting)
            for message in self.messages.values():
                if message.told is Told.OK and message not in waiting:
                    channel.put(message, Place.GONE)
        return channel

    def fan_out(self) -> None:
        """Hand what waits to the channels, as the topic does when it can."""
        live = self.live_channels()
        if live and not self.paused and self.waiting:
            for channel in live:
                channel.fan_out(self.waiting)
            self.waiting = []

    def doubt(self, messages: list[Message]) -> None:
        """These may be lost."""
        for message in messages:
            if message.told is Told.OK:
                message.told = Told.UNKNOWN
        doubted = set(messages)
        self.waiting = [message for message in self.waiting if message not in doubted]
        for channel in self.channels.values():
            channel.doubt(messages)

    def refusals_saved(self) -> Callable[[], None]:
        """Return what is to be called when the snapshot that is taken now is committed."""
        refused = self.refused

        def saved() -> None:
            self.saved_refused = max(self.saved_refused, refused)

        return saved

    def stop(self, *, is_crash: bool, has_lost_power: bool, has_faults: bool = False) -> None:
        unanswered = sum(one.told is Told.NOTHING for one in self.messages.values())
        self.is_torn |= is_crash and (
            self.refused > self.saved_refused or (has_faults and unanswered > 0)
        )
        for message in self.messages.values():
            # A refused one may be in the file all the same.
            if message.told in (Told.NOTHING, Told.REFUSED):
                message.told = Told.UNKNOWN
        if has_lost_power:
            self.doubt([one for one in self.messages.values() if not one.durable])
        for channel in self.channels.values():
            channel.stop(is_crash=is_crash)
