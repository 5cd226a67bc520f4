"""The promises, and whether a ledger shows that they were kept.

Each check knows only what was promised, and yields what was broken, in words. What an unclean end
may cost is in the allowance; what else makes a check meaningless, its caller leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tests.promises.allowance import Allowance
from tests.promises.ledger import Delivery, Ledger, Sent

__all__ = [
    "ChannelKey", "attempts_broken", "came_early", "came_early_again", "finished_again",
    "invented", "is_settled", "lost", "older_than_channel", "repeated", "settled_bodies",
]  # fmt: skip

ChannelKey = tuple[str, str]
"""A topic and a channel."""

_TOLERANCE_S: Final = 0.02
# nsqds' monotonic clocks may be wrong by this share.
_RATE: Final = 0.999


def lost(
    ledger: Ledger, allowance: Allowance, channels: Collection[ChannelKey], counts: Counter[str]
) -> Iterator[str]:
    """Each acknowledged message comes to each of these channels until it is finished there.

    ``channels`` are those that were there before the first message, for the whole time.
    """
    for topic, channel in channels:
        settled = settled_bodies(ledger, (topic, channel))
        missing: dict[str, list[bytes]] = {}
        for body, sent in ledger.sent.items():
            if not sent.nsqd or sent.topic != topic or body in settled:
                continue
            if allowance.may_lose_anything(sent.nsqd):
                counts["lost with leave: damaged"] += 1
            elif allowance.may_lose_as_late(sent.nsqd, sent.acked_s, sent.acked_s + sent.delay_s):
                counts["lost with leave: late"] += 1
            else:
                missing.setdefault(sent.nsqd, []).append(body)
        for nsqd, bodies in missing.items():
            most = allowance.most(nsqd, topic, channel)
            if len(bodies) <= most:
                counts["lost with leave: in memory"] += len(bodies)
            else:
                shown = ", ".join(_describe(ledger, (topic, channel), body) for body in bodies[:3])
                counts["lost"] += len(bodies)
                yield f"{topic}/{channel}: {nsqd} lost {len(bodies)}, {most} allowed: {shown}"


def settled_bodies(ledger: Ledger, channel: ChannelKey) -> set[bytes]:
    """Messages that a consumer of the channel finished, as far as it knows."""
    bodies = ledger.delivered.get(channel, {})
    return {body for body, deliveries in bodies.items() if is_settled(deliveries)}


def is_settled(deliveries: Sequence[Delivery]) -> bool:
    """Whether one of the deliveries was finished."""
    return any(delivery.answer == "FIN" for delivery in deliveries)


def _describe(ledger: Ledger, channel: ChannelKey, body: bytes) -> str:
    sent = ledger.sent[body]
    seen = [
        f"{one.attempts}:{one.answer or 'unanswered'}"
        for one in ledger.delivered.get(channel, {}).get(body, ())
    ]
    return f"{body[:20]!r} (OK at {sent.acked_s:.3f} s, deliveries {seen})"


def invented(ledger: Ledger, allowance: Allowance, counts: Counter[str]) -> Iterator[str]:
    """Nothing comes that nobody published to the topic."""
    for (topic, channel), bodies in ledger.delivered.items():
        for body, deliveries in bodies.items():
            sent = ledger.sent.get(body)
            if sent is None and allowance.may_invent(deliveries[0].nsqd):
                counts["damaged with leave"] += 1
            elif sent is None or sent.topic != topic:
                counts["invented"] += 1
                yield f"{topic}/{channel} {body[:20]!r}: nobody published it"


def came_early(
    ledger: Ledger, allowance: Allowance, tolerance_s: float = _TOLERANCE_S
) -> Iterator[str]:
    """A deferred message does not come before its time."""
    # After a jump of the clock, or if the file of due times could not be read, nobody knows better.
    unknowing = allowance.clocks_jumped | allowance.damaged
    for where, sent, deliveries in _published(ledger):
        first = min(deliveries, key=lambda delivery: delivery.at_s)
        due_s = sent.sent_s + sent.delay_s * _RATE - tolerance_s
        # Without an OK it was stored when nobody knows.
        stored_s = sent.acked_s if sent.nsqd else sent.sent_s
        if first.at_s >= due_s or first.nsqd in unknowing:
            continue
        if not allowance.may_forget_delay(first.nsqd, stored_s):
            yield f"{where}: delivered {due_s - first.at_s:.3f} s too early"


def came_early_again(
    ledger: Ledger, allowance: Allowance, tolerance_s: float = _TOLERANCE_S
) -> Iterator[str]:
    """A message that was requeued, which nsqd confirmed, does not come again before its time.

    A killed nsqd may deliver it again at once.
    """
    unknowing = allowance.clocks_jumped | allowance.damaged | allowance.killed
    for where, _, deliveries in _published(ledger):
        for message in _by_message(deliveries):
            for one in message:
                if one.answer != "REQ" or not one.taken_s or one.nsqd in unknowing:
                    continue
                due_s = one.requeue_s + one.delay_s * _RATE - tolerance_s
                for other in message:
                    if one.attempts < other.attempts and one.taken_s < other.at_s < due_s:
                        yield f"{where}: requeued, and {due_s - other.at_s:.3f} s too early"


def attempts_broken(
    ledger: Ledger,
    allowance: Allowance,
    exact: Collection[ChannelKey] = (),
    turns_s: Sequence[float] = (),
    *,
    in_order: bool = False,
) -> Iterator[str]:
    """Each delivery of a message by an nsqd has another number of attempts, from 1 on.

    Args:
        exact: channels whose consumers see every delivery: no number may be left out.
        turns_s: times of restarts; what comes after one has higher numbers than before.
        in_order: each consumer is one connection, and deliveries are in the order of receipt; so
            its numbers rise.
    """
    for channel, bodies in ledger.delivered.items():
        for body, deliveries in bodies.items():
            if body not in ledger.sent:
                continue
            where = f"{'/'.join(channel)} {body[:20]!r}"
            for message in _by_message(deliveries):
                numbers = [delivery.attempts for delivery in message]
                if min(numbers) < 1:
                    yield f"{where}: attempts {numbers}"
                nsqd = message[0].nsqd
                if nsqd in allowance.killed or allowance.may_lose_anything(nsqd):
                    continue
                if len(set(numbers)) < len(numbers):
                    yield f"{where}: attempts {numbers} repeat"
                elif channel in exact and sorted(numbers) != list(range(1, len(numbers) + 1)):
                    yield f"{where}: attempts {numbers} without a fault"
                elif any(_falls(message, turn_s) for turn_s in turns_s):
                    yield f"{where}: attempts {numbers} fall over a restart"
                elif in_order and not _rises_for_each(message):
                    yield f"{where}: attempts {numbers} fall on one connection"


def _falls(message: Sequence[Delivery], turn_s: float) -> bool:
    before = [one.attempts for one in message if one.at_s < turn_s]
    after = [one.attempts for one in message if one.at_s >= turn_s]
    return bool(before and after) and max(before) > min(after)


def _rises_for_each(message: Sequence[Delivery]) -> bool:
    newest: dict[str, int] = {}
    for one in message:
        if newest.get(one.consumer, 0) >= one.attempts:
            return False
        newest[one.consumer] = one.attempts
    return True


def finished_again(ledger: Ledger, allowance: Allowance) -> Iterator[str]:
    """A message whose FIN nsqd confirmed does not come again; but after a kill it may."""
    for where, _, deliveries in _published(ledger):
        if len(deliveries) == 1:
            continue
        for message in _by_message(deliveries):
            for one in message:
                if one.answer != "FIN" or not one.taken_s or one.nsqd in allowance.killed:
                    continue
                late = [other.attempts for other in message if other.at_s > one.taken_s]
                if any(attempts > one.attempts for attempts in late):
                    yield f"{where}: finished at {one.taken_s:.3f} s, came again: attempts {late}"


def older_than_channel(
    ledger: Ledger, made_s: Mapping[ChannelKey, float], slack_s: float = 0.0
) -> Iterator[str]:
    """A channel gets no message that was acknowledged, and due, before it was made.

    Only of topics that kept nothing back then: what waits at the topic is for all channels.
    """
    for channel, begin_s in made_s.items():
        for body in ledger.delivered.get(channel, ()):
            sent = ledger.sent.get(body)
            if sent is None or not sent.nsqd:
                continue
            if sent.acked_s + sent.delay_s < begin_s - slack_s:
                yield f"{'/'.join(channel)} {body[:20]!r}: older than its channel"


def repeated(ledger: Ledger, channels: Collection[ChannelKey]) -> Iterator[str]:
    """Where nothing goes wrong, and consumers finish at once, each message comes once."""
    for channel in channels:
        for body, deliveries in ledger.delivered.get(channel, {}).items():
            if len(deliveries) > 1:
                yield f"{'/'.join(channel)} {body[:20]!r}: {len(deliveries)} deliveries"


def _published(ledger: Ledger) -> Iterator[tuple[str, Sent, list[Delivery]]]:
    """Deliveries of what was published, by message and channel; others are `invented`."""
    for (topic, channel), bodies in ledger.delivered.items():
        for body, deliveries in bodies.items():
            sent = ledger.sent.get(body)
            if sent is not None and sent.topic == topic:
                yield f"{topic}/{channel} {body[:20]!r}", sent, deliveries


def _by_message(deliveries: Sequence[Delivery]) -> Collection[list[Delivery]]:
    """Deliveries of one body, by what each nsqd holds for one message."""
    if len(deliveries) == 1:
        return [list(deliveries)]
    messages: dict[tuple[str, bytes], list[Delivery]] = {}
    for delivery in deliveries:
        messages.setdefault((delivery.nsqd, delivery.message_id), []).append(delivery)
    return messages.values()
