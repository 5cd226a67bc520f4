"""A channel at the end of a broker's life, and after it (trionsq.core.channel)."""

from __future__ import annotations

import pytest

from tests.core.helpers import (
    NS_PER_MS,
    WALL_NS,
    MemoryBackend,
    batch,
    contents,
    message_ids,
    segment,
    wall_ns,
)
from tests.core.test_channel import Client, new_channel, put
from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.queue import BackendBusy, BackendError


def busy_channel(backend: MemoryBackend) -> tuple[ChannelState, Client]:
    """Ids 0 and 1 in flight, 2 and 3 deferred (3 is due first), 4 and 5 waiting."""
    channel = new_channel(backend=backend)
    client = Client(channel, rdy=4)
    put(channel, 0, 6)
    ids = message_ids(0, 6)
    channel.set_ready(client.consumer, 2, 0.0)
    assert channel.requeue(client.consumer, ids[2], 9000, 0.0, wall_ns(0.0))
    assert channel.requeue(client.consumer, ids[3], 5000, 0.0, wall_ns(0.0))
    assert (channel.in_flight_count, channel.deferred_count, channel.depth) == (2, 2, 2)
    return channel, client


def saved(backend: MemoryBackend) -> list[tuple[bytes, int]]:
    """Ids and attempts in the backend, in order."""
    return [(id_, tries) for one in backend.segments for id_, _, tries in contents(one)]


def test_what_waits_is_saved_first_then_in_flight_then_deferred() -> None:
    """In this order, as the original does it, each with its attempts."""
    backend = MemoryBackend()
    channel, _ = busy_channel(backend)
    assert channel.held == 6
    channel.save()
    ids = message_ids(0, 6)
    assert saved(backend) == [(ids[4], 0), (ids[5], 0)] + [
        (ids[place], 1) for place in (0, 1, 3, 2)
    ]
    assert (channel.held, channel.depth, channel.in_flight_count) == (0, 6, 0)


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_a_save_that_fails_part_way_can_be_tried_again(takes: int) -> None:
    """Nothing is lost or doubled, and the order is the same."""
    backend = MemoryBackend()
    channel, _ = busy_channel(backend)
    backend.takes = takes
    with pytest.raises(BackendError):
        channel.save()
    assert backend.refusals == 1
    assert channel.held + backend.depth == 6
    backend.takes = None
    channel.save()
    ids = message_ids(0, 6)
    assert [id_ for id_, _ in saved(backend)] == [ids[place] for place in (4, 5, 0, 1, 3, 2)]


def test_what_a_gone_client_had_is_saved() -> None:
    """Messages in flight at a closed connection count as in flight until the end."""
    backend = MemoryBackend()
    channel, client = busy_channel(backend)
    client.deliveries.clear()
    channel.remove_subscription(client.consumer, [], False, 0.0)
    channel.save()
    assert len(saved(backend)) == 6
    assert sorted(saved(backend))[0] == (message_ids(0, 1)[0], 1)


def test_messages_of_different_attempts_keep_theirs() -> None:
    """Deferred messages are saved together, but not their attempts."""
    backend = MemoryBackend()
    channel = new_channel(backend=backend)
    for attempts in (3, 3, 0, 7):
        one = Segment(batch(attempts, 1, defer_ms=1000), 0, 1, attempts)
        channel.put(one, 0.0, wall_ns(0.0))
    channel.save()
    assert sorted(tries for _, tries in saved(backend)) == [0, 3, 3, 7]


def test_a_saved_deferral_waits_for_its_time_after_a_restart() -> None:
    """Not early, and by the next scan after it; its attempts go on."""
    backend = MemoryBackend()
    busy_channel(backend)[0].save()
    channel = new_channel(backend=backend)
    client = Client(channel, rdy=10)
    ids = message_ids(0, 6)
    assert sorted(client.ids) == sorted(ids[place] for place in (4, 5, 0, 1))
    assert (channel.deferred_count, channel.depth) == (2, 0)
    # Due times are kept to the millisecond, rounded up.
    for now_s, last in ((4.999, None), (5.001, 3), (8.999, 3), (9.001, 2)):
        channel.scan(now_s, wall_ns(now_s))
        assert last is None or client.ids[-1] == ids[last]
        assert len(client.ids) == {None: 4, 3: 5, 2: 6}[last]
    assert [delivery.attempts for delivery in client.deliveries[-2:]] == [2, 2]


def test_a_deferral_that_is_due_at_the_restart_comes_at_once() -> None:
    """With the first scan, which is asked for as soon as it was read."""
    backend = MemoryBackend()
    channel = new_channel(backend=backend)
    channel.put(Segment(batch(0, 2, defer_ms=1000), 0, 2), 0.0, wall_ns(0.0))
    channel.save()
    channel = new_channel(backend=backend)
    client = Client(channel, rdy=10)
    assert (client.ids, channel.wake_at_s) == ([], 0.0)
    channel.scan(50.0, wall_ns(50.0))
    assert client.ids == message_ids(0, 2)
    assert channel.wake_at_s > 50.0


def test_deferrals_do_not_hide_what_is_behind_them() -> None:
    """A client with credit gets what lies behind deferred messages in the backend."""
    backend = MemoryBackend()
    later = segment(0, 3)
    backend.append(later, [WALL_NS + 10**6 * NS_PER_MS] * 3)
    backend.append(segment(3, 2))
    channel = new_channel(backend=backend)
    client = Client(channel, rdy=10)
    assert client.ids == message_ids(3, 2)
    assert (channel.deferred_count, channel.depth) == (3, 0)


def test_a_deferral_due_while_memory_is_full_goes_to_the_backend() -> None:
    """Without its delay: it does not wait again."""
    backend = MemoryBackend()
    channel = new_channel(0, backend)
    channel.put(Segment(batch(0, 2, defer_ms=1000), 0, 2), 0.0, wall_ns(0.0))
    channel.scan(1.5, wall_ns(1.5))
    assert (channel.deferred_count, backend.depth) == (0, 2)
    assert not any(one.batch.defer_ms for one in backend.segments)


def test_a_put_waits_while_the_backend_is_behind() -> None:
    """`BackendBusy`, and nothing changed."""
    backend = MemoryBackend()
    backend.behind = True
    channel = new_channel(2, backend)
    with pytest.raises(BackendBusy):
        channel.put(segment(0, 3), 0.0, wall_ns(0.0))
    assert (channel.depth, channel.message_count) == (0, 0)
    backend.behind = False
    channel.put(segment(0, 3), 0.0, wall_ns(0.0))
    assert (channel.depth, backend.depth) == (3, 1)
