"""The cluster in one process that the simulation of days relies on."""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio

from trionsq.testing.simulation import End, Machine, Network, World

_PORT = 4150


@pytest.fixture
def world() -> Iterator[World]:
    world = World(seed=1)
    yield world
    world.close()


class Pair:
    """A connection from one machine to another; each end is used by the test."""

    def __init__(self, world: World, **options: float) -> None:
        self.world = world
        self.network = Network(world, latency_s=(0.001, 0.02), **options)  # type: ignore[arg-type]
        self.client, self.server = Machine(world, "client"), Machine(world, "server")
        self.near: End | None = None
        self.far: End | None = None
        self.log: list[object] = []
        self.server.boot(self._listen)
        self.client.boot(self._connect)
        world.run(0.2)

    async def _listen(self) -> None:
        assert self.server.process is not None
        self.network.listen(self.server.process, _PORT, self._accept)
        await trio.sleep_forever()

    def _accept(self, end: End) -> None:
        self.far = end

    async def _connect(self) -> None:
        assert self.client.process is not None
        self.near = await self.network.connect(self.client.process, "server", _PORT)
        while True:
            try:
                data = await self.near.stream.receive_some()
            except trio.BrokenResourceError as error:
                self.log.append(error.__cause__)
                break
            self.log.append(data)
            if not data:
                break
        await trio.sleep_forever()

    @property
    def received(self) -> bytes:
        """What arrived at the client."""
        return b"".join(each for each in self.log if isinstance(each, bytes))

    @property
    def error_numbers(self) -> list[int | None]:
        """The errors that the client saw."""
        return [each.errno for each in self.log if isinstance(each, OSError)]

    def send(self, data: bytes) -> None:
        """Send from the server to the client."""
        assert self.far is not None
        far = self.far
        far.process.call(far.transport.send_nowait, data)


async def _sleep(seconds: float) -> None:
    await trio.sleep(seconds)


# Processes


def test_a_killed_process_runs_no_further_statement(world: World) -> None:
    """Neither the next one nor its finally clauses run, as long as the world goes on."""
    log = []

    async def work() -> None:
        try:
            log.append("begins")
            await trio.sleep(10)
            log.append("goes on")
        finally:
            log.append("finally")

    machine = Machine(world, "one")
    machine.boot(work)
    world.run(1)
    machine.kill()
    world.run(20)
    assert log == ["begins"]
    assert machine.process is None


def test_a_stopped_process_goes_on_where_it_was(world: World) -> None:
    """SIGSTOP stops its tasks and not the others'; after SIGCONT all that was due is due."""
    ticks: dict[str, list[float]] = {"stopped": [], "other": []}

    def count(name: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            while True:
                await trio.sleep(1)
                ticks[name].append(round(world.now_s, 2))

        return work

    stopped, other = Machine(world, "stopped"), Machine(world, "other")
    stopped.boot(count("stopped"))
    other.boot(count("other"))
    world.run(2.5)
    assert stopped.process is not None
    stopped.process.stop()
    world.run(3)
    stopped.process.resume()
    world.run(1.2)
    assert ticks["stopped"] == [1.0, 2.0, 5.5, 6.5]
    assert ticks["other"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_sigterm_is_heard_and_the_end_frees_the_machine(world: World) -> None:
    """`wait_signal` returns after `terminate`; a process that has ended can be booted again."""
    machine = Machine(world, "one")

    async def daemon() -> None:
        assert machine.process is not None
        await machine.process.wait_signal()

    machine.boot(daemon)
    with pytest.raises(RuntimeError, match="has a process"):
        machine.boot(daemon)
    world.run(1)
    assert machine.process is not None
    first = machine.process
    first.terminate()
    world.run(1)
    assert not first.is_alive
    second = machine.boot(daemon)
    world.run(1)
    assert second.is_alive


def test_an_error_of_a_process_ends_the_run_of_the_world(world: World) -> None:
    """No defect of a simulated program goes unnoticed."""

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("a defect")

    Machine(world, "one").boot(fail)
    with pytest.raises(ValueError, match="a defect"):
        world.run(2)


def test_code_that_is_simulated_cannot_use_a_socket(world: World) -> None:
    """A real socket would wait for real time: it raises."""

    async def leave_the_simulation() -> None:
        one, other = trio.socket.socketpair()
        with one, other:
            await one.recv(1)

    Machine(world, "one").boot(leave_the_simulation)
    with pytest.raises((RuntimeError, ExceptionGroup)) as failure:
        world.run(1)
    error: BaseException = failure.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert "real I/O" in str(error)


# Clocks


def test_each_machine_has_clocks_of_its_own(world: World) -> None:
    """A fast monotonic clock ends sleeps early; a jump of the wall clock moves no other clock."""
    seen = {}

    def look(machine: Machine) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            before = time.monotonic(), time.time()
            await trio.sleep(100)
            seen[machine.name] = (
                round(world.now_s, 2),
                round(time.monotonic() - before[0], 2),
                round(time.time() - before[1], 2),
                round(trio.current_time() - before[0], 2),
            )

        return work

    right, fast = Machine(world, "right"), Machine(world, "fast", clock_rate=1.25)
    jumping = Machine(world, "jumping")
    for machine in (right, fast, jumping):
        machine.boot(look(machine))
    world.run(10)
    jumping.jump_clock(-3600)
    world.run(100)
    assert seen == {
        "fast": (80.0, 100.0, 80.0, 100.0),
        "right": (100.0, 100.0, 100.0, 100.0),
        "jumping": (100.0, 100.0, -3500.0, 100.0),
    }


# The network


def test_bytes_of_a_connection_keep_their_order(world: World) -> None:
    """However the latency is drawn, no segment overtakes another of its connection."""
    pair = Pair(world)
    sent = [b"%03d" % number for number in range(100)]
    for number, data in enumerate(sent):
        world.after(number * 0.0005, pair.send, data)
    world.run(1)
    assert pair.received == b"".join(sent)
    assert len(pair.log) > 10


def test_a_cut_link_loses_nothing_until_it_is_healed(world: World) -> None:
    """What was sent meanwhile arrives then."""
    pair = Pair(world)
    pair.network.cut("server", "client")
    pair.send(b"late")
    world.run(5)
    assert pair.received == b""
    pair.network.heal("server", "client")
    world.run(1)
    assert pair.received == b"late"


def test_a_one_way_cut_stops_one_direction(world: World) -> None:
    """The other direction goes on."""
    pair = Pair(world)
    pair.network.cut("client", "server")
    pair.send(b"arrives")
    assert pair.near is not None
    assert pair.far is not None
    pair.near.process.call(pair.near.transport.send_nowait, b"does not")
    world.run(1)
    assert pair.received == b"arrives"
    assert pair.far.arrived_bytes == 0


def test_an_end_whose_bytes_find_no_way_gives_up(world: World) -> None:
    """After the user timeout its connection is broken; the other end has heard nothing."""
    pair = Pair(world, user_timeout_s=3.0)
    assert pair.far is not None
    pair.network.cut("server", "client")
    pair.send(b"lost")
    open_at = []
    for _ in range(2):
        world.run(2.9)
        open_at.append(pair.far.is_open)
    assert open_at == [True, False]
    pair.network.heal("server", "client")
    world.run(60)
    assert pair.log == []


def test_a_reset_is_seen_at_both_ends(world: World) -> None:
    """The other end hears of it after the latency."""
    pair = Pair(world)
    assert pair.far is not None
    pair.far.reset()
    world.run(0.1)
    assert not pair.far.is_open
    assert pair.error_numbers == [errno.ECONNRESET]


def test_a_half_open_connection_is_noticed_by_who_sends(world: World) -> None:
    """One end is lost and the other hears nothing, until it sends: then it is reset."""
    pair = Pair(world)
    assert pair.far is not None
    assert pair.near is not None
    pair.far.break_with(errno.ETIMEDOUT)
    world.run(60)
    assert pair.near.is_open
    pair.near.process.call(pair.near.transport.send_nowait, b"anybody?")
    world.run(1)
    assert pair.error_numbers == [errno.ECONNRESET]


@pytest.mark.parametrize("how", ["close", "kill"])
def test_the_end_of_input_comes_after_the_last_byte(world: World, how: str) -> None:
    """So it is if a process closes a connection, and if the kernel does it after a kill."""
    pair = Pair(world)
    assert pair.far is not None
    pair.send(b"last words")
    if how == "close":
        pair.far.process.call(pair.far.transport.close)
    else:
        pair.server.kill()
    world.run(1)
    assert pair.log[-1] == b""
    assert pair.received == b"last words"


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_close_with_unread_input_resets(world: World, how: str) -> None:
    """As TCP does: the peer sees no end of input but an error."""
    pair = Pair(world)
    assert pair.near is not None
    assert pair.far is not None
    pair.near.process.call(pair.near.transport.send_nowait, b"nobody reads this")
    world.run(0.1)
    if how == "close":
        pair.far.process.call(pair.far.transport.close)
    else:
        pair.server.kill()
    world.run(1)
    assert pair.error_numbers == [errno.ECONNRESET]


def test_a_buffer_holds_a_limited_number_of_bytes(world: World) -> None:
    """A peer that does not read stops the sender at the size of both buffers."""
    pair = Pair(world, capacity_bytes=1000)
    assert pair.near is not None
    sent = 0
    for _ in range(100):
        sent += pair.near.transport.send_nowait(b"x" * 100)
        world.run(0.1)
    assert sent == 2000


def test_a_connection_is_refused_if_nobody_listens(world: World) -> None:
    """At once by a machine without a process; by one without power after the kernel's time-out."""
    network = Network(world)
    client, server = Machine(world, "client"), Machine(world, "server")
    failures = []

    async def connect() -> None:
        assert client.process is not None
        for host in ("server", "nowhere"):
            try:
                await network.connect(client.process, host, _PORT)
            except OSError as error:
                failures.append((error.errno, world.now_s > 100))

    client.boot(connect)
    world.run(1)
    server.lose_power()
    client.boot(connect)
    world.run(200)
    assert failures == [
        (errno.ECONNREFUSED, False),
        (errno.ENOENT, False),
        (errno.ETIMEDOUT, True),
        (errno.ENOENT, True),
    ]


# The disk


def test_power_loss_may_lose_what_was_not_synced_and_a_kill_does_not(world: World) -> None:
    """Synced content has to survive both."""
    machine = Machine(world, "one")

    def write(data: bytes, *, synced: bool) -> None:
        disk = machine.disk
        names = disk.files()
        file = disk.open("file") if "file" in names else disk.create("file")
        file.write(data, len(names.get("file", b"")))
        if synced:
            file.sync()
            disk.sync_folder()
        file.close()

    lost = 0
    for round_number in range(10):
        write(b"synced", synced=True)
        before = machine.disk.files()["file"]
        write(b"x" * 100, synced=False)
        machine.boot(lambda: _sleep(100))
        world.run(0.1)
        if round_number % 2:
            machine.kill()
            assert machine.disk.files()["file"] == before + b"x" * 100
        else:
            machine.lose_power()
            after = machine.disk.files()["file"]
            assert after.startswith(before)
            lost += after != before + b"x" * 100
    assert lost


# Seeds


@pytest.mark.parametrize(("seeds", "is_equal"), [((1, 1), True), ((1, 2), False)])
def test_the_seed_is_all_chance(seeds: tuple[int, int], is_equal: bool) -> None:
    """The same seed gives the same trace, with trio's order of tasks; another seed another one."""

    def hash_of(seed: int) -> str:
        world = World(seed)
        order: list[int] = []

        async def work() -> None:
            async def note(number: int) -> None:
                for _ in range(5):
                    await trio.lowlevel.checkpoint()
                    order.append(number)

            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(note, number)

        Machine(world, "one").boot(work)
        world.run(1)
        world.note("order", *order)
        world.close()
        return world.trace_hash

    one, other = map(hash_of, seeds)
    assert (one == other) is is_equal
