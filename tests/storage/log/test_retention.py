"""Segments go when nobody needs them any more."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.core.helpers import run_out
from tests.storage.log.test_rounds import NOW_NS, Node
from trionsq.core.channel import ChannelState
from trionsq.core.subscription import Subscription
from trionsq.storage.log.snapshot import Snapshots
from trionsq.storage.log.state import WAL_FILE
from trionsq.wire.bodies import ListBodies

_SECOND_NS = 1_000_000_000


class Served(Node):
    """A node whose topic has a channel, and a consumer that holds what it gets."""

    def __init__(self, segment_bytes: int = 1_000) -> None:
        super().__init__(segment_bytes=segment_bytes)
        self.now_ns = NOW_NS
        self.snapshots = Snapshots()
        self.channel = self.add_channel("c")
        self.consumer = Subscription(lambda delivery: True, 3600.0)
        self.channel.add_subscription(self.consumer)
        self.channel.set_ready(self.consumer, 1_000, 0.0)

    def add_channel(self, name: str) -> ChannelState:
        channel = ChannelState(name, 1_000, self.node.new_cursor(self.log, name), Random(1))
        self.topic.add_channel(channel)
        self.jobs.run_all()
        return channel

    def publish(self, *bodies: bytes, defer_ms: int = 0) -> None:
        """Publish a batch, and hand it to the channels."""
        self.topic.publish(ListBodies(list(bodies)), self.now_ns, defer_ms)
        self.turn()

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass, and do what is to be done then."""
        self.now_ns += round(seconds * _SECOND_NS)
        now_s = (self.now_ns - NOW_NS) / 1e9
        for _ in range(5):
            self.jobs.run_all()
            while self.topic.pump(now_s, self.now_ns):
                pass
            for channel in self.topic.channels.values():
                channel.scan(now_s, self.now_ns)

    def finish(self, *but: bytes) -> None:
        """Finish what the consumer has, but for the messages with these bodies."""
        held = self.consumer.in_flight
        ids = [
            id_
            for id_, one in held.items()
            if one.batch.bodies.body_at(one.first + one.ids.index(id_)) not in but
        ]
        assert self.channel.finish(self.consumer, ids, 0.0) is None
        self.turn()

    def tick(self) -> None:
        """What happens every --state-interval."""
        for channel in self.topic.channels.values():
            run_out(self.snapshots.add_channel(channel, self.log.number))
        self.snapshots.add_topic(self.topic, self.log)
        self.snapshots.commit(self.node)
        self.turn()

    @property
    def files(self) -> list[str]:
        """The names of the segments."""
        return sorted(name for name in self.disk.files() if name.startswith("t.log."))


def test_the_log_of_a_topic_with_deferred_messages_alone_is_left() -> None:
    """A channel has them from their publishing on, and so no read brings it on."""
    node = Served()
    for number in range(20):
        node.publish(b"%0300d" % number, defer_ms=1_000)
    assert len(node.files) > 5
    node.turn(2)
    assert node.channel.in_flight.count == 20
    node.finish()
    node.tick()
    assert len(node.files) == 1
    node.publish(b"later")
    assert node.channel.in_flight.count == 1
    assert node.channel.check() is None


def test_segments_go_when_a_commit_that_failed_is_made_up_for() -> None:
    """It may have been the full disk that needs their space."""
    node = finished_node()
    before = node.files
    for _ in range(2):
        node.disk.fail(errno.ENOSPC, only=["sync"], name=WAL_FILE)
        node.tick()
        assert node.files == before  # a crash now may go back to them
        node.disk.fail(errno.ENOSPC, only=["sync"], name=WAL_FILE)
        node.node.retry()
        node.turn()
        assert node.files == before
        node.publish(b"takes along what failed")
        assert len(node.files) == len(node.log.segments)
        for number in range(20):
            node.publish(b"%0300d" % number)
        node.finish()
        before = node.files
    assert node.node.figures.failed_commits == 4
    node.tick()
    assert len(node.files) == 1


def finished_node() -> Served:
    """A node with many segments, of which all is finished."""
    node = Served()
    for number in range(20):
        node.publish(b"%0300d" % number)
    node.finish()
    assert len(node.files) > 5
    return node


@pytest.mark.parametrize("operation", ["unlink", "sync_folder"])
def test_segments_that_could_not_be_removed_go_later(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if nothing is committed any more; the log tells of it once."""
    node = finished_node()
    node.disk.fail(errno.EIO, only=[operation], forever=True)
    node.tick()
    for _ in range(3):
        node.node.retry()
        node.turn()
    assert caplog.text.count("removing files failed") == 1
    node.disk.heal()
    node.node.retry()
    node.turn()
    assert len(node.files) == 1
    commits = node.node.figures.commits
    node.node.retry()
    node.turn()
    assert node.node.figures.commits == commits


def test_files_of_a_topic_go_when_its_deletion_that_failed_is_made_up_for() -> None:
    """The state forgets the topic then, too."""
    node = finished_node()
    node.disk.fail(errno.ENOSPC, only=["sync"], name=WAL_FILE)
    node.log.delete()
    node.turn()
    assert node.files
    node.node.retry()
    node.turn()
    assert not node.files
    content = node.node.state.load()
    assert not content.topics
    assert not content.tombstones
