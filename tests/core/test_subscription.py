"""A consumer's in-flight messages and their deadlines (trionsq.core.subscription)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.helpers import contents, message_ids, segment
from trionsq.core.batch import Segment
from trionsq.core.subscription import Delivery, Subscription
from trionsq.wire.frames import message_frame


def consumer(msg_timeout_s: float = 10.0) -> Subscription:
    return Subscription(lambda delivery: True, msg_timeout_s)


def deliver(to: Subscription, one: Segment, now_s: float) -> Delivery:
    """What a channel does when the client takes a delivery."""
    delivery = Delivery(one, now_s, now_s + to.msg_timeout_s)
    to.in_flight.update(dict.fromkeys(delivery.ids, delivery))
    return delivery


def ids_of(segments: list[Segment]) -> list[bytes]:
    return [id_ for one in segments for id_ in one.ids()]


def test_deadlines_pass_in_order() -> None:
    """A message is taken out at its deadline, with its attempts, and not before."""
    client = consumer()
    deliver(client, segment(0, 2, attempts=4), 0.0)
    deliver(client, segment(2, 2), 1.0)
    assert client.next_deadline_s() == 10.0
    assert client.remove_expired(9.999, 99) == []
    first = client.remove_expired(10.0, 99)
    assert [one for part in first for one in contents(part)] == contents(segment(0, 2, attempts=5))
    assert client.next_deadline_s() == 11.0
    assert ids_of(client.remove_expired(99.0, 99)) == message_ids(2, 2)
    assert client.next_deadline_s() == float("inf")


def test_a_touch_gives_a_whole_timeout_from_now() -> None:
    """And leaves the other messages of the delivery alone."""
    client = consumer()
    deliver(client, segment(0, 3), 0.0)
    assert client.touch(message_ids(1, 1)[0], 4.0, 900.0)
    assert ids_of(client.remove_expired(10.0, 99)) == [message_ids(0, 1)[0], message_ids(2, 1)[0]]
    assert client.next_deadline_s() == 14.0
    (touched,) = client.remove_expired(14.0, 99)
    assert contents(touched) == contents(segment(1, 1, attempts=1))


def test_touches_reach_no_further_than_max_msg_timeout() -> None:
    """Counted from the hand-over, however often the message is touched."""
    client = consumer()
    (id_,) = message_ids(0, 1)
    deliver(client, segment(0, 1), 0.0)
    deliver(client, segment(1, 1), 8.0)
    for now_s in (5.0, 9.0, 14.0, 15.0):
        assert client.touch(id_, now_s, 16.0)
    assert client.next_deadline_s() == 16.0
    assert ids_of(client.remove_expired(16.0, 99)) == [id_]
    assert ids_of(client.remove_expired(18.0, 99)) == message_ids(1, 1)


def test_a_touch_that_gains_nothing_loses_nothing() -> None:
    """With msg_timeout at its maximum a touched message still times out before later ones."""
    client = consumer(10.0)
    (id_,) = message_ids(0, 1)
    deliver(client, segment(0, 1), 0.0)
    deliver(client, segment(1, 1), 5.0)
    assert client.touch(id_, 6.0, 10.0)
    assert client.next_deadline_s() == 10.0
    assert ids_of(client.remove_expired(10.0, 99)) == [id_]


def test_touching_again_and_again_costs_no_memory() -> None:
    """A client that touches one message for ever adds nothing."""
    client = consumer()
    (id_,) = message_ids(0, 1)
    deliver(client, segment(0, 1), 0.0)
    for _ in range(1000):
        client.touch(id_, 8.0, 12.0)
    assert len(client._capped) == 1


def test_a_capped_deadline_dies_with_its_delivery() -> None:
    """A message that was requeued and came again has the deadline of the new delivery."""
    client = consumer()
    (id_,) = message_ids(0, 1)
    deliver(client, segment(0, 1), 0.0)
    client.touch(id_, 8.0, 12.0)
    del client.in_flight[id_]
    deliver(client, segment(0, 1), 9.0)
    assert client.remove_expired(12.0, 99) == []
    assert ids_of(client.remove_expired(19.0, 99)) == [id_]


def test_touch_needs_the_message() -> None:
    """It is not in flight here: False, and nothing changes."""
    client = consumer()
    assert not client.touch(b"x" * 16, 1.0, 900.0)
    assert not client.in_flight


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["deliver", "touch", "touch", "finish", "pass", "pass"]),
            st.integers(0, 15),
            st.integers(1, 4),
        ),
        max_size=40,
    ),
    st.sampled_from([10, 13, 25]),
)
@settings(deadline=None, max_examples=400)
def test_any_order_of_touches_keeps_every_deadline(
    steps: list[tuple[str, int, int]], max_msg_timeout: int
) -> None:
    """At each moment exactly those messages time out whose deadline has come."""
    client = consumer(10.0)
    deadlines: dict[bytes, tuple[int, int]] = {}
    now = next_id = 0
    for name, which, count in steps:
        known = sorted(deadlines)
        id_ = known[which % len(known)] if known else b"?" * 16
        if name == "deliver":
            deliver(client, segment(next_id, count), now)
            deadlines |= dict.fromkeys(message_ids(next_id, count), (now, now + 10))
            next_id += count
        elif name == "touch" and client.touch(id_, now, max_msg_timeout):
            started = deadlines[id_][0]
            deadlines[id_] = (started, min(now + 10, started + max_msg_timeout))
        elif name == "finish" and id_ in deadlines:
            del client.in_flight[id_], deadlines[id_]
        elif name == "pass":
            now += which % 8
            due = {one for one, (_, deadline) in deadlines.items() if deadline <= now}
            assert set(ids_of(client.remove_expired(now, 99))) == due
            for one in due:
                del deadlines[one]
        assert set(client.in_flight) == set(deadlines)
        earliest = min((deadline for _, deadline in deadlines.values()), default=float("inf"))
        assert client.next_deadline_s() <= earliest


def test_old_remains_are_copied_out_of_their_batch() -> None:
    """Less than a quarter left: the batch goes, the messages and their deadline stay."""
    client = consumer()
    delivery = deliver(client, segment(0, 40, (20, 30)), 0.0)
    delivery.written = True
    whole = delivery.batch
    for id_ in message_ids(0, 40):
        if id_ not in message_ids(7, 9):
            del client.in_flight[id_]
    client.compact(5.0)
    assert delivery.batch is not whole
    assert delivery.batch.count == 9
    left = Segment(whole, 7, 16, 1)
    assert delivery.frames() == b"".join(
        message_frame(whole.timestamp_ns, attempts, id_, body)
        for id_, body, attempts in contents(left)
    )
    (expired,) = client.remove_expired(10.0, 99)
    assert contents(expired) == contents(left)


def test_what_is_young_large_or_unwritten_is_not_copied() -> None:
    """A copy of much gains little, and the pump still needs what it has not written."""
    client = consumer()
    young, large, unwritten = (deliver(client, segment(at, 8), 0.0) for at in (0, 8, 16))
    young.started_s = 6.0
    young.written = large.written = True
    for delivery, left in ((young, 1), (large, 2), (unwritten, 1)):
        for id_ in delivery.ids[left:]:
            del client.in_flight[id_]
    client.in_flight = dict(sorted(client.in_flight.items(), reverse=True))
    client.compact(5.0)
    assert [one.batch.count for one in (young, large, unwritten)] == [8, 8, 8]


def test_present_are_those_in_flight_by_this_very_delivery() -> None:
    """Finished, touched and redelivered messages are not."""
    client = consumer()
    delivery = deliver(client, segment(0, 4), 0.0)
    del client.in_flight[message_ids(0, 1)[0]]
    client.touch(message_ids(1, 1)[0], 1.0, 900.0)
    deliver(client, segment(2, 1), 2.0)
    assert client.present_ids(delivery) == message_ids(3, 1)


def test_forget_drops_everything() -> None:
    """And marks deliveries, so that what was not written yet is not written any more."""
    client = consumer()
    delivery = deliver(client, segment(0, 4), 0.0)
    client.touch(message_ids(1, 1)[0], 9.0, 12.0)
    assert client.drop_all() == 4
    assert delivery.some_gone
    assert client.next_deadline_s() == float("inf")
    assert client.remove_expired(99.0, 99) == []
