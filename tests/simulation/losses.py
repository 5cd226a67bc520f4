"""What may be lost: README, "What is safe and what is not"."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.simulation.daemons import NsqdNode
from tests.simulation.plan import FaultPlan

__all__ = ["Losses"]

# --sync-timeout, and the time that a sync takes.
_SYNC_S: Final = 2.0 + 1.5


class Losses:
    """For each nsqd, what it was allowed to lose.

    Attributes:
        killed: nsqds that were killed or lost their power.
        damaged: nsqds whose files were damaged, or could not be read.
        clocks_jumped: nsqds whose wall clock jumped.
        unsaved: nsqds that said at a stop that they could not save everything.
    """

    def __init__(self) -> None:
        self.killed: set[str] = set()
        self.damaged: set[str] = set()
        self.clocks_jumped: set[str] = set()
        self.unsaved: set[str] = set()
        # Messages that were in memory only, by nsqd, topic and channel ("" for the topic).
        self._in_memory: Counter[tuple[str, str, str]] = Counter()
        self._power_lost_s: dict[str, list[float]] = {}
        self._disturbed: list[tuple[float, float, str, str]] = []

    def note_kill(self, node: NsqdNode) -> None:
        """Count what is in memory. README: that is lost, and nothing else."""
        name = node.machine.name
        self.killed.add(name)
        if node.broker is None:
            return
        for topic in node.broker.topics.values():
            self._in_memory[name, topic.name, ""] += topic.core.held
            for channel in topic.channels.values():
                self._in_memory[name, topic.name, channel.name] += channel.core.held

    def note_power_loss(self, node: NsqdNode) -> None:
        """Besides, what no fsync had reached is lost: that of the last --sync-timeout."""
        self.note_kill(node)
        now_s, name = node.machine.world.now_s, node.machine.name
        self._power_lost_s.setdefault(name, []).append(now_s)
        if node.broker is None:
            return
        if node.broker.folder.fault is not None or node.disk_delay_s > 0.1:
            # A disk that refuses to sync, or is slow, has more that is not durable.
            self.damaged.add(name)
        for topic in node.broker.topics.values():
            for channel in topic.channels.values():
                # What was requeued is at the end of the file again, however old it is.
                core = channel.core
                rewritten = core.requeue_count + core.timeout_count
                self._in_memory[name, topic.name, channel.name] += rewritten

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

    def may_lose_anything(self, nsqd: str) -> bool:
        """Whether no number bounds what an nsqd may lose."""
        return nsqd in self.damaged or nsqd in self.unsaved

    def may_invent(self, nsqd: str) -> bool:
        """Whether bytes of its files may have become others: records have no checksums."""
        return nsqd in self.damaged or nsqd in self._power_lost_s

    def may_lose_as_late(self, nsqd: str, acked_s: float) -> bool:
        """Whether a message of that time may not have been synced when the power went."""
        return any(
            lost_s - _SYNC_S < acked_s <= lost_s for lost_s in self._power_lost_s.get(nsqd, ())
        )

    def most(self, nsqd: str, topic: str, channel: str) -> int:
        """How many older messages of a channel an nsqd may have lost."""
        return self._in_memory[nsqd, topic, ""] + self._in_memory[nsqd, topic, channel]
