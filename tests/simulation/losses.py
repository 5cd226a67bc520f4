"""What the faults of a day allow nsqds to lose."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from tests.promises.allowance import Allowance
from tests.simulation.daemons import NsqdNode
from tests.simulation.plan import FaultPlan

__all__ = ["Losses"]

# The time that a sync takes, besides --sync-timeout.
_SYNC_S: Final = 1.5
_SYNC_TIMEOUT_S: Final = 2.0


class Losses(Allowance):
    """What nsqds of simulated machines may lose; and whose links were disturbed.

    Attributes:
        sync_timeouts_s: --sync-timeout of the nsqds that do not have the default.
        discards: which nsqd emptied or deleted a channel, and when.
        pauses: how often a topic or channel was paused or went on.
        stopped_s: how long an nsqd was stopped, in which it could not sync.
        held: messages that the consumers of a topic and channel may hold together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sync_timeouts_s: dict[str, float] = {}
        self.discards: list[tuple[str, float]] = []
        self.pauses = 0
        self.stopped_s: dict[str, float] = defaultdict(float)
        self.held: Counter[tuple[str, str]] = Counter()
        self._disturbed: list[tuple[float, float, str, str]] = []

    def note_kill(self, node: NsqdNode) -> None:
        """Count what is in memory. README: that is lost, and nothing else."""
        name = node.machine.name
        self.killed.add(name)
        if node.has_logs:
            return  # nothing is lost
        # Due times reach their file by a sync.
        now_s = node.machine.world.now_s
        self.note_forgetful(name, now_s - _SYNC_TIMEOUT_S - _SYNC_S, now_s)
        if node.broker is None:
            return
        for topic in node.broker.topics.values():
            self.note_memory(name, topic.name, "", topic.core.held)
            for channel in topic.channels.values():
                self.note_memory(name, topic.name, channel.name, channel.core.held)

    def note_power_loss(self, node: NsqdNode) -> None:
        """Besides, what no fsync had reached is lost: that of the last --sync-timeout."""
        self.note_kill(node)
        if node.has_logs:
            return
        name, now_s = node.machine.name, node.machine.world.now_s
        since_s = now_s - self.sync_timeouts_s.get(name, _SYNC_TIMEOUT_S) - _SYNC_S
        since_s -= self.stopped_s[name]
        self.note_late(name, since_s, now_s, when_due=True)
        self.note_forgetful(name, since_s, now_s)
        self.note_power_lost(name)
        if node.broker is None:
            return
        if node.broker.folder.fault is not None or node.disk_delay_s > 0.1:
            # A disk that refuses to sync, or is slow, has more that is not durable.
            self.damaged.add(name)
        for topic in node.broker.topics.values():
            for channel in topic.channels.values():
                # What was requeued, or held by a client that is gone, is at the end of the file
                # again, however old it is.
                core = channel.core
                again = core.requeue_count + core.timeout_count
                again += self.held[topic.name, channel.name]
                self.note_memory(name, topic.name, channel.name, again)

    def note_damage(self, node: NsqdNode) -> None:
        """Its files were damaged: anything in them may be lost."""
        self.damaged.add(node.machine.name)

    def disturb(self, now_s: float, fault: FaultPlan) -> None:
        """A link was cut or slow: what its clients see of nsqd is late."""
        self._disturbed.append((now_s, now_s + fault.lasts_s + 1.0, fault.target, fault.other))

    def is_disturbed(self, from_s: float, until_s: float, *names: str) -> bool:
        """Whether a link between two of the machines was cut or slow in that time."""
        return any(
            begin_s < until_s and from_s < end_s and one in names and other in names
            for begin_s, end_s, one, other in self._disturbed
        )
