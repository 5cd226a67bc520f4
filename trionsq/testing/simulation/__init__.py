"""A cluster in one process, one thread and one seed: machines, their disks, clocks and network.

- `world`: the order of events, simulated time, the trace
- `machine`: a machine with a disk and a clock, and the process that runs on it
- `connection`: the two ends of a connection between processes
- `network`: links between machines, with latency and cuts

Every process is a trio run of its own, and the world decides which of them takes the next step. So
a process can be killed without any of its ``finally`` clauses, stopped as by SIGSTOP while the
others go on, and its clocks can be wrong. All that happens by chance comes from one seed, trio's
order of tasks, too: the same seed gives the same trace::

    world = World(seed=1)
    network = Network(world)
    nsqd, client = Machine(world, "nsqd"), Machine(world, "client")
    nsqd.boot(serve)
    client.boot(publish)
    world.run(seconds=60)
    nsqd.kill()
    world.run(seconds=1)
    nsqd.boot(serve)
    world.close()

Code that is simulated must not use threads, sockets or files: what it does must go through the
network and the disk of its machine.
"""

from __future__ import annotations

from trionsq.testing.simulation.connection import End
from trionsq.testing.simulation.machine import Machine, Process
from trionsq.testing.simulation.network import Network
from trionsq.testing.simulation.world import World

__all__ = ["End", "Machine", "Network", "Process", "World"]
