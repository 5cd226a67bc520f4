"""A consumer as its channel sees it: RDY, in-flight messages, and when they are due."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter

from trionsq.core.batch import Segment
from trionsq.core.delivery import Delivery

__all__ = ["Consumer"]


class Consumer:
    """One subscription. It outlives its connection until the last in-flight message is gone.

    Attributes:
        offer: takes a delivery on behalf of the client, False if its hand-over queue is full.
        in_flight: the delivery of each message in flight, by id. In order of the deadlines, but
            for the few that `touch` capped.
        rdy: the most messages the client wants in flight.
        msg_timeout_s: time until a message times out, in seconds.
        sample_rate: percent of the messages that are delivered; 0 is all.
        waiting: whether the channel has it in its queue of clients with credit.
        blocked: whether its hand-over queue was full; `Channel.unblock` ends that.
        gone: whether the connection has ended.
        message_count, finish_count, requeue_count: for /stats.
    """

    __slots__ = ("_capped", "blocked", "finish_count", "gone", "in_flight", "message_count",
                 "msg_timeout_s", "offer", "rdy", "requeue_count", "sample_rate",
                 "waiting")  # fmt: skip

    def __init__(
        self,
        offer: Callable[[Delivery], bool],
        msg_timeout_s: float = 60.0,
        sample_rate: int = 0,
    ) -> None:
        self.offer = offer
        self.in_flight: dict[bytes, Delivery] = {}
        self.rdy = 0
        self.msg_timeout_s = msg_timeout_s
        self.sample_rate = sample_rate
        self.waiting = False
        self.blocked = False
        self.gone = False
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._capped: list[tuple[float, bytes]] = []

    def __repr__(self) -> str:
        flags = "".join(
            f" {name}" for name in ("waiting", "blocked", "gone") if getattr(self, name)
        )
        return f"<Consumer rdy={self.rdy} in_flight={len(self.in_flight)}{flags}>"

    @property
    def credit(self) -> int:
        """How many messages more the client wants; may be negative."""
        return self.rdy - len(self.in_flight)

    def touch(self, id_: bytes, now_s: float, max_msg_timeout_s: float) -> bool:
        """Give a message more time; False if it is not in flight here.

        The new deadline is a msg_timeout from now, but no later than ``max_msg_timeout_s`` after
        the hand-over. Spec: tcp-protocol, section 11.
        """
        delivery = self.in_flight.get(id_)
        if delivery is None:
            return False
        deadline_s = now_s + self.msg_timeout_s
        latest_s = delivery.started_s + max_msg_timeout_s
        if latest_s < deadline_s:
            deadline_s = latest_s
            if delivery.deadline_s == deadline_s:
                # It keeps its place in the order of deadlines, or in the heap.
                return True
            heappush(self._capped, (deadline_s, id_))
        del self.in_flight[id_]
        alone = Delivery(delivery.extract([id_]), delivery.started_s, deadline_s)
        alone.attempts = delivery.attempts
        alone.written = True
        self.in_flight[id_] = alone
        return True

    def next_deadline_s(self) -> float:
        """The earliest deadline, infinite if nothing is in flight."""
        for delivery in self.in_flight.values():
            first_s = delivery.deadline_s
            return min(first_s, self._capped[0][0]) if self._capped else first_s
        return float("inf")

    def expired(self, now_s: float) -> list[Segment]:
        """Take out the messages whose deadline has passed, as segments of their own."""
        due: dict[bytes, Delivery] = {}
        for id_, delivery in self.in_flight.items():
            if delivery.deadline_s > now_s:
                break
            due[id_] = delivery
        while self._capped and self._capped[0][0] <= now_s:
            id_ = heappop(self._capped)[1]
            capped = self.in_flight.get(id_)
            if capped is not None and capped.deadline_s <= now_s:
                due[id_] = capped
        return self.take(list(due.items()))

    def take(self, entries: list[tuple[bytes, Delivery]]) -> list[Segment]:
        """Take out these in-flight entries, as segments of their own."""
        segments = []
        for delivery, group in groupby(entries, itemgetter(1)):
            ids = [id_ for id_, _ in group]
            for id_ in ids:
                del self.in_flight[id_]
            delivery.some_gone = True
            segments.append(delivery.extract(ids))
        return segments

    def forget(self) -> int:
        """Drop everything in flight; the number of messages dropped."""
        for delivery in self.in_flight.values():
            delivery.some_gone = True
        dropped = len(self.in_flight)
        self.in_flight.clear()
        self._capped.clear()
        return dropped

    def present(self, delivery: Delivery) -> list[bytes]:
        """The ids of ``delivery`` that are still in flight by it."""
        get = self.in_flight.get
        return [id_ for id_ in delivery.ids if get(id_) is delivery]

    def compact(self, older_than_s: float) -> None:
        """Copy out what is left of old deliveries that hold less than a quarter of their batch.

        Otherwise a few slow messages would keep whole batches in memory.
        """
        left: dict[Delivery, list[bytes]] = {}
        for id_, delivery in self.in_flight.items():
            if delivery.started_s > older_than_s:
                break
            left.setdefault(delivery, []).append(id_)
        for delivery, ids in left.items():
            if delivery.written and len(ids) * 4 < delivery.batch.count:
                delivery.keep_only(ids)
