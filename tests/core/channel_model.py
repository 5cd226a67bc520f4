"""A channel as a dictionary: where each message is, and what may happen to it.

`Model` is told what is about to happen, then the real channel is; the deliveries that this brings
about are noted by `Peer` as they are offered. `Model.check` compares everything.

All times are whole quarters of a second, so that they are exact as floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.core.helpers import WALL_NS, MemoryBackend, body_of, contents, wall_ns
from trionsq.core.channel import ChannelState
from trionsq.core.subscription import Delivery, Subscription

SIZES = (16, 48, 16, 32)


@dataclass
class Message:
    """One message that is still somewhere: exactly one of the three places holds."""

    body: bytes
    attempts: int = 0
    queued: bool = False
    due_s: float | None = None
    # In the backend, which keeps the due time; queued as well.
    stored_due_s: float | None = None
    owner: Peer | None = None
    delivery: Delivery | None = None
    started_s: float = 0.0
    deadline_s: float = 0.0

    def queue(self) -> None:
        self.queued, self.due_s, self.owner, self.delivery = True, None, None, None
        self.stored_due_s = None

    def defer(self, due_s: float) -> None:
        self.queue()
        self.queued, self.due_s = False, due_s

    def fly(self, owner: Peer, delivery: Delivery, now_s: float) -> None:
        assert self.queued
        assert self.stored_due_s is None or self.stored_due_s <= now_s, "early"
        self.queue()
        self.queued, self.owner, self.delivery = False, owner, delivery
        self.attempts += 1
        self.started_s, self.deadline_s = now_s, now_s + owner.consumer.msg_timeout_s


class Peer:
    """A client: takes deliveries while it has room, writes them in order."""

    def __init__(self, model: Model, msg_timeout_s: float, sample_rate: int) -> None:
        self.model = model
        self.full = False
        self.unwritten: list[Delivery] = []
        self.consumer = Subscription(self._offer, msg_timeout_s, sample_rate)

    def _offer(self, delivery: Delivery) -> bool:
        model, consumer = self.model, self.consumer
        assert not model.channel.paused
        assert not consumer.gone
        assert len(consumer.in_flight) + len(delivery.ids) <= consumer.rdy, "more than RDY"
        if self.full:
            model.counts["refused offers"] += 1
            return False
        for id_ in delivery.ids:
            model.messages[id_].fly(self, delivery, model.now_s)
            assert delivery.attempts == model.messages[id_].attempts
        model.counts["deliveries"] += 1
        self.unwritten.append(delivery)
        return True

    def write(self) -> None:
        """What the pump does with the next delivery."""
        delivery = self.unwritten.pop(0)
        present = self.consumer.present_ids(delivery)
        delivery.written = True
        for id_, body, attempts in contents(delivery.extract(present)) if present else []:
            message = self.model.messages[id_]
            assert (body, attempts) == (message.body, message.attempts)

    @property
    def credit(self) -> bool:
        consumer = self.consumer
        return consumer.rdy > len(consumer.in_flight) and not consumer.blocked


class Model:
    """The channel, its backend and its task, beside what they should hold."""

    def __init__(self, mem_queue_size: int, seed: int) -> None:
        self.backend = MemoryBackend()
        self.mem_queue_size = mem_queue_size
        self.random = Random(seed)
        self.channel = self._new_channel()
        self.now_s = 0.0
        self.messages: dict[bytes, Message] = {}
        self.counts: Counter[str] = Counter()
        self.counts_at_start: Counter[str] = Counter()
        self.loaded = 0
        self.peers: list[Peer] = []
        self.task_runs = False

    @property
    def now_ns(self) -> int:
        return wall_ns(self.now_s)

    def _new_channel(self) -> ChannelState:
        channel = ChannelState("c", self.mem_queue_size, self.backend, self.random)
        channel.wake = self._wake
        return channel

    def restart(self) -> None:
        """What was saved is all there is; the channel knows nothing but its backend."""
        for message in self.messages.values():
            if message.due_s is not None:
                message.queued, message.stored_due_s, message.due_s = True, message.due_s, None
                self.counts["saved deferred"] += 1
            elif message.owner is not None:
                message.queue()
                self.counts["saved in flight"] += 1
        self.peers.clear()
        self.channel = self._new_channel()
        self.counts_at_start = self.counts.copy()
        self.loaded = len(self.messages)
        self.task_runs = False

    def _note_deferrals_read(self) -> None:
        """The channel may have read deferred messages, as it serves clients."""
        awake = {segment.ids()[0] for _, segment in self.channel.deferred}
        asleep = {id_ for one in self.backend.segments if one.batch.defer_ms for id_ in one.ids()}
        for id_, message in self.messages.items():
            if message.stored_due_s is None:
                continue
            if id_ in awake:
                message.defer(message.stored_due_s)
                self.counts["read deferred"] += 1
            elif id_ not in asleep:
                assert message.stored_due_s <= self.now_s, "early"
                message.queue()

    def _wake(self) -> None:
        self.counts["woken again"] += self.task_runs
        self.task_runs = True

    def run_task(self) -> None:
        """The channel task's turn."""
        self.task_runs = False
        self.channel.dispatch(self.now_s)

    def accept(self, ids: list[bytes], delay_s: float) -> None:
        for index, id_ in enumerate(ids):
            message = Message(body_of(id_, SIZES[index % len(SIZES)]))
            if delay_s:
                message.defer(self.now_s + delay_s)
            else:
                message.queue()
            self.messages[id_] = message
        self.counts["published"] += len(ids)

    def in_flight_at(self, peer: Peer) -> list[bytes]:
        return [id_ for id_, message in self.messages.items() if message.owner is peer]

    def finish(self, peer: Peer, ids: list[bytes]) -> list[bytes]:
        """The ids whose FIN must fail."""
        failed = []
        for id_ in ids:
            if id_ in self.messages and self.messages[id_].owner is peer:
                del self.messages[id_]
                self.counts["finished"] += 1
            else:
                failed.append(id_)
        return failed

    def leave(self, peer: Peer, requeue_now: bool) -> None:
        for id_ in self.in_flight_at(peer):
            message = self.messages[id_]
            if message.delivery is not None and message.delivery in peer.unwritten:
                message.queue()
                message.attempts -= 1
                self.counts["unwritten put back"] += 1
            elif requeue_now:
                message.queue()
        self.peers.remove(peer)

    def touch(self, id_: bytes, max_msg_timeout_s: float) -> None:
        message = self.messages[id_]
        assert message.owner is not None
        latest_s = message.started_s + max_msg_timeout_s
        deadline_s = self.now_s + message.owner.consumer.msg_timeout_s
        gains_nothing = latest_s < deadline_s and message.deadline_s == latest_s
        deadline_s = min(deadline_s, latest_s)
        if not gains_nothing:
            # Its deadline is its own from now on; the pump writes it all the same.
            message.delivery = None
        message.deadline_s = deadline_s

    def scan(self) -> None:
        for message in self.messages.values():
            if message.owner is not None and message.deadline_s <= self.now_s:
                message.queue()
                self.counts["timeouts"] += 1
            elif message.due_s is not None and message.due_s <= self.now_s:
                message.queue()
                self.counts["came due"] += 1

    def begin_empty(self) -> Iterator[None]:
        """As the broker does it."""
        self.counts["emptied"] += len(self.messages)
        return self.channel.empty()

    def end_empty(self) -> None:
        """It is done: nothing is left."""
        self.messages.clear()

    # Comparison

    def check(self) -> None:
        assert self.channel.check() is None
        self._note_deferrals_read()
        self._check_queued()
        self._check_in_flight()
        self._check_deferred()
        self._check_counts()
        self._check_progress()

    def _check_queued(self) -> None:
        parts = (self.channel.store.memory._segments, self.backend.segments)
        found = [one for part in parts for segment in part for one in contents(segment)]
        queued = {id_: message for id_, message in self.messages.items() if message.queued}
        ids = [id_ for id_, _, _ in found]
        assert len(set(ids)) == len(ids), "a message is queued twice"
        sampled = queued.keys() - set(ids)
        self.counts["sampled"] += len(sampled)
        assert self.channel.dropped["sampled"] == self._since_start("sampled")
        for id_ in sampled:
            del queued[id_], self.messages[id_]
        assert sorted(found) == sorted((i, m.body, m.attempts) for i, m in queued.items())
        assert self.channel.depth == len(queued)

    def _check_in_flight(self) -> None:
        consumers = [*self.channel.in_flight.subscriptions, *self.channel.in_flight._disconnected]
        flying = {i: m for i, m in self.messages.items() if m.owner is not None}
        for consumer in consumers:
            for id_, delivery in consumer.in_flight.items():
                message = flying.pop(id_)
                assert message.owner is not None
                assert message.owner.consumer is consumer
                assert delivery.deadline_s == message.deadline_s
                one = contents(delivery.extract([id_]))
                assert one == [(id_, message.body, message.attempts)]
        assert not flying

    def _check_deferred(self) -> None:
        found = sorted((due_ns, *contents(segment)[0]) for due_ns, segment in self.channel.deferred)
        assert found == sorted(
            (WALL_NS + int(message.due_s * 10**9), id_, message.body, message.attempts)
            for id_, message in self.messages.items()
            if message.due_s is not None
        )

    def _check_counts(self) -> None:
        channel, count = self.channel, self._since_start
        assert channel.message_count == count("published")
        assert channel.finish_count == count("finished")
        assert channel.requeue_count == count("requeued")
        assert channel.timeout_count == count("timeouts")
        assert channel.dropped["emptied"] == count("emptied")
        assert channel.message_count + self.loaded == (
            channel.finish_count
            + channel.depth
            + channel.in_flight_count
            + channel.deferred_count
            + channel.dropped.total()
        )

    def _since_start(self, what: str) -> int:
        return self.counts[what] - self.counts_at_start[what]

    def _check_progress(self) -> None:
        channel = self.channel
        waiting = [one for one in channel.waiting if not one.gone]
        assert 2 * len(waiting) >= len(channel.waiting), "who is gone is not forgotten"
        assert len(set(waiting)) == len(waiting)
        assert set(waiting) == {one for one in channel.in_flight.subscriptions if one.waiting}
        readable = channel.store.memory.depth or (
            channel.store.backend.depth and not self.backend.reads_nothing
        )
        if readable and not channel.paused and not self.task_runs:
            assert not [peer for peer in self.peers if peer.credit], "a client starves"
        for message in self.messages.values():
            if message.due_s is not None:
                assert channel.wake_at_s <= max(message.due_s, self.now_s)
            elif message.owner is not None:
                assert channel.wake_at_s <= max(message.deadline_s, self.now_s)
