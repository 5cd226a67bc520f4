"""What goes wrong in a day, and how it is mended."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final

from tests.simulation.clients import ClientNode, ProducerNode
from tests.simulation.daemons import AdminNode, LookupdNode, NsqdNode
from tests.simulation.losses import Losses
from tests.simulation.plan import MOODY, FaultPlan
from trionsq.testing.simulation import Network, Process, World

__all__ = ["STOP_S", "Node", "Saboteur"]

Node = ClientNode | NsqdNode | LookupdNode | AdminNode

STOP_S: Final = 45.0
"""Within this time after SIGTERM a process has ended, or does not keep its promise."""

# A kill within so long may make nsqd forget what an operator has changed.
_UNPAUSED_S: Final = 5.0
_MAX_JOB_OPERATIONS: Final = 9

# A kind of error of the disk: its number, and the operations that have it.
_DISK_ERRORS: Final[dict[str, tuple[int, Sequence[str]]]] = {
    "disk write error": (errno.EIO, ("write", "create")),
    "disk sync error": (errno.EIO, ("sync", "sync_folder")),
    "disk read error": (errno.EIO, ("read", "open", "size")),
    "too many files": (errno.EMFILE, ("open", "create")),
}


def _queue_files(node: NsqdNode) -> str:
    return "*.log.*" if node.has_logs else "*.diskqueue.*"


class Saboteur:
    """Does the faults of a plan.

    Attributes:
        hung: processes that did not end in time after SIGTERM.
        is_closing: the day ends, and nothing is booted any more.
    """

    def __init__(
        self, world: World, network: Network, nodes: dict[str, Node], losses: Losses
    ) -> None:
        self.hung: list[str] = []
        self._world = world
        self._network = network
        self._nodes = nodes
        self._losses = losses
        self.is_closing = False
        self._is_over = False

    def plan(self, fault: FaultPlan) -> None:
        """Let it happen at its time."""
        self._world.at(fault.at_s, self._begin, fault)

    def _begin(self, fault: FaultPlan) -> None:
        if self._is_over:
            return
        kinds: dict[str, Callable[[FaultPlan], bool]] = {
            "kill": self._kill,
            "kill twice": self._kill_twice,
            "kill in a job": self._crash_in_job,
            "power loss in a job": self._crash_in_job,
            "bit flip": self._flip_bit,
            "power loss": self._lose_power,
            "restart": self._restart,
            "stop": self._stop,
            "disk full": self._fill_disk,
            "disk slow": self._slow_disk,
            "clock jump": self._jump_clock,
            "too many connections": self._refuse_connections,
            "pause topic": self._pause,
            "pause channel": self._pause,
            "empty channel": self._discard,
            "delete channel": self._discard,
            "cut": self._cut,
            "one-way cut": self._cut,
            "reset": self._reset,
            "half-open": self._reset,
            "slow link": self._slow_link,
        }
        happened = kinds.get(fault.kind, self._fail_disk)(fault)
        if happened:
            self._world.note("fault", fault.kind, fault.target)
            self._world.counts[f"fault: {fault.kind}"] += 1

    def mend_all(self, network_names: Sequence[str]) -> None:
        """The end of all faults: everything is healed, and runs again."""
        self._is_over = True
        for source in network_names:
            for target in network_names:
                self._network.heal(source, target)
                self._network.slow_down(source, target, 0.0)
        for node in self._nodes.values():
            self._mend_disk(node)
            if node.machine.process is None:
                node.boot()
            elif node.machine.process.is_stopped:
                node.machine.process.resume()

    # Processes

    def _boot(self, node: Node) -> None:
        """Boot what a fault has ended, unless `mend_all` has done that."""
        stays_down = self.is_closing or (self._is_over and isinstance(node, ProducerNode))
        if node.machine.process is None and not stays_down:
            node.boot()

    def _kill(self, fault: FaultPlan) -> bool:
        node = self._nodes[fault.target]
        if node.machine.process is None:
            return False
        if isinstance(node, NsqdNode):
            self._losses.note_kill(node)
        node.machine.kill()
        self._world.after(fault.lasts_s, self._boot, node)
        return True

    def _kill_twice(self, fault: FaultPlan) -> bool:
        again = FaultPlan(0.0, "kill", fault.target, "", fault.lasts_s)
        self._world.after(fault.lasts_s + fault.value * 0.01, self._begin, again)
        return self._kill(fault)

    def _crash_in_job(self, fault: FaultPlan) -> bool:
        if (node := self._nsqd(fault)) is None:
            return False

        def crash() -> None:
            node.crash = None
            happened = self._lose_power if fault.kind.startswith("power") else self._kill
            if happened(fault):
                self._world.counts[f"fault: {fault.kind}"] += 1

        node.crash = 1 + round(fault.value * _MAX_JOB_OPERATIONS), crash
        return False  # not yet

    def _flip_bit(self, fault: FaultPlan) -> bool:
        node = self._nodes[fault.target]
        if not isinstance(node, NsqdNode) or not self._kill(fault):
            return False
        disk, random = node.machine.disk, self._world.random
        names = [
            name
            for name, data in disk.files().items()
            if data and (".log." in name if node.has_logs else name.endswith("0.dat"))
        ]
        if not names:
            return False
        name = random.choice(names)
        data = bytearray(disk.files()[name])
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        disk.write_file(name, bytes(data))
        self._losses.note_damage(node)
        node.has_damage = True
        return True

    def _lose_power(self, fault: FaultPlan) -> bool:
        node = self._nodes[fault.target]
        if node.machine.process is None:
            return False
        if isinstance(node, NsqdNode):
            self._losses.note_power_loss(node)
        node.machine.lose_power()
        self._world.after(fault.lasts_s, self._boot, node)
        return True

    def _restart(self, fault: FaultPlan) -> bool:
        node = self._nodes[fault.target]
        process = node.machine.process
        if process is None or process.is_stopped:
            return False
        process.terminate()
        self._world.after(fault.lasts_s, self._boot_when_ended, node, process, self._world.now_s)
        return True

    def _boot_when_ended(self, node: Node, process: Process, since_s: float) -> None:
        if node.machine.process is not process:
            self._boot(node)  # unless somebody else did
        elif self._world.now_s - since_s < STOP_S:
            self._world.after(0.1, self._boot_when_ended, node, process, since_s)
        else:
            self.hung.append(node.machine.name)

    def _stop(self, fault: FaultPlan) -> bool:
        process = self._nodes[fault.target].machine.process
        if process is None or process.is_stopped:
            return False
        process.stop()
        self._losses.stopped_s[fault.target] += fault.lasts_s

        def resume() -> None:
            assert process is not None
            if process.is_alive and process.is_stopped:
                process.resume()

        self._world.after(fault.lasts_s, resume)
        return True

    # nsqd

    def _nsqd(self, fault: FaultPlan) -> NsqdNode | None:
        node = self._nodes[fault.target]
        is_running = isinstance(node, NsqdNode) and node.machine.process is not None
        return node if is_running and isinstance(node, NsqdNode) else None

    def _mend_disk(self, node: Node) -> None:
        disk = node.machine.disk
        disk.heal()
        disk.capacity = None
        if isinstance(node, NsqdNode):
            node.disk_delay_s = 0.0005
            node.refuses_until_s = 0.0
            node.crash = None
            node.is_sick = False

    def _fill_disk(self, fault: FaultPlan) -> bool:
        if (node := self._nsqd(fault)) is None:
            return False
        disk = node.machine.disk
        disk.capacity = sum(map(len, disk.files().values())) + round(fault.value * 2000)
        self._world.after(fault.lasts_s, self._mend_disk, node)
        return True

    def _fail_disk(self, fault: FaultPlan) -> bool:
        if (node := self._nsqd(fault)) is None:
            return False
        number, operations = _DISK_ERRORS[fault.kind]
        # Without its metadata nsqd does not start, which is what it should do.
        node.machine.disk.fail(number, forever=True, only=operations, name=_queue_files(node))
        node.is_sick = True
        if "open" in operations:
            # What can't be read for some seconds is given up.
            self._losses.note_damage(node)
        self._world.after(fault.lasts_s, self._mend_disk, node)
        return True

    def _slow_disk(self, fault: FaultPlan) -> bool:
        if (node := self._nsqd(fault)) is None:
            return False
        node.disk_delay_s = 0.1 + fault.value * 2
        self._world.after(fault.lasts_s, self._mend_disk, node)
        return True

    def _jump_clock(self, fault: FaultPlan) -> bool:
        if (node := self._nsqd(fault)) is None:
            return False
        node.machine.jump_clock(fault.value)
        self._losses.clocks_jumped.add(fault.target)
        return True

    def _refuse_connections(self, fault: FaultPlan) -> bool:
        if (node := self._nsqd(fault)) is None:
            return False
        node.refuses_until_s = self._world.now_s + fault.lasts_s
        # Otherwise nobody would come.
        for end in self._network.ends_at(node.machine.name):
            end.reset()
        return True

    def _pause(self, fault: FaultPlan) -> bool:
        node = self._nsqd(fault)
        if node is None or node.broker is None or node.broker.not_ready_reason == "loading":
            return False
        broker, process = node.broker, node.machine.process
        assert process is not None
        topic = next(iter(broker.topics.values()), None)
        if topic is None or broker.exiting:
            return False
        queue = topic if fault.kind == "pause topic" else next(iter(topic.channels.values()))
        process.call(queue.pause)
        self._losses.pauses += 1
        self._world.after(fault.lasts_s, self._unpause, node)
        return True

    def _discard(self, fault: FaultPlan) -> bool:
        node = self._nsqd(fault)
        if node is None or node.broker is None or node.broker.not_ready_reason is not None:
            return False
        process = node.machine.process
        assert process is not None
        for topic in node.broker.topics.values():
            if MOODY in topic.channels:
                self._losses.discards.append((fault.target, self._world.now_s))
                if fault.kind == "empty channel":
                    process.call(topic.channels[MOODY].empty)
                else:
                    process.call(topic.delete_channel, MOODY)
                return True
        return False

    def _unpause(self, node: NsqdNode) -> None:
        """Also after a restart, which keeps what is paused."""
        broker, process = node.broker, node.machine.process
        if broker is None or process is None or broker.not_ready_reason in ("loading", "exiting"):
            self._world.after(0.5, self._unpause, node)
            return
        self._losses.pauses += 1
        for topic in broker.topics.values():
            process.call(topic.unpause)
            for channel in topic.channels.values():
                process.call(channel.unpause)
        self._world.after(_UNPAUSED_S, self._unpause_again, node, process)

    def _unpause_again(self, node: NsqdNode, process: object) -> None:
        """If a kill came before the metadata was saved."""
        if node.machine.process is not process:
            self._unpause(node)

    # Links

    def _cut(self, fault: FaultPlan) -> bool:
        links = [(fault.target, fault.other)]
        if fault.kind == "cut":
            links.append((fault.other, fault.target))
        for link in links:
            self._network.cut(*link)
            self._losses.disturb(self._world.now_s, fault)
            self._world.after(fault.lasts_s, self._network.heal, *link)
        return True

    def _reset(self, fault: FaultPlan) -> bool:
        ends = self._network.connections(fault.target, fault.other)
        for end in ends:
            if fault.kind == "reset":
                end.reset()
            else:
                end.break_with(errno.ETIMEDOUT)
        return bool(ends)

    def _slow_link(self, fault: FaultPlan) -> bool:
        self._network.slow_down(fault.target, fault.other, fault.value)
        self._losses.disturb(self._world.now_s, fault)
        self._world.after(fault.lasts_s, self._network.slow_down, fault.target, fault.other, 0.0)
        return True
