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
# The size field of a frame counts the type, the timestamp, the attempts and the id.
_FRAME_EXTRA: Final = 4 + 8 + 2 + 16
_ATTEMPTS_MASK: Final = 0xFFFF
# Size fields of small bodies come from a table: packing one costs more than looking it up.
_SMALL: Final = 4096
_SIZES: Final = [_SIZE_AND_TYPE.pack(_FRAME_EXTRA + size, _FRAME_TYPE) for size in range(_SMALL)]
# Bodies removed in one call: the messages may have to be written to disk.
_MAX_REMOVE_BYTES: Final = 1024 * 1024
# The oldest messages in flight that one `compact` looks at: more than the RDY that
# --max-rdy-count allows by default.
_MAX_COMPACT_LOOKS: Final = 4096


def _sizes(bodies: Sequence[bytes]) -> list[bytes]:
    """Return the size and type fields of the frames."""
    sizes = list(map(len, bodies))
    if max(sizes) < _SMALL:
        return list(map(_SIZES.__getitem__, sizes))
    return [_SIZE_AND_TYPE.pack(_FRAME_EXTRA + size, _FRAME_TYPE) for size in sizes]


class Delivery:
    """Consecutive messages in flight at one client, with one deadline.

    The in-flight entries of all these messages refer to this one object.

    Attributes:
        batch, first, last: the messages.
        ids: their ids.
        attempts: deliveries, including this one.
        started_s: monotonic time of the delivery, in seconds.
        deadline_s: monotonic time at which the messages time out, in seconds.
        written: whether the frames were written to the socket.
        some_gone: whether some messages timed out, or were dropped, before they were written.
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
        """Size of the bodies: exact if all have one size, else their share of the batch."""
        batch = self.batch
        return batch.bodies.nbytes * (self.last - self.first) // batch.count

    def frames(self) -> bytes:
        """Return the message frames of all messages."""
        ids = self.ids
        bodies = self.batch.bodies
        attempts = self.attempts & _ATTEMPTS_MASK
        if self.batch.stamps is not None:
            return self._stamped_frames(self.batch.stamps, attempts)
        if len(ids) == 1:
            body = bodies.body_at(self.first)
            size, stamp = _FRAME_EXTRA + len(body), self.batch.timestamp_ns
            return _HEADER.pack(size, _FRAME_TYPE, stamp, attempts) + ids[0] + body
        if size := bodies.size:
            header = _HEADER.pack(
                _FRAME_EXTRA + size, _FRAME_TYPE, self.batch.timestamp_ns, attempts
            )
            parts = [header] * (3 * len(ids))
            parts[1::3] = ids
            parts[2::3] = bodies.slice(self.first, self.last)
            return b"".join(parts)
        slices = bodies.slice(self.first, self.last)
        parts = [_TIMESTAMP_AND_ATTEMPTS.pack(self.batch.timestamp_ns, attempts)] * (4 * len(ids))
        parts[0::4] = _sizes(slices)
        parts[2::4] = ids
        parts[3::4] = slices
        return b"".join(parts)

    def _stamped_frames(self, stamps: Column, attempts: int) -> bytes:
        slices = self.batch.bodies.slice(self.first, self.last)
        parts = [_ATTEMPTS.pack(attempts)] * (5 * len(slices))
        parts[0::5] = _sizes(slices)
        parts[1::5] = stamps.slice(self.first, self.last)
        parts[3::5] = self.ids
        parts[4::5] = slices
        return b"".join(parts)

    def extract(self, ids: list[bytes]) -> Segment:
        """Return copies of these messages, as a segment that keeps no memory of the batch."""
        if len(ids) == 1:
            places = [self.first + self.ids.index(ids[0])]
        else:
            place_of = dict(zip(self.ids, range(self.first, self.last), strict=True))
            places = [place_of[id_] for id_ in ids]
        return Segment(self.batch.extract(places, ids), 0, len(ids), self.attempts)

    def keep_only(self, ids: list[bytes]) -> None:
        """Replace the batch by a copy of these messages. In-flight entries stay valid."""
        segment = self.extract(ids)
        self.batch = segment.batch
        self.first, self.last, self.ids = 0, len(ids), ids


class Subscription:
    """One subscription. It outlives its connection while it has messages in flight.

    Attributes:
        offer: hands a delivery to the client; False if the client's queue of deliveries is full.
        in_flight: the delivery of each message in flight, by id. In order of the deadlines, except
            for the few messages whose deadline `touch` limited.
        rdy: the number of messages that the client wants in flight.
        msg_timeout_s: time until a message times out, in seconds.
        sample_rate: percent of the messages that are delivered; 0 is all.
        waiting: whether it is in the channel's line of clients with credit.
        blocked: whether the client refused a delivery; `ChannelDispatch.unblock` ends that.
        gone: whether the connection has ended.
        gives_back: whether messages in flight return to the queue before their deadline.
        check_s: monotonic time at which the channel looks for time-outs, `NEVER` if it does not.
        epoch: how often the channel had been emptied when this consumer's part in that was done.
        client: who it is, as a dead letter names it.
        message_count, finish_count, requeue_count: for /stats.
    """

    __slots__ = (
        "_capped",
        "_compacted",
        "blocked",
        "check_s",
        "client",
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
        self.client = ""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self._capped: list[tuple[float, bytes]] = []
        # The counters when all messages in flight were old and copied out, None if some were not.
        self._compacted: tuple[int, int, int, int] | None = None

    def __repr__(self) -> str:
        flags = "".join(
            f" {name}" for name in ("waiting", "blocked", "gone") if getattr(self, name)
        )
        return f"<Subscription rdy={self.rdy} in_flight={len(self.in_flight)}{flags}>"

    @property
    def credit(self) -> int:
        """How many more messages the client wants; may be negative."""
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
                # The message keeps its place in the order of deadlines, or in the heap.
                return True
            heappush(self._capped, (deadline_s, id_))
        del self.in_flight[id_]
        touched = Delivery(delivery.extract([id_]), delivery.started_s, deadline_s)
        touched.attempts = delivery.attempts
        touched.written = True
        self.in_flight[id_] = touched
        return True

    def next_deadline_s(self) -> float:
        """Return the earliest deadline, infinity if nothing is in flight."""
        for delivery in self.in_flight.values():
            first_s = delivery.deadline_s
            return min(first_s, self._capped[0][0]) if self._capped else first_s
        return float("inf")

    def remove_expired(self, now_s: float, max_count: int) -> list[Segment]:
        """Remove messages whose deadline has passed, and return copies of them as segments.

        They are ``max_count`` at most, and few if they are large; `next_deadline_s` tells whether
        there are more.
        """
        due: dict[bytes, Delivery] = {}
        nbytes = 0
        for id_, delivery in self.in_flight.items():
            if delivery.deadline_s > now_s or len(due) == max_count or nbytes > _MAX_REMOVE_BYTES:
                break
            due[id_] = delivery
            nbytes += delivery.batch.bodies.nbytes // delivery.batch.count
        capped = self._capped
        for _ in range(max_count - len(due)):
            if not capped or capped[0][0] > now_s:
                break
            id_ = heappop(capped)[1]
            capped_delivery = self.in_flight.get(id_)
            if capped_delivery is not None and capped_delivery.deadline_s <= now_s:
                due[id_] = capped_delivery
        segments = self.remove_entries(list(due.items()))
        if not self.in_flight:
            capped.clear()
        return segments

    def remove_first(self, max_count: int) -> list[Segment]:
        """Remove the first messages in flight, whatever their deadline, as `remove_expired`."""
        entries: list[tuple[bytes, Delivery]] = []
        nbytes = 0
        for entry in islice(self.in_flight.items(), max_count):
            if nbytes > _MAX_REMOVE_BYTES:
                break
            entries.append(entry)
            nbytes += entry[1].batch.bodies.nbytes // entry[1].batch.count
        return self.remove_entries(entries)

    def remove_unwritten(self, delivery: Delivery) -> list[Segment]:
        """Remove the messages of a delivery that never reached the client: it does not count."""
        present = self.present_ids(delivery)
        if len(present) < len(delivery.ids):
            segments = self.remove_entries([(id_, delivery) for id_ in present])
            for segment in segments:
                segment.attempts -= 1
            return segments
        # All messages are still there, so nothing has to be copied.
        for id_ in present:
            del self.in_flight[id_]
        return [Segment(delivery.batch, delivery.first, delivery.last, delivery.attempts - 1)]

    def remove_entries(self, entries: list[tuple[bytes, Delivery]]) -> list[Segment]:
        """Remove these in-flight entries, and return copies of the messages as segments."""
        segments = []
        for delivery, group in groupby(entries, itemgetter(1)):
            ids = [id_ for id_, _ in group]
            for id_ in ids:
                del self.in_flight[id_]
            delivery.some_gone = True
            segments.append(delivery.extract(ids))
        return segments

    def drop_all(self) -> int:
        """Drop all messages in flight; returns how many."""
        for delivery in self.in_flight.values():
            delivery.some_gone = True
        dropped = len(self.in_flight)
        self.in_flight.clear()
        self._capped.clear()
        return dropped

    def present_ids(self, delivery: Delivery) -> list[bytes]:
        """Return the ids of ``delivery`` whose in-flight entry is still that delivery."""
        get = self.in_flight.get
        return [id_ for id_ in delivery.ids if get(id_) is delivery]

    def compact(self, older_than_s: float) -> int:
        """Copy the messages of old deliveries that hold less than a quarter of their batch.

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
            # The last delivery may have more messages behind the ones that were looked at.
            left.popitem()
            all_is_old = False
        for delivery, ids in left.items():
            if not delivery.written:
                all_is_old = False
            elif len(ids) * 4 < delivery.batch.count:
                delivery.keep_only(ids)
        self._compacted = counts if all_is_old else None
        return looks
