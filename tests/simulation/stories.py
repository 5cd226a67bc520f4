"""What the ledger tells about single messages: finished, not again too early, in order of ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.promises.checks import is_settled
from tests.simulation.plan import MOODY
from trionsq.durations import SECOND_NS

if TYPE_CHECKING:
    from tests.simulation.day import Day

__all__ = ["broken_stories"]

_TOLERANCE_S: Final = 0.1
# Faults during which nsqd and its clients hear each other, and nsqd goes on.
_UNHEARD: Final = {
    "disk full", "disk write error", "disk sync error", "disk slow", "clock jump",
    "pause topic", "pause channel",
}  # fmt: skip
_DISCARDS: Final = {"empty channel", "delete channel"}
# What keeps a consumer from reading at once what nsqd sends, or loses its connection.
_LATE_READING: Final = {"slow", "leave", "CLS", "half close"}
# So many messages fit in a socket's buffer, and come at once.
_ONE_WINDOW: Final = 20
# The metadata of a new channel are saved within this time.
_SAVED_S: Final = 3.0


def broken_stories(day: Day) -> Iterator[str]:
    """What was broken, in words."""
    yield from _again(day)
    yield from _discarded(day)
    yield from _late(day)
    yield from _ids(day)
    yield from _connections(day)
    yield from _slow(day)


def _is_disturbed(day: Day, until_s: float, *names: str) -> bool:
    return any(
        fault.kind not in _UNHEARD
        and fault.at_s < until_s
        and {fault.target, fault.other} & set(names)
        for fault in day.plan.faults
    )


def _again(day: Day) -> Iterator[str]:
    """A message comes again after its time-out, or its delay, and not after FIN.

    A consumer knows when a message was sent to it if it never has a second one, or never sleeps.
    """
    timeouts_s = {
        nsqd.name: int(nsqd.options["msg_timeout_ns"]) / SECOND_NS for nsqd in day.plan.nsqds
    }
    prompt = {
        consumer.plan.name
        for consumer in day.consumers
        if not consumer.plan.habits.keys() & _LATE_READING
        and (
            consumer.plan.max_in_flight == 1
            or (
                "touch" not in consumer.plan.habits
                and consumer.plan.max_in_flight <= _ONE_WINDOW
                and day.plan.buffer_bytes >= 65536
            )
        )
    }
    for (topic, channel), bodies in day.ledger.delivered.items():
        for body, deliveries in bodies.items():
            for last, again in pairwise(deliveries):
                nsqd = last.nsqd
                # Else it may have had the message in its buffer before the other one.
                is_later = again.consumer in prompt or again.attempts > last.attempts
                if (
                    last.consumer not in prompt
                    or not is_later
                    or (nsqd, last.message_id) != (again.nsqd, again.message_id)
                    or _is_disturbed(day, again.at_s, nsqd, last.consumer, again.consumer)
                ):
                    continue
                due_s = max(last.at_s, last.touched_s) + timeouts_s[nsqd]
                where = f"{topic}/{channel} {body[:20]!r}"
                if last.answer == "REQ":
                    due_s = last.requeue_s + 0.999 * last.delay_s
                    if nsqd in day.losses.clocks_jumped:
                        continue
                elif last.answer == "FIN" and last.answered_s < due_s - 0.5:
                    yield f"{where}: delivered again after FIN"
                    continue
                if again.at_s < due_s - _TOLERANCE_S:
                    yield f"{where}: delivered again {due_s - again.at_s:.3f} s too early"


def _discarded(day: Day) -> Iterator[str]:
    """What a channel had when it was emptied or deleted does not come any more."""
    if not {fault.kind for fault in day.plan.faults} <= {*_DISCARDS, "reset"} or any(
        consumer.plan.habits.keys() & {"slow", "touch"}
        for consumer in day.consumers
        if consumer.plan.channel == MOODY
    ):
        return
    for (topic, channel), bodies in day.ledger.delivered.items():
        for body, deliveries in bodies.items() if channel == MOODY else ():
            sent = day.ledger.sent[body]
            for delivery in deliveries:
                for nsqd, discarded_s in day.losses.discards:
                    if (
                        sent.nsqd == delivery.nsqd == nsqd
                        and sent.acked_s < discarded_s - 1.0
                        and delivery.at_s > discarded_s + 1.0
                    ):
                        yield f"{topic}/{channel} {body[:20]!r}: the channel was emptied before"


def _late(day: Day) -> Iterator[str]:
    """A channel that clients made gets all that comes after it, and a kill does not end it."""
    for (topic, channel), bodies in day.ledger.delivered.items():
        if channel != "late":
            continue
        made_s: dict[str, float] = {}
        for deliveries in bodies.values():
            for delivery in deliveries:
                before_s = made_s.get(delivery.nsqd, delivery.at_s)
                made_s[delivery.nsqd] = min(before_s, delivery.at_s)
        for nsqd, since_s in made_s.items():
            if day.losses.may_lose_anything(nsqd) or any(
                fault.kind.startswith("disk") and fault.target == nsqd for fault in day.plan.faults
            ):
                continue
            lost = sum(
                sent.topic == topic
                and sent.nsqd == nsqd
                and sent.sent_s > since_s + _SAVED_S
                and not is_settled(bodies.get(body, []))
                and not day.losses.may_lose_as_late(nsqd, sent.acked_s, sent.acked_s + sent.delay_s)
                for body, sent in day.ledger.sent.items()
            )
            if lost > day.losses.most(nsqd, topic, channel):
                yield f"{topic}/late: {nsqd} lost {lost} messages"


def _ids(day: Day) -> Iterator[str]:
    """Ids rise, over clock jumps and kills; so none is given twice."""
    known: dict[tuple[str, str], list[tuple[float, float, bytes]]] = {}
    for (topic, _), bodies in day.ledger.delivered.items():
        for body, deliveries in bodies.items():
            sent = day.ledger.sent.get(body)
            if sent is not None and sent.nsqd:
                known.setdefault((sent.nsqd, topic), []).append(
                    (sent.sent_s, sent.acked_s, deliveries[0].message_id)
                )
    for (nsqd, topic), messages in known.items():
        if day.losses.may_invent(nsqd):
            continue
        confirmed = sorted((acked_s, id_) for _, acked_s, id_ in messages)
        at, highest = 0, b""
        for sent_s, _, id_ in sorted(messages):
            while at < len(confirmed) and confirmed[at][0] < sent_s:
                highest = max(highest, confirmed[at][1])
                at += 1
            if id_ <= highest:
                yield f"{nsqd} {topic}: the id {id_!r} after {highest!r}"
                break


def _connections(day: Day) -> Iterator[str]:
    """Without a fault no connection is lost."""
    if day.plan.faults:
        return
    for node in [*day.producers, *day.consumers]:
        # A library gives up a connection on which far more than RDY has timed out.
        leaving = _LATE_READING | {"ignore", "touch"}
        leaves = node in day.consumers and node.plan.habits.keys() & leaving
        if node.dials > len(day.nsqds) and not leaves:
            yield f"{node.machine.name} connected {node.dials} times"


def _slow(day: Day) -> Iterator[str]:
    """A message that consumers have room for is delivered at once."""
    if day.plan.faults or day.plan.lookupds:
        return
    for topic, channel in day.ledger.delivered:
        plans = [
            consumer.plan
            for consumer in day.consumers
            if (consumer.plan.topic, consumer.plan.channel) == (topic, channel)
        ]
        room = min(plan.max_in_flight for plan in plans) // len(day.nsqds)
        if not room or any(
            plan.habits or plan.from_s or len(plan.nsqds) < len(day.nsqds) for plan in plans
        ):
            continue
        messages = sum(sent.topic == topic for sent in day.ledger.sent.values())
        most_s = 3.0 + messages / room * (2 * day.plan.latency_s[1] + 0.01)
        for body, deliveries in day.ledger.delivered[topic, channel].items():
            sent = day.ledger.sent[body]
            took_s = deliveries[0].at_s - sent.sent_s - sent.delay_s
            if took_s > most_s:
                yield f"{topic}/{channel} {body[:20]!r}: delivered after {took_s:.1f} s"
