"""Replays of dead letters: each goes back to the channel that gave it up, and to no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.letterbox import Letterbox
from trionsq.broker.logs import log_of
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import PublishRefused, Topic, until_safe
from trionsq.core.batch import ListColumn, MessageBatch, Segment
from trionsq.core.queue import BackendError
from trionsq.storage.discard import DiscardingBackend
from trionsq.storage.diskqueue import DiskQueue
from trionsq.storage.letters import DeadLetterStore, LetterError, LetterFilter, StoredLetter
from trionsq.storage.log.aims import AIMED_DELAY_MS, aim_key
from trionsq.storage.log.topiclog import TopicLog
from trionsq.wire.bodies import ListBodies

__all__ = ["DEFAULT_REPLAY_RATE", "Replays"]

DEFAULT_REPLAY_RATE: Final = 100
"""Letters a second."""

_MAX_BATCH: Final = 100
_RETRY_S: Final = 1.0
# How often a disk is asked whether it has what it was given.
_POLL_S: Final = 0.02


class Replays:
    """Sends letters back.

    Attributes:
        rate: letters a second.
    """

    def __init__(
        self,
        letters: Letterbox,
        topics: Mapping[str, Topic],
        clock: Clock,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """``changed`` is called when letters have gone."""
        self._changed = changed
        self.rate = DEFAULT_REPLAY_RATE
        self._letters = letters
        self._topics = topics
        self._clock = clock
        self._asked = trio.Event()

    def __repr__(self) -> str:
        return f"<Replays {self.rate}/s>"

    def wake(self) -> None:
        """Letters may be there that are to be replayed."""
        self._asked.set()

    async def run(self) -> None:
        """Replay what is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            try:
                while await self._replay_some():
                    pass
            except (LetterError, PublishRefused, BackendError) as error:
                self._letters.note_failure("replaying", error)
                self._asked.set()
                await trio.sleep(_RETRY_S)

    async def _replay_some(self) -> bool:
        """Replay the next letters; False if there are none."""
        count = max(1, min(_MAX_BATCH, self.rate // 10))
        letters = await self._letters.call(lambda store: store.to_replay(count))
        if not letters:
            return False
        with_origin = groupby(letters, lambda one: (one.letter.topic, one.letter.channel))
        for (topic_name, channel_name), group in with_origin:
            found = list(group)
            topic = self._topics.get(topic_name)
            channel = None if topic is None else topic.channels.get(channel_name)
            if topic is None or channel is None or channel.exiting:
                await self._put_off(found)
                continue
            is_durable = await self._put(topic, channel, found)
            while True:
                if is_durable():
                    break
                await trio.sleep(_POLL_S)
            numbers = [one.number for one in found]
            self._letters.counts["replayed"] += await self._letters.call(
                partial(_remove, numbers=numbers)
            )
        await self._changed()
        await trio.sleep(len(letters) / self.rate)
        return True

    async def _put_off(self, letters: Iterable[StoredLetter]) -> None:
        """Their channel is gone: they stay."""
        wanted = LetterFilter(ids=tuple(one.letter.id for one in letters))
        error = LetterError("the channel that they came from does not exist")
        self._letters.note_failure("not replaying some letters", error)
        await self._letters.call(lambda store: store.mark_replay(wanted, _MAX_BATCH, replay=False))

    async def _put(
        self, topic: Topic, channel: Channel, letters: list[StoredLetter]
    ) -> Callable[[], bool]:
        """Put letters into their channel; return what tells whether they are durable there."""
        topic_log = log_of(topic)
        backend = channel.core.store.backend
        if topic_log is not None and not isinstance(backend, DiscardingBackend):
            return await self._publish_for(topic, topic_log, channel, letters)
        bodies = ListBodies([one.letter.body for one in letters])
        ids = ListColumn([one.letter.message.encode() for one in letters])
        stamps = [one.letter.first_ns.to_bytes(8, signed=True) for one in letters]
        batch = MessageBatch(bodies, ids, letters[0].letter.first_ns, 0, ListColumn(stamps))
        segment, core = Segment(batch, 0, batch.count), channel.core
        if isinstance(backend, DiskQueue):
            core.store.append_to_backend(segment)
            is_durable = backend.sync_after_now()
        elif isinstance(backend, DiscardingBackend):
            core.store.memory.append(segment)
            is_durable = _at_once
        else:
            raise BackendError("the topic is being moved to a log")
        core.message_count += batch.count
        channel.wake()
        return is_durable

    async def _publish_for(
        self, topic: Topic, topic_log: TopicLog, channel: Channel, letters: list[StoredLetter]
    ) -> Callable[[], bool]:
        bodies = ListBodies([one.letter.body for one in letters])
        key = aim_key(channel.name, letters[0].letter.id)
        first = topic_log.end
        # Before it is published: channels may get it at once.
        topic_log.aims.add(first, first + bodies.count, channel.name, topic_log.handed_on)
        now_ns = self._clock.now_ns()
        ids = topic.core.ids.next_ids(bodies.count, now_ns)
        batch = MessageBatch(bodies, ids, now_ns, AIMED_DELAY_MS, key=key)
        # No bound of the topic drops it.
        pending = topic.publish_batch(batch)
        end = topic_log.end
        if pending is not None:
            await until_safe(pending)
        topic_log.sync()
        return lambda: topic_log.is_deleted or topic_log.is_synced_to(end)


def _remove(store: DeadLetterStore, numbers: list[int]) -> int:
    return store.remove_numbers(numbers)


def _at_once() -> bool:
    return True
