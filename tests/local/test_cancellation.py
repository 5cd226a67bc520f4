"""Each await of an nsqd's life, of `trionsq up` and of the demo is cancelled once.

The nsqd has real sockets and files; its threads are simulated, see `tests.leftovers`.
"""

from __future__ import annotations

import signal
from functools import partial
from tempfile import TemporaryDirectory

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.support import numbered
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.client.network import ADDRESS, Network
from tests.http.talk import HttpTalk, get, post, until_cut_off
from tests.leftovers import nothing_left_behind, threads_in_mock_time
from tests.soak import in_short_soak, more_in_soak
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions, validated
from trionsq.client import Consumer, Producer
from trionsq.local import demo
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.local.up.cluster import Cluster, Member, run_cluster
from trionsq.local.up.daemons import host_inside
from trionsq.local.up.options import Ports, UpOptions, plan
from trionsq.testing.conversation import Conversation
from trionsq.testing.memory import nsqd_in_memory

# nsqd


class Life:
    """An nsqd in a task of its own."""

    def __init__(self, folder: str) -> None:
        self.options = validated(
            NsqdOptions(
                tcp_address="127.0.0.1:0",
                http_address="127.0.0.1:0",
                data_path=folder,
                mem_queue_size=2,
                admin=True,
            )
        )
        self.scope = trio.CancelScope()
        self.stop, self.ended = trio.Event(), trio.Event()
        self.broker: Broker | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until stopped; started when it is up, or has ended."""
        with self.scope:
            async with running_nsqd(self.options) as self.broker:
                task_status.started()
                await self.stop.wait()
        self.ended.set()


async def publish_all(port: int, bodies: list[bytes], answered: list[bytes], *targets: str) -> None:
    """Publish by HTTP, then get the targets, until cut off; note what was answered."""
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError:
        return
    async with stream:
        with until_cut_off():
            talk = HttpTalk(stream)
            for body in bodies:
                await talk.ask(post("/pub?topic=t", body))
                answered.append(body)
            for target in targets:
                await talk.ask(get(target))


async def stored_messages(folder: str) -> list[bytes]:
    """What the next nsqd delivers."""
    found, life = list[bytes](), Life(folder)
    async with trio.open_nursery() as nursery:
        await nursery.start(life.run)
        assert life.broker is not None
        consumer = Conversation.begin(life.broker)
        await consumer.subscribe("t", "c", ready=10)
        with trio.move_on_after(1):
            while True:
                found.append((await consumer.message()).body)
        consumer.close()
        life.stop.set()
    return found


async def end_an_nsqd(cancel_at: CancelAt, *, how: str) -> None:
    """An nsqd with a dashboard that is stopped, or cancelled, at one await; then the next one."""
    bodies, answered = numbered(5), list[bytes]()
    with (
        nothing_left_behind(only_sockets=how == "cancelled"),
        threads_in_mock_time(),
        TemporaryDirectory() as folder,
    ):
        first = Life(folder)
        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run)
                [cancel_at.root] = nursery.child_tasks
                cancel_at.cancel = first.scope.cancel if how == "cancelled" else first.stop.set
                await wait_all_tasks_blocked()
                await trio.sleep(1)
                if first.broker is not None:
                    port = first.broker.ports.http
                    await publish_all(port, bodies, answered, "/stats", "/admin/ping")
                first.stop.set()
                await first.ended.wait()
                cancel_at.root = None
            assert answered == bodies or cancel_at.has_fired
            assert first.broker is not None or how == "cancelled"
            found = await stored_messages(folder)
    assert set(found) <= set(bodies)
    if how == "stopped":
        assert first.broker is not None
        assert not first.broker.unsaved
        assert set(answered) <= set(found)


@in_short_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
@pytest.mark.parametrize("how", ["stopped", "cancelled"])
def test_an_nsqd_ended_at_any_await(how: str, when: When) -> None:
    """No socket, task or lock is left, after a stop no file either, and then the next nsqd has all
    messages that were answered."""
    sweep_awaits(partial(end_an_nsqd, how=how), when)


# trionsq up

PARTS = plan(UpOptions(nsqd=2, port=0, lookupd_port=0, no_admin=True, data_path="/none"))


async def end_a_cluster(cancel_at: CancelAt) -> None:
    """A cluster of parts that only wait, with a signal at one await."""
    up: set[str] = set()
    saved: set[str] = set()

    async def host(member: Member, *, task_status: trio.TaskStatus[Ports]) -> None:
        await trio.sleep(0.1)
        name = member.part.name
        up.add(name)
        task_status.started(Ports(1, 2))
        await member.stop.wait()
        if "nsqd" in name:
            assert "nsqlookupd" in up - saved, "nsqds are stopped first"
        await trio.sleep(0.1)
        saved.add(name)

    async def body(cluster: Cluster) -> None:
        await trio.sleep(1)

    with nothing_left_behind(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.makedirs", lambda path, exist_ok: None)
        patch.setattr("trionsq.local.up.cluster.start_collecting", lambda: None)
        cancel_at.root = trio.lowlevel.current_task()
        cancel_at.cancel = lambda: signal.raise_signal(signal.SIGTERM)
        assert await run_cluster(PARTS, host, body) == 0
        cancel_at.root = None
    assert saved == up
    assert len(up) == 3 or cancel_at.has_fired


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_cluster_stopped_at_any_await(when: When) -> None:
    """Whatever part was up is stopped in order, and saves what it has."""
    # A signal that comes before the cluster heeds it, or after that, is not its own.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        sweep_awaits(end_a_cluster, when)
    finally:
        signal.signal(signal.SIGTERM, before)


async def end_a_cluster_of_daemons(cancel_at: CancelAt) -> None:
    """An nsqlookupd and an nsqd as tasks of this process, with a signal at one await."""
    bodies, answered = numbered(3), list[bytes]()

    async def publish(cluster: Cluster) -> None:
        await publish_all(cluster.members[-1].ports.http, bodies, answered)

    with (
        nothing_left_behind(),
        threads_in_mock_time(),
        TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("trionsq.local.up.cluster.start_collecting", lambda: None)
        parts = plan(UpOptions(port=0, lookupd_port=0, no_admin=True, data_path=folder))
        cancel_at.root = trio.lowlevel.current_task()
        cancel_at.cancel = lambda: signal.raise_signal(signal.SIGTERM)
        assert await run_cluster(parts, host_inside, publish) == 0
        cancel_at.root = None
        found = await stored_messages(parts[-1].data_path) if answered else []
    assert answered == bodies or cancel_at.has_fired
    assert set(answered) <= set(found) <= set(bodies)


@in_short_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_cluster_of_daemons_stopped_at_any_await(when: When) -> None:
    """No socket, file or task is left, and what was answered is stored."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        sweep_awaits(end_a_cluster_of_daemons, when, least=50)
    finally:
        signal.signal(signal.SIGTERM, before)


# The demo


async def end_a_demo(cancel_at: CancelAt) -> None:
    """A producer, a consumer and the report, which are cancelled at one await."""
    counters = demo.Counters()
    with nothing_left_behind(), pytest.MonkeyPatch.context() as patch:
        async with nsqd_in_memory() as broker:
            network = Network.of(broker)
            patch.setattr(demo, "Producer", partial(Producer, dial=network.dial))
            patch.setattr(demo, "Consumer", partial(Consumer, dial=network.dial, get=lookup))
            async with trio.open_nursery() as tasks:
                tasks.start_soon(flow, counters)
                [cancel_at.root] = tasks.child_tasks
                cancel_at.cancel = tasks.cancel_scope.cancel
                await trio.sleep(5)
                cancel_at.root = None
                tasks.cancel_scope.cancel()
            assert all(link.is_closed for link in network.links)
    assert counters.consumed <= counters.published
    assert counters.consumed or cancel_at.has_fired


async def flow(counters: demo.Counters) -> None:
    """What `demo.run_flow` starts."""
    async with trio.open_nursery() as tasks:
        await tasks.start(demo.produce, ADDRESS, counters)
        tasks.start_soon(demo.consume, "lookupd:4161", counters)
        tasks.start_soon(demo.report, counters)


async def lookup(*_: object, **_more: object) -> httpget.Answer:
    """The answer of an nsqlookupd that knows the nsqd."""
    await trio.lowlevel.checkpoint()
    host, port = ADDRESS.split(":")
    body = b'{"channels":[],"producers":[{"broadcast_address":"%b","tcp_port":%b}]}'
    return httpget.Answer(200, {}, body % (host.encode(), port.encode()))


@in_short_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_a_demo_cancelled_at_any_await(when: When) -> None:
    """No connection and no task is left."""
    sweep_awaits(end_a_demo, when)
