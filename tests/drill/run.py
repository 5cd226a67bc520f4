"""One run: load, something done to nsqd amid it, a start with its folder, all consumed, judged."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from tests.drill.account import NSQD, Account, Judgement, judge
from tests.drill.connection import (
    ConnectionEndedError,
    http_request,
    read_stats,
)
from tests.drill.drain import finish_all, held_by, places_of, queues_of, until_empty
from tests.drill.load import Consumer, Delays, Gate, Publisher
from tests.drill.plan import ConsumerPlan, Plan
from tests.golden.diskqueue import QUEUE_FILES, queue_of_file, read_meta
from tests.processes import NsqdProcess, free_address, nsqd_command, running_nsqd
from tests.promises.checks import ChannelKey

EXIT_LIMIT_S = 30.0
LAST_WORDS_LIMIT_S = 5.0
DRAIN_LIMIT_S = 90.0
LATE_AT: Final = 0.4
PAUSE_AT: Final = 0.7
"""The parts of the load's time after which a late channel is made, and a topic is paused."""
PAUSE_S: Final = (0.2, 1.5)
STILL_S: Final = 0.05
STILL_POLLS: Final = 40
IDLE_S: Final = 0.3
SYNC_S: Final = 4.0
"""What a sync takes at most, on a busy machine."""
SIDECARS = "*.diskqueue.deferred.dat"


async def run_drill(plan: Plan, folder: Path, *, keeps_delays: bool = True) -> Judgement:
    """Run the plan in the empty ``folder``; every wait is bounded.

    Args:
        plan: of the run.
        folder: nsqd's.
        keeps_delays: nsqd remembers due times; the original does not.

    Raises:
        NsqdFailedError: an nsqd did not start, or needed SIGKILL to end.
        Exception: the run itself broke; to be told as a failure of its seed.
    """
    return await _Run(plan, folder, keeps_delays=keeps_delays).judged()


class _Run:
    """What the parts of a run share."""

    def __init__(self, plan: Plan, folder: Path, *, keeps_delays: bool) -> None:
        self._plan = plan
        self._kind = plan.kind
        self._folder = folder
        self._keeps_delays = keeps_delays
        self._account = Account(plan.channels)
        self._gate = Gate()
        self._rng = Random(f"{plan.seed} run")
        self._faults: list[str] = []
        # How long a start takes.
        self._start_s = 0.0

    async def judged(self) -> Judgement:
        """Run it."""
        kind, account = self._kind, self._account
        began_s = trio.current_time()
        async with self._running() as nsqd:
            self._start_s = trio.current_time() - began_s
            await self._create_channels(nsqd)
            await self._load(nsqd)
            if kind.end is None:
                await self._drain(nsqd)
                await self._end(nsqd)
        if kind.end is not None:
            backlogs = _backlogs(self._folder, {topic for topic, _ in self._plan.channels})
            for _ in range(kind.idle_ends):
                await self._start_in_vain()
            if kind.idle_end is signal.SIGKILL:
                self._note_idle_kills(backlogs)
            async with self._running() as nsqd:
                account.restarted()
                if kind.is_clean:
                    await self._check_paused(nsqd)
                await self._drain(nsqd)
                await self._end(nsqd)
        if kind.is_clean:
            self._faults += _left_on_disk(self._folder)
        judgement = judge(account, is_clean=kind.is_clean, keeps_delays=self._keeps_delays)
        return Judgement(judgement.counts, (*judgement.faults, *self._faults))

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[NsqdProcess]:
        """An nsqd with the folder; what breaks the run carries the end of its log."""
        async with running_nsqd(self._folder, self._plan.flags) as nsqd:
            try:
                yield nsqd
            except Exception as error:
                error.add_note(f"exit code {nsqd.process.poll()}, log:\n{nsqd.log_tail()}")
                raise

    async def _create_channels(self, nsqd: NsqdProcess) -> None:
        """Every channel is there before the first message, and so is owed every message."""
        for topic in sorted({topic for topic, _ in self._plan.channels}):
            await http_request(nsqd.http_address, "POST", f"/topic/create?topic={topic}")
        for channel in self._plan.channels:
            await _create_channel(nsqd, channel)

    # The load, and what happens amid it

    async def _load(self, nsqd: NsqdProcess) -> None:
        plan, kind, account = self._plan, self._kind, self._account
        began_s = trio.current_time()
        stop_at_s = began_s + plan.load_s
        async with trio.open_nursery() as load:
            for consumer in plan.consumers:
                await load.start(self._consumer(consumer, stop_at_s).run, nsqd)
            for publisher in plan.publishers:
                rng = Random(f"{plan.seed} {publisher.name}")
                delays = self._delays(rng, stop_at_s)
                more = {"deferred_share": 1.0} if kind.defers_all else {}
                made = Publisher(publisher, rng, delays, account, self._gate, **more)
                load.start_soon(made.run, nsqd)
            await trio.sleep_until(began_s + plan.load_s * LATE_AT)
            if await self._make_late_channel(nsqd):
                account.counts["late_channels"] += 1
                await load.start(self._consumer(plan.late, stop_at_s).run, nsqd)
            for _ in range(kind.pauses):
                await self._pause(nsqd)
            await trio.sleep_until(began_s + plan.load_s * PAUSE_AT)
            if plan.paused_topic:
                path = f"/topic/pause?topic={plan.paused_topic}"
                await http_request(nsqd.http_address, "POST", path)
            await trio.sleep_until(stop_at_s)
            if kind.end is None:
                account.counts += held_by(await read_stats(nsqd.http_address))
                load.cancel_scope.cancel()
            else:
                await self._stop_amid_load(nsqd, kind.end)
                load.cancel_scope.deadline = trio.current_time() + LAST_WORDS_LIMIT_S

    def _consumer(self, plan: ConsumerPlan, stop_at_s: float) -> Consumer:
        rng = Random(f"{self._plan.seed} {plan.name}")
        delays = self._delays(rng, stop_at_s)
        timeout_s = self._kind.msg_timeout_s
        return Consumer(plan, rng, delays, self._account, self._gate, timeout_s)

    def _delays(self, rng: Random, stop_at_s: float) -> Delays:
        return Delays(rng, stop_at_s, (1 + self._kind.idle_ends) * self._start_s)

    async def _stop_amid_load(self, nsqd: NsqdProcess, end: signal.Signals) -> None:
        account = self._account
        if self._plan.is_quiet and end is signal.SIGKILL:
            self._gate.close()
            stats, asked_s, is_exact = await self._still_stats(nsqd)
        else:
            asked_s, is_exact = account.clock(), False
            stats = await read_stats(nsqd.http_address)
        signalled_s = account.clock()
        nsqd.process.send_signal(end)
        account.is_signalled = True
        self._gate.open()
        account.counts += held_by(stats)
        if end is signal.SIGKILL and self._kind.keeps_all:
            account.allowance.killed.add(NSQD)
        elif end is signal.SIGKILL:
            ready: Counter[ChannelKey] = Counter()
            for consumer in (*self._plan.consumers, self._plan.late):
                ready[consumer.topic, consumer.channel] += consumer.ready_count
            sync_s = self._kind.sync_timeout_s + SYNC_S
            account.note_kill(stats, ready, asked_s, is_exact=is_exact, sync_s=sync_s)
            account.counts["killed_in_quiet"] += is_exact
        exit_code = await _exit_code(nsqd)
        account.counts["stop_ms"] = round((account.clock() - signalled_s) * 1000)
        if end is signal.SIGTERM and exit_code != 0:
            self._faults.append(f"exit code {exit_code} at the stop:\n{nsqd.log_tail()}")

    async def _still_stats(self, nsqd: NsqdProcess) -> tuple[list[dict[str, Any]], float, bool]:
        """The newest /stats, when they were asked for, and whether all stays as they say."""
        before: object = None
        for _ in range(STILL_POLLS):
            asked_s = self._account.clock()
            stats = await read_stats(nsqd.http_address)
            now = [places_of(queue) for queue in queues_of(stats)]
            if now == before:
                return stats, asked_s, True
            before = now
            await trio.sleep(STILL_S)
        return stats, asked_s, False

    async def _pause(self, nsqd: NsqdProcess) -> None:
        pause_s = self._rng.uniform(*PAUSE_S)
        now_s = self._account.clock()
        self._account.note_disturbance(now_s, now_s + pause_s + self._kind.msg_timeout_s)
        nsqd.process.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(pause_s)
        finally:
            nsqd.process.send_signal(signal.SIGCONT)
        self._account.counts["paused"] += 1
        await trio.sleep(self._rng.uniform(0.05, 0.3))

    async def _make_late_channel(self, nsqd: NsqdProcess) -> bool:
        """Make a channel while its topic keeps nothing, if that can be seen."""
        topic, channel = self._plan.late.topic, self._plan.late.channel
        for _ in range(5):
            asked_s = self._account.clock()
            depths = set()
            for _ in range(2):
                stats = await read_stats(nsqd.http_address)
                depths |= {one["depth"] for one in stats if one["topic_name"] == topic}
            if depths == {0}:
                await _create_channel(nsqd, (topic, channel))
                self._account.made_s[topic, channel] = asked_s
                return True
        return False

    # Starts

    async def _start_in_vain(self) -> None:
        """Start nsqd, and end it soon, without a client."""
        if self._kind.idle_end is signal.SIGTERM:
            async with running_nsqd(self._folder, self._plan.flags) as nsqd:
                self._account.restarted()
                await trio.sleep(IDLE_S)
                await self._end(nsqd)
            return
        http_address = free_address()
        places = [f"--{name}-address=127.0.0.1:0" for name in ("tcp", "https")]
        process = await trio.lowlevel.open_process(
            [
                *nsqd_command(),
                *places,
                f"--http-address={http_address}",
                f"--data-path={self._folder}",
                *self._plan.flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._account.restarted()
        await trio.sleep(self._start_s * self._rng.uniform(0.5, 1.3))
        answers = False
        with trio.move_on_after(0.05), suppress(ConnectionEndedError):
            await read_stats(http_address)
            answers = True
        self._account.counts["killed_after_start" if answers else "killed_in_start"] += 1
        process.kill()
        await process.wait()

    def _note_idle_kills(self, backlogs: dict[str, int]) -> None:
        """What waited at a topic, in its file, may have come to the memory of channels."""
        account = self._account
        account.allowance.killed.add(NSQD)
        memory = self._kind.idle_ends * int(self._plan.flags[0].partition("=")[2])
        for topic, channel in self._plan.channels:
            account.allowance.note_memory(NSQD, topic, channel, min(memory, backlogs[topic]))

    async def _end(self, nsqd: NsqdProcess) -> None:
        nsqd.process.send_signal(signal.SIGTERM)
        if (exit_code := await _exit_code(nsqd)) != 0:
            self._faults.append(f"exit code {exit_code} at a later stop:\n{nsqd.log_tail()}")

    async def _check_paused(self, nsqd: NsqdProcess) -> None:
        topics = await read_stats(nsqd.http_address)
        paused = {topic["topic_name"] for topic in topics if topic["paused"]}
        expected = {self._plan.paused_topic} - {None}
        if paused != expected:
            self._faults.append(f"paused after the restart: {paused}, not {expected}")

    # The rest

    async def _drain(self, nsqd: NsqdProcess) -> None:
        """Consume every channel until nsqd holds nothing; a fault if it never comes to that."""
        account = self._account
        async with trio.open_nursery() as consumers:
            for channel in (*account.channels, *account.made_s):
                await consumers.start(partial(finish_all, nsqd, channel, account))
            if self._plan.paused_topic:
                path = f"/topic/unpause?topic={self._plan.paused_topic}"
                await http_request(nsqd.http_address, "POST", path)
            with trio.move_on_after(DRAIN_LIMIT_S) as limit:
                await until_empty(nsqd, account)
            consumers.cancel_scope.cancel()
        if limit.cancelled_caught:
            self._faults.append(f"not empty after {DRAIN_LIMIT_S} s:\n{nsqd.log_tail()}")


async def _create_channel(nsqd: NsqdProcess, channel: ChannelKey) -> None:
    path = f"/channel/create?topic={channel[0]}&channel={channel[1]}"
    await http_request(nsqd.http_address, "POST", path)


async def _exit_code(nsqd: NsqdProcess) -> int | None:
    with trio.move_on_after(EXIT_LIMIT_S):
        return await nsqd.process.wait()
    return None


def _backlogs(folder: Path, topics: set[str]) -> dict[str, int]:
    """How many messages wait in the files of each topic."""
    files = {queue_of_file(path.name) for path in folder.glob(QUEUE_FILES)}
    return {topic: read_meta(folder, topic).depth if topic in files else 0 for topic in topics}


def _left_on_disk(folder: Path) -> list[str]:
    """Depths that are not zero, and due times, in a folder whose messages are all consumed."""
    queues = {queue_of_file(path.name) for path in folder.glob(QUEUE_FILES)} - {None}
    depths = {queue: read_meta(folder, queue).depth for queue in queues if queue is not None}
    left = [f"{queue}: depth {depth} left on disk" for queue, depth in depths.items() if depth]
    return left + [f"{path.name} left" for path in folder.glob(SIDECARS)]
