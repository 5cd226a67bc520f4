"""A client's subscription as its channel sees it: RDY, and the deliveries in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import groupby, islice
from operator import itemgetter
from struct import Struct
from typing import Final

from trionsq.core.batch import Column, Segment
from trionsq.core.containers import NEVER

__all__ = ["Delivery", "Subscription"]

_HEADER: Final = Struct(">iiqH")
_SIZE_AND_TYPE: Final = Struct(">ii")
_TIMESTAMP_AND_ATTEMPTS: Final = Struct(">qH")
_ATTEMPTS: Final = Struct(">H")
_FRAME_TYPE: Final = 2
# A frame's size field counts the type, the timestamp, the attempts and the id.
_FRAME_EXTRA: Final = 4 + 8 + 2 + 16
_ATTEMPTS_MASK: Final = 0xFFFF
# Size fields of small bodies come from a table: packing one costs more than looking it up.
_SMALL: Final = 4096
_SIZES: Final = [_SIZE_AND_TYPE.pack(_FRAME_EXTRA + size, _FRAME_TYPE) for size in range(_SMALL)]
# Bodies that are taken back at once: they may have to be written to disk.
_MAX_REMOVE_BYTES: Final = 1024 * 1024
# The oldest messages in flight that one `compact` looks at: more than the RDY that
# --max-rdy-count allows by default.
_MAX_COMPACT_LOOKS: Final = 4096


def _sizes(bodies: Sequence[bytes]) -> list[bytes]:
    """The size and type fields of the frames."""
    sizes = list(map(len, bodies))
    if max(sizes) < _SMALL:
        return list(map(_SIZES.__getitem__, sizes))
    return [_SIZE_AND_TYPE.pack(_FRAME_EXTRA + size, _FRAME_TYPE) for size in sizes]


class Delivery:
    """Consecutive messages in flight at one consumer, with one deadline.

    The in-flight entries of all these messages are this one object.

    Attributes:
        batch, first, last: the messages.
        ids: their ids.
        attempts: deliveries, this one included.
        started_s: monotonic time of the hand-over, in seconds.
        deadline_s: monotonic time at which the messages time out, in seconds.
        written: whether the frames were given to the socket.
        some_gone: whether messages left (by time-out or by emptying) before they were written.
    """

    __slots__ = ("attempts", "batch", "deadline_s", "first", "ids", "last", "some_gone",
                 "started_s", "written")  # fmt: skip

    def __init__(self, segment: Segment, now_s: float, deadline_s: float) -> None:
        self.batch = segment.batch
        self.first = segment.first
        self.last = segment.last
        self.ids = segment.batch.ids.slice(segment.first, segment.last)
        self.attempts = segment.attempts + 1
        self.started_s = now_s
        self.deadline_s = deadline_s
        self.written = False
        self.some_gone = False

    def __repr__(self) -> str:
        return f"<Delivery {self.first}:{self.last} attempts={self.attempts} of {self.batch}>"

    @property
    def nbytes(self) -> int:
        """Size of the bodies; of equal ones exactly, of others their share of the batch."""
        batch = self.batch
        return batch.bodies.nbytes * (self.last - self.first) // batch.count

    def frames(self) -> bytes:
        """The message frames of all messages."""
        ids = self.ids
        bodies = self.batch.bodies
        attempts = self.attempts & _ATTEMPTS_MASK
        size = bodies.size
        if self.batch.stamps is not None:
            return self._stamped_frames(self.batch.stamps, attempts)
        if size:
            header = _HEADER.pack(
                _FRAME_EXTRA + size, _FRAME_TYPE, self.batch.timestamp_ns, attempts
            )
            if len(ids) == 1:
                return header + ids[0] + bodies.body_at(self.first)
            parts = [header] * (3 * len(ids))
            parts[1::3] = ids
            parts[2::3] = bodies.slice(self.first, self.last)
            return b"".join(parts)
        cut = bodies.slice(self.first, self.last)
        parts = [_TIMESTAMP_AND_ATTEMPTS.pack(self.batch.timestamp_ns, attempts)] * (4 * len(ids))
        parts[0::4] = _sizes(cut)
        parts[2::4] = ids
        parts[3::4] = cut
        return b"".join(parts)

    def _stamped_frames(self, stamps: Column, attempts: int) -> bytes:
        cut = self.batch.bodies.slice(self.first, self.last)
        parts = [_ATTEMPTS.pack(attempts)] * (5 * len(cut))
        parts[0::5] = _sizes(cut)
        parts[1::5] = stamps.slice(self.first, self.last)
        parts[3::5] = self.ids
        parts[4::5] = cut
        return b"".join(parts)

    def extract(self, ids: list[bytes]) -> Segment:
        """Copies of the messages with these ids, as a segment that pins nothing of the batch."""
        if len(ids) == 1:
            places = [self.first + self.ids.index(ids[0])]
        else:
            place_of = dict(zip(self.ids, range(self.first, self.last), strict=True))
            places = [place_of[id_] for id_ in ids]
        return Segment(self.batch.extract(places, ids), 0, len(ids), self.attempts)

    def keep_only(self, ids: list[bytes]) -> None:
        """Forget all messages but these, and let go of the batch: the entries stay valid."""
        segment = self.extract(ids)
        self.batch = segment.batch
        self.first, self.last, self.ids = 0, len(ids), ids


class Subscription:
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
        gives_back: whether what is in flight goes back to the queue before its deadline.
        check_s: monotonic time at which the channel looks for time-outs, `NEVER` if it does not.
        epoch: how often the channel had been emptied when this consumer's part in that was done.
        message_count, finish_count, requeue_count: for /stats.
    """

    __slots__ = (
        "_capped",
        "_compacted",
        "blocked",
        "check_s",
        "epoch",
        "finish_count",
        "gives_back",
        "gone",
        "in_flight",
        "message_count",
        "msg_timeout_s",
        "offer",
        "rdy",
        "requeue_count",
        "sample_rate",
        "waiting",
    )  # fmt: skip

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
        self.gives_back = False
        self.check_s = NEVER
        self.epoch = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._capped: list[tuple[float, bytes]] = []
        # What the counters were when all in flight was old and compact, None if it was not.
        self._compacted: tuple[int, int, int, int] | None = None

    def __repr__(self) -> str:
        flags = "".join(
            f" {name}" for name in ("waiting", "blocked", "gone") if getattr(self, name)
        )
        return f"<Subscription rdy={self.rdy} in_flight={len(self.in_flight)}{flags}>"

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

    def remove_expired(self, now_s: float, count_max: int) -> list[Segment]:
        """Take out messages whose deadline has passed, as segments of their own.

        They are ``count_max`` at most, and few if they are large; `next_deadline_s` tells whether
        there are more.
        """
        due: dict[bytes, Delivery] = {}
        nbytes = 0
        for id_, delivery in self.in_flight.items():
            if delivery.deadline_s > now_s or len(due) == count_max or nbytes > _MAX_REMOVE_BYTES:
                break
            due[id_] = delivery
            nbytes += delivery.batch.bodies.nbytes // delivery.batch.count
        capped = self._capped
        for _ in range(count_max - len(due)):
            if not capped or capped[0][0] > now_s:
                break
            id_ = heappop(capped)[1]
            found = self.in_flight.get(id_)
            if found is not None and found.deadline_s <= now_s:
                due[id_] = found
        segments = self.remove_entries(list(due.items()))
        if not self.in_flight:
            capped.clear()
        return segments

    def remove_first(self, count_max: int) -> list[Segment]:
        """Take out the first messages in flight, whatever their deadline."""
        entries: list[tuple[bytes, Delivery]] = []
        nbytes = 0
        for entry in islice(self.in_flight.items(), count_max):
            if nbytes > _MAX_REMOVE_BYTES:
                break
            entries.append(entry)
            nbytes += entry[1].batch.bodies.nbytes // entry[1].batch.count
        return self.remove_entries(entries)

    def remove_unwritten(self, delivery: Delivery) -> list[Segment]:
        """Take out what is left of a delivery that never reached the client: it does not count."""
        present = self.present_ids(delivery)
        if len(present) < len(delivery.ids):
            segments = self.remove_entries([(id_, delivery) for id_ in present])
            for segment in segments:
                segment.attempts -= 1
            return segments
        # All of it: nothing need be copied.
        for id_ in present:
            del self.in_flight[id_]
        return [Segment(delivery.batch, delivery.first, delivery.last, delivery.attempts - 1)]

    def remove_entries(self, entries: list[tuple[bytes, Delivery]]) -> list[Segment]:
        """Take out these in-flight entries, as segments of their own."""
        segments = []
        for delivery, group in groupby(entries, itemgetter(1)):
            ids = [id_ for id_, _ in group]
            for id_ in ids:
                del self.in_flight[id_]
            delivery.some_gone = True
            segments.append(delivery.extract(ids))
        return segments

    def drop_all(self) -> int:
        """Drop everything in flight; the number of messages dropped."""
        for delivery in self.in_flight.values():
            delivery.some_gone = True
        dropped = len(self.in_flight)
        self.in_flight.clear()
        self._capped.clear()
        return dropped

    def present_ids(self, delivery: Delivery) -> list[bytes]:
        """The ids of ``delivery`` that are still in flight by it."""
        get = self.in_flight.get
        return [id_ for id_ in delivery.ids if get(id_) is delivery]

    def compact(self, older_than_s: float) -> int:
        """Copy out what is left of old deliveries that hold less than a quarter of their batch.

        Otherwise a few slow messages would keep whole batches in memory. Returns how many messages
        were looked at: none, if nothing has changed since all of them were.
        """
        counts = (self.message_count, self.finish_count, self.requeue_count, len(self.in_flight))
        if counts == self._compacted:
            return 0
        left: dict[Delivery, list[bytes]] = {}
        looks = 0
        all_is_old = True
        for id_, delivery in islice(self.in_flight.items(), _MAX_COMPACT_LOOKS):
            looks += 1
            if delivery.started_s > older_than_s:
                all_is_old = False
                break
            left.setdefault(delivery, []).append(id_)
        if looks == _MAX_COMPACT_LOOKS:
            # The last one may go on behind what was looked at.
            left.popitem()
            all_is_old = False
        for delivery, ids in left.items():
            if not delivery.written:
                all_is_old = False
            elif len(ids) * 4 < delivery.batch.count:
                delivery.keep_only(ids)
        self._compacted = counts if all_is_old else None
        return looks
