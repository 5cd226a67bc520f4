"""Random histories of a node that crashes again and again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import lt
from random import Random
from typing import Final

from tests.storage.log.sweep.account import Broken
from tests.storage.log.sweep.world import MSG_TIMEOUT_S, PATIENCE, LiveChannel, LiveTopic, World
from trionsq.storage.log.journal import SPARE_JOURNAL, journal_number
from trionsq.storage.log.names import parse_segment_name
from trionsq.storage.log.rows import State, StateError
from trionsq.storage.log.seeking import first_kept
from trionsq.storage.log.state import WAL_FILE
from trionsq.testing.disk import Crashed, SimulatedDisk
from trionsq.testing.logstate import MemoryState

__all__ = ["History", "Points", "run"]

_TOPICS: Final = ("t", "u")
# Enough for a journal.
_MANY_TOPICS: Final = ("t", "u", "v", "w", "x")
_CHANNELS: Final = ("c", "d", "e")
_MAX_STARTS: Final = 40
_MAX_DRAIN: Final = 300

OpenState = Callable[[SimulatedDisk], State]


@dataclass
class Points:
    """What was tried: crashes, and starts after them."""

    crashes: int = 0
    starts: int = 0


class History:
    """One history.

    Attributes:
        points: what it tried so far.
        story: what was done, for a reader.
    """

    def __init__(self, seed: int, open_state: OpenState = MemoryState, lives: int = 8) -> None:
        self.points = Points()
        self.story: list[str] = []
        self._random = random = Random(seed)
        self._lives = lives
        self._has_faults = random.random() < 0.3
        self._flips = random.random() < 0.1
        self._is_prompt = random.random() < 0.4
        durability = random.choice(("always", "interval"))
        self._world = World(
            random,
            SimulatedDisk(random=Random(seed + 1)),
            open_state,
            # What a failed commit costs shows where no power cut may cost a message.
            "always" if seed % 5 == 1 else durability,
            random.choice((300, 1_000, 20_000) if seed % 3 == 2 else (300, 1_000, 4_000)),
            random.choice((500, 2_000, 8_000)) if seed % 3 == 2 else 2_000,
        )
        self._topics = _MANY_TOPICS if seed % 3 == 2 else _TOPICS
        self._world.has_faults = self._has_faults
        self._flows = seed % 4 < 2
        if seed % 4 == 0:
            self._world.retain_bytes = 0  # for remainders
        self._fails_commits = seed % 5 in (1, 2) and not self._has_faults
        # Elsewhere what a torn round leaves may be missing.
        is_strict = self._world.durability == "always" and not self._flips
        self._tears = 0.06 if is_strict else 0.02
        # With one source of chance for all, what happens to journals would change every history.
        self._of_journals = Random(seed + 2)
        # Of the next crashes, in their order: whether the power fails, and not only the process.
        self._fates: list[bool] = []
        self._story(f"seed {seed} {self._world.durability}")

    def _story(self, text: str) -> None:
        self.story.append(text)

    def run(self) -> Points:
        """Run it to its end.

        Raises:
            Broken: a promise was broken.
        """
        world, random = self._world, self._random
        world.open()
        if self._topics is _MANY_TOPICS:
            for name in self._topics:
                world.make_topic(name)
            world.settle()
        for _ in range(self._lives):
            # Rounds of many topics share a journal when all have a segment.
            longest = 500 if self._topics is _MANY_TOPICS else 150
            most = 8 if self._fates else random.choice((8, 40, longest))
            world.disk.crash_at(random.randint(1, most))
            try:
                if random.random() < 0.08 and not self._fates:
                    self._stop()
                while True:
                    self._act()
            except Crashed:
                self._crash()
        world.disk.crash_at(1 << 60)
        if world.retain_bytes == 0 and random.random() < 0.8:
            try:
                self._clear()
            except Crashed:
                self._crash()
        world.disk.crash_at(1 << 60)
        self._drain()
        return self.points

    # Between two lives

    def _crash(self) -> None:
        random, world = self._random, self._world
        for _ in range(_MAX_STARTS):
            self.points.crashes += 1
            has_lost_power = self._fates.pop(0) if self._fates else random.random() < 0.5
            self._story("power cut" if has_lost_power else "kill -9")
            disk = world.disk
            world.disk = disk.after_power_loss() if has_lost_power else disk.after_kill()
            world.note_uncertain()
            world.stop(is_crash=True, has_lost_power=has_lost_power)
            if self._flips and random.random() < 0.5:
                self._flip()
            if random.random() < 0.3 and not self._fates:
                world.disk.crash_at(random.randint(1, 30))
            is_early = self._of_journals.random() < 0.2
            if is_early and self._topics is _MANY_TOPICS and not self._fates:
                # Journals are replayed and gone, and some segments that had a part of them are not
                # looked at yet.
                world.disk.crash_at(self._of_journals.randint(1, 4), ("sync",), "*.log.*")
                self._fates = [True]
            try:
                self._start()
                return
            except Crashed:
                self._story("crash while it starts")
        self._start()

    def _start(self) -> None:
        world = self._world
        self.points.starts += 1
        self._story("start")
        if self._has_faults and self._random.random() < 0.2:
            self._fail()
        try:
            world.open()
        except (StateError, OSError) as error:
            if not world.disk.faults:
                raise Broken(f"it does not start: {error}") from error
            world.disk.heal()
            world.disk.faults.clear()
            world.note_uncertain()
            world.open()

    def _stop(self) -> None:
        self._story("stop")
        world = self._world
        world.disk.heal()
        world.close()
        world.disk = world.disk.after_power_loss()
        world.stop(is_crash=False, has_lost_power=False)
        self._start()
        world.disk.crash_at(self._random.randint(1, 100))

    def _flip(self) -> None:
        """Change a bit of a segment, silently."""
        world, random = self._world, self._random
        names = [
            name
            for name in world.disk.files()
            if parse_segment_name(name) or journal_number(name) is not None
        ]
        if not names:
            return
        name = random.choice(sorted(names))
        data = bytearray(world.disk.files()[name])
        if data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            self._story(f"a bit of {name} is flipped")
            world.disk.write_file(name, bytes(data))
            world.forgive(name)

    # One step

    def _act(self) -> None:
        random, world = self._random, self._world
        of_journals = self._of_journals.random() if self._topics is _MANY_TOPICS else 1.0
        if of_journals < 0.01:
            self._crash_beginning_journal()
        elif of_journals < 0.03:
            self._read_unwritten()
        elif not world.topics or random.random() < 0.03:
            self._manage()
        else:
            topic = world.topics[random.choice(sorted(world.topics))]
            kind = random.random()
            if self._fails_commits and random.random() < 0.08:
                self._fail_commit()
            elif self._has_faults and random.random() < 0.04:
                self._fail_round(topic)
            elif random.random() < self._tears:
                self._tear_round(topic)
            elif self._flows and random.random() < 0.4 and topic.channels:
                if self._world.retain_bytes == 0 and random.random() < 0.25:
                    self._replace(topic)
                else:
                    self._flow(topic)
            elif kind < 0.35:
                self._publish(topic)
                if self._topics is _MANY_TOPICS and kind < 0.25:
                    for _ in range(random.choice((1, 2, 5, 8))):
                        for other in world.topics.values():
                            if other is not topic:
                                self._publish(other)
                        world.settle(random.choice((0, 1, None)))
            elif kind < 0.8 and topic.channels:
                self._consume(topic, topic.channels[random.choice(sorted(topic.channels))])
            elif kind < 0.88:
                self._story("tick")
                world.tick()
            elif kind < 0.92:
                self._story("sync")
                world.sync()
            elif kind < (0.96 if self._topics is _MANY_TOPICS else 0.94) and self._has_faults:
                if self._topics is _MANY_TOPICS and random.random() < 0.6:
                    self._fail_journal()
                else:
                    self._fail()
            else:
                self._manage()
        if self._is_prompt:
            world.settle()
        else:
            world.settle(random.choice((0, 0, 1, 2, 5)))
        for topic in world.topics.values():
            world.check(topic)
        if world.durability == "interval":
            world.note_synced()
        if not world.jobs and not world.disk.crashed:
            # Nothing to do for the disk: a crash can come here as well.
            with suppress(OSError):
                world.disk.free_bytes()

    def _fail(self) -> None:
        random, disk = self._random, self._world.disk
        number = random.choice((errno.EIO, errno.ENOSPC))
        kind = random.choice(("write", "sync", "sync_folder", "create", "unlink", "any", "read"))
        only = None if kind == "any" else [kind]
        if random.random() < 0.3:
            disk.heal()
        times = random.choice((1, 1, 2, 3))
        at = random.randint(1, 6)
        self._story(f"the disk will fail {times} times: {kind} from {at} on")
        for place in range(times):
            disk.fail(number, at + place, only=only)

    def _fail_commit(self) -> None:
        """Let the next commits fail, perhaps those of something new that gets a message at once."""
        random, world = self._random, self._world
        times = random.choice((1, 1, 2, 3))
        self._story(f"{times} commits will fail")
        for place in range(times):
            world.disk.fail(errno.EIO, 1 + place, only=["sync"], name=WAL_FILE)
        kind = random.random()
        if kind < 0.6:
            if kind < 0.4:
                self._flow(random.choice(list(world.topics.values())))
                self._story("tick, and then a crash")
                world.tick()
                world.disk.crash_at(random.randint(2, 15))
                world.settle()
            return
        name = random.choice(self._topics)
        if name not in world.topics:
            self._story(f"make {name}")
            world.make_topic(name)
        topic = world.topics[name]
        channel_name = random.choice(_CHANNELS)
        if channel_name not in topic.channels:
            self._story(f"make {name}:{channel_name}")
            world.make_channel(topic, channel_name)
        self._publish(topic)

    def _fail_round(self, topic: LiveTopic) -> None:
        """Let a round fail that comes behind others, and crash while that is made good."""
        random, world = self._random, self._world
        for _ in range(random.choice((0, 1, 2))):
            self._publish(topic)
            world.settle()
        kind = random.choice(("write", "sync"))
        self._story(f"a round will fail: {kind}")
        world.disk.fail(errno.EIO, only=[kind], name="*.log.*")
        if random.random() < 0.3:
            world.disk.fail(errno.EIO, 2, only=["write"], name="*.log.*")
        fate = random.random()
        if fate < 0.3:
            self._story("and then a crash")
            world.disk.crash_at(random.randint(2, 12))
        elif fate < 0.6:
            self._crash_naming([False, True], random.choice((1, 1, 2)))
        self._publish(topic)
        world.sync()
        world.settle()
        if fate < 0.6:
            world.disk.crash_at(random.randint(1, 40))
        elif fate < 0.8:
            # What was written again is looked at, and what is finished goes.
            self._flow(topic)
            self._story("tick, and then a crash")
            world.tick()
            world.settle()
            world.disk.crash_at(random.randint(1, 8))

    def _tear_round(self, topic: LiveTopic) -> None:
        """Crash while a round of several records is written."""
        random, world = self._random, self._world
        self._story("a round will be torn")
        for _ in range(random.choice((2, 3, 5))):
            world.publish(topic, 1, random.choice((0, 500, 3_000)), with_key=random.random() < 0.5)
        count = random.choice((1, 2, 2, 3))  # the first record goes alone
        world.disk.crash_at(count, random.choice((("write",), ("sync",))), "*.log.*")
        self._fates = [random.random() < 0.7]
        world.settle()
        world.disk.crash_at(random.randint(1, 40))

    def _crash_naming(self, fates: list[bool], count: int) -> None:
        """Crash where a file gets its name or loses it, about at the ``count``-th time.

        ``fates``: of that crash and of those that follow it soon, whether the power fails.
        """
        random, world = self._random, self._world
        self._story("a name will be the last that changes")
        kind = random.random()
        if kind < 0.4:
            world.disk.crash_at(count, ("unlink",), "*.log.*.dat")
        elif kind < 0.7:
            world.disk.crash_at(count, ("sync_folder",))
        else:
            count = random.randint(count, 3 * count)
            world.disk.crash_at(count, ("rename", "unlink", "sync_folder"))
        self._fates = fates

    def _fail_journal(self) -> None:
        """Let an operation of the next round of many topics fail."""
        random, world = self._random, self._world
        number = random.choice((errno.EIO, errno.ENOSPC))
        kind = random.choice(("write", "sync", "rename"))
        self._story(f"a journal will fail: {kind}")
        world.disk.fail(number, only=[kind], name="trionsq.journal*")
        if random.random() < 0.4:
            world.disk.fail(number, random.randint(1, 3), only=["sync"], name="*.log.*")
        for topic in world.topics.values():
            self._publish(topic)

    def _crash_beginning_journal(self) -> None:
        """Cut the power when a journal gets its header, perhaps in the place of an old one."""
        world = self._world
        self._story("a journal will be the last that begins")
        world.disk.crash_at(self._of_journals.choice((1, 2, 3, 5)), ("sync",), SPARE_JOURNAL)
        self._fates = [True]
        for _ in range(20):
            for topic in world.topics.values():
                self._publish(topic)
            world.settle()
        self._fates = []
        world.disk.crash_at(self._random.randint(1, 40))

    def _read_unwritten(self) -> None:
        """Let channels read what a journal alone has, and no cache."""
        world = self._world
        for topic in world.topics.values():
            self._publish(topic)
        world.settle()
        self._story("nothing is cached")
        for topic in world.topics.values():
            topic.log.cache.clear()
            self._finish_most(topic, 0.5)

    def _publish(self, topic: LiveTopic) -> None:
        random = self._random
        if topic.account.keyed and not self._flips and random.random() < 0.2:
            keyed = random.choice(topic.account.keyed[-8:])
            self._story(f"publish {keyed.key.text!r} in {topic.account.name} again")
            self._world.repeat(topic, keyed)
            return
        count = random.choice((1, 1, 1, 2, 5))
        defer_ms = random.choice((0, 0, 0, 0, 500, 3_000, 30_000))
        with_key = random.random() < 0.3
        self._story(f"publish {count} in {topic.account.name}, delay {defer_ms}, key: {with_key}")
        self._world.publish(topic, count, defer_ms, with_key=with_key)

    def _flow(self, topic: LiveTopic) -> None:
        """Bring some messages to all channels, and finish nearly all that they have."""
        random, world = self._random, self._world
        self._publish(topic)
        world.settle()
        self._finish_most(topic, 0.95)
        if random.random() < 0.5:
            self._story("tick")
            world.tick()
            if random.random() < 0.4:
                self._crash_removing()
            elif random.random() < 0.2:
                self._story("and then a crash")
                world.disk.crash_at(random.randint(2, 15))
                world.settle()

    def _finish_most(self, topic: LiveTopic, share: float, rdy: int = 20) -> None:
        """Let all channels get what they may, and finish about so much of it."""
        random, world = self._random, self._world
        for channel in topic.channels.values():
            if not channel.consumers:
                world.subscribe(channel)
            consumer = random.choice(channel.consumers)
            channel.core.set_ready(consumer.subscription, rdy, world.now_s)
            world.settle()
            held = consumer.subscription.in_flight
            ids = [id_ for id_ in held if random.random() < share]
            self._story(f"FIN of {len(ids)} of {len(held)} in {channel.account.name}")
            world.finish(channel, consumer, ids)

    def _replace(self, topic: LiveTopic) -> None:
        """Have old segments give way, of which little is needed; perhaps something intervenes."""
        random, world = self._random, self._world
        fate = random.random()
        fails_commits = self._fails_commits and fate > 0.5
        if fails_commits:
            world.disk.crash_at(1 << 60)  # it would mostly come too early
        for _ in range(random.choice((1, 1, 2))):
            many = random.choice((5, 10, 20))
            self._story(f"publish {many} times 5 in {topic.account.name}")
            for _ in range(many):
                world.publish(topic, 5, 0)
                world.settle()
            # The state has to know first that they are open.
            self._finish_most(topic, random.choice((0.0, 0.5)), 200)
            for _ in range(PATIENCE):
                self._story("tick")
                world.tick()
                world.settle()
            self._finish_most(topic, 0.97, 200)
        if fate < 0.2:
            self._crash_naming([random.random() < 0.8], random.randint(1, 6))
        elif fails_commits:
            self._story("commits will fail")
            world.disk.fail(errno.EIO, forever=True, only=["sync"], name=WAL_FILE)
            self._crash_naming([random.random() < 0.3], 1)
        # A tick looks at one log, or goes on with it.
        for _ in range(2 * len(world.topics) + 2 * fails_commits):
            self._story("tick")
            world.tick()
            if 0.2 < fate < 0.45:
                self._crash_removing()
            elif 0.45 < fate < 0.7 and not fails_commits:
                self._seek_beside(topic)
            world.settle()
        # Before a commit succeeds.
        world.disk.crash_at(1 if fails_commits else random.randint(1, 40))

    def _crash_removing(self) -> None:
        """Cut the power when a remainder has its name, and the segments before it are removed."""
        world = self._world
        for _ in range(20):
            before = [len(topic.log.segments) for topic in world.topics.values()]
            world.settle(1)
            after = [len(topic.log.segments) for topic in world.topics.values()]
            if any(map(lt, after, before)):
                self._story("segments will be removed")
                world.disk.crash_at(self._random.choice((1, 2, 2)), ("unlink", "sync_folder"))
                self._fates = [True]
                break

    def _clear(self) -> None:
        """Finish nearly all of all topics, until the power fails beside a remainder."""
        random, world = self._random, self._world
        self._story("nearly all is finished")
        for _ in range(8):
            for topic in world.topics.values():
                self._finish_most(topic, random.choice((0.5, 0.9)), 200)
            self._story("tick")
            world.tick()
            self._crash_removing()
            world.settle()
            world.pass_time(random.choice((0.5, 10.0)))
        world.disk.crash_at(random.randint(1, 8))
        world.tick()
        world.settle()

    def _seek_beside(self, topic: LiveTopic) -> None:
        """Let a channel go back, and get all that again, while a remainder is being made."""
        random, world = self._random, self._world
        world.settle(random.choice((0, 1, 1, 2)))
        channel = random.choice(list(topic.channels.values()))
        frontier = channel.cursor.frontier
        sequence = min(first_kept(topic.log), frontier)
        if random.random() < 0.5:  # these come at once: no job has to read them
            sequence = max(sequence, min(topic.log.cache.first_from(frontier), frontier))
        self._story(f"seek {channel.account.name} to {sequence}")
        world.seek_channel(channel, sequence)
        for consumer in channel.consumers:
            channel.core.set_ready(consumer.subscription, 200, world.now_s)
        world.settle(random.choice((0, 0, 1)))

    def _consume(self, topic: LiveTopic, channel: LiveChannel) -> None:
        random, world = self._random, self._world
        kind = random.random()
        held = channel.held()
        name = f"{topic.account.name}:{channel.account.name}"
        if not channel.consumers or kind < 0.05:
            rate = 50 if random.random() < 0.02 else 0
            self._story(f"a consumer of {name}, sampling {rate}")
            world.subscribe(channel, rate)
        elif kind < 0.35:
            consumer = random.choice(channel.consumers)
            rdy = random.choice((0, 1, 2, 5, 20))
            self._story(f"RDY {rdy} in {name}")
            channel.core.set_ready(consumer.subscription, rdy, world.now_s)
        elif kind < 0.75 and held:
            consumer = random.choice(held)[0]
            ids = list(consumer.subscription.in_flight)
            ids = random.sample(ids, random.randint(1, len(ids)))
            self._story(f"FIN of {[channel.by_id[id_].body[:6] for id_ in ids]} in {name}")
            world.finish(channel, consumer, ids)
        elif kind < 0.88 and held:
            consumer, id_ = random.choice(held)
            delay_ms = random.choice((0, 0, 300, 5_000))
            self._story(f"REQ of {channel.by_id[id_].body[:6]!r} in {name}, delay {delay_ms}")
            world.requeue(channel, consumer, id_, delay_ms)
        elif kind < 0.97:
            seconds = random.choice((0.001, 0.5, 2.0, MSG_TIMEOUT_S + 1))
            self._story(f"{seconds} seconds")
            world.pass_time(seconds)
        else:
            consumer = random.choice(channel.consumers)
            self._story(f"a consumer of {name} leaves")
            world.disconnect(channel, consumer, requeue_now=random.random() < 0.5)

    def _manage(self) -> None:
        random, world = self._random, self._world
        name = random.choice(self._topics)
        topic = world.topics.get(name)
        kind = random.random()
        if topic is None:
            self._story(f"make {name}")
            world.make_topic(name)
            return
        channel_name = random.choice(_CHANNELS)
        channel = topic.channels.get(channel_name)
        if kind < 0.12:
            self._story(f"delete {name}")
            world.delete_topic(name)
            if random.random() < 0.3:
                self._crash_naming([False, True], random.choice((1, 1, 2)))
        elif kind < 0.25:
            paused = not topic.core.paused
            self._story(f"pause {name}: {paused}")
            world.pause_topic(topic, paused=paused)
        elif kind < 0.3:
            self._story(f"empty {name}")
            world.empty_topic(topic)
        elif channel is None:
            log, begin_at = topic.log, None
            if random.random() < 0.4:
                end = log.frontier if topic.channels else log.safe_end
                begin_at = random.randint(min(first_kept(log), end), end)
            self._story(f"make {name}:{channel_name}, from {begin_at}")
            world.make_channel(topic, channel_name, begin_at)
        elif kind < 0.5:
            self._story(f"delete {name}:{channel_name}")
            world.delete_channel(topic, channel_name)
        elif kind < 0.75:
            paused = not channel.core.paused
            self._story(f"pause {name}:{channel_name}: {paused}")
            world.pause_channel(channel, paused=paused)
        elif kind < 0.85:
            self._story(f"empty {name}:{channel_name}")
            world.empty_channel(channel)
        else:
            frontier = channel.cursor.frontier
            sequence = random.randint(min(first_kept(topic.log), frontier), frontier)
            self._story(f"seek {name}:{channel_name} to {sequence}")
            world.seek_channel(channel, sequence)

    # The end

    def _drain(self) -> None:
        """Consume all: each message that is owed must come."""
        self._story("the end")
        world = self._world
        world.disk.heal()
        world.settle()
        for topic in list(world.topics.values()):
            if topic.core.paused:
                world.pause_topic(topic, paused=False)
            if not topic.channels:
                world.make_channel(topic, "last")
            for channel in topic.channels.values():
                if channel.core.paused:
                    world.pause_channel(channel, paused=False)
                world.subscribe(channel)
                for consumer in channel.consumers:
                    consumer.subscription.sample_rate = 0
                    channel.core.set_ready(consumer.subscription, 10, world.now_s)
        for _ in range(_MAX_DRAIN):
            world.tick()
            world.settle()
            is_idle = True
            for topic in world.topics.values():
                for channel in topic.channels.values():
                    for consumer in list(channel.consumers):
                        if ids := list(consumer.subscription.in_flight):
                            world.finish(channel, consumer, ids)
                            is_idle = False
                    is_idle &= not channel.core.depth and not channel.core.deferred_count
                is_idle &= not topic.core.depth
            if is_idle:
                break
            world.pass_time(10.0)
        world.settle()
        for topic in world.topics.values():
            world.check(topic)
            left = f"{topic.core.depth} messages stay in {topic.account.name}"
            if topic.core.depth:
                raise Broken(left)
            for channel in topic.channels.values():
                if owed := channel.account.owed():
                    raise Broken(f"{channel!r} has lost {[one.body[:6] for one in owed]}")
                if channel.core.depth or channel.core.deferred_count:
                    raise Broken(f"{channel.core!r} does not come to its end")
        world.tick()
        world.settle()
        self._check_files()

    def _check_files(self) -> None:
        world = self._world
        if world.is_damaged or self._has_faults or self._fails_commits:
            return
        named = {segment.name for topic in world.topics.values() for segment in topic.log.segments}
        for name in world.disk.files():
            if ".log." not in name or name in named:
                continue
            parsed = parse_segment_name(name)
            log = world.node.logs.get(parsed[1]) if parsed else None
            # A segment without a message stays until one takes its name.
            if parsed is None or log is None or parsed[2] != log.end:
                raise Broken(f"nobody names the file {name}")
        with suppress(FileNotFoundError):
            for name in named - set(world.disk.files()):
                raise Broken(f"the file {name} is gone")


def run(seed: int, open_state: OpenState = MemoryState, lives: int = 8) -> Points:
    """Run a history.

    Raises:
        Broken: a promise was broken; notes say what was done.
    """
    history = History(seed, open_state, lives)
    try:
        return history.run()
    except BaseException as error:
        error.add_note("\n".join(history.story[-60:]))
        raise
