"""What a log tells its publishers and keeps for its channels, when jobs or crashes intervene."""

from __future__ import annotations

from trionsq.core.ids import IdSource
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder
from trionsq.storage.log.node import LogNode
from trionsq.storage.log.topiclog import TopicLog
from trionsq.testing.background import HeldBackground
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import MemoryState
from trionsq.wire.bodies import ListBodies

NOW_NS = 1_700_000_000_000_000_000


class Node:
    """A node with one topic; its jobs wait until they are told to run."""

    def __init__(self, durability: str = "always", segment_bytes: int = 1 << 20) -> None:
        self.disk = SimulatedDisk()
        self.jobs = HeldBackground()
        folder = DataFolder(self.disk, self.jobs)
        self.node = LogNode(
            folder, MemoryState(self.disk), durability=durability, segment_bytes=segment_bytes
        )
        self.log: TopicLog = self.node.new_topic("t")
        self.topic = TopicState("t", 0, self.log, IdSource(1))
        self.jobs.run_all()


def test_a_publish_of_an_idle_node_waits_for_its_round() -> None:
    """The publisher hears nothing while the job that writes its message runs."""
    node = Node()
    pending = node.topic.publish(ListBodies([b"a"]), NOW_NS)
    assert pending is not None
    heard: list[str | None] = []
    pending.when_done(lambda: heard.append(pending.error))
    assert heard == []
    node.jobs.run_all()
    assert heard == [None]
    assert node.log.pending is None
