"""One run: load, a stop amid it, a start with the same folder, everything consumed, judged."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import trio

from tests.drill.account import Account, Judgement, judge
from tests.drill.connection import (
    ConnectionEndedError,
    NsqConnection,
    http_request,
    read_stats,
)
from tests.drill.load import Consumer, Delays, Publisher
from tests.drill.plan import Plan
from tests.golden.diskqueue import QUEUE_FILES, queue_of_file, read_meta
from tests.processes import NsqdProcess, running_nsqd
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, MessageFrame

EXIT_LIMIT_S = 30.0
LAST_WORDS_LIMIT_S = 5.0
DRAIN_LIMIT_S = 90.0
POLL_S = 0.1
EMPTY_POLLS = 3
EMPTY_POLLS_WITH_MISSING = 20
READY_COUNT = 2500
PAUSE_AT = 0.7
"""The part of the load's time after which a topic is paused."""
SIDECARS = "*.diskqueue.deferred.dat"


class StrangeMessageError(Exception):
    """A message was delivered that was never published to its topic, or is damaged."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run asks for: a clean stop or a kill, and whether nsqd remembers due times."""

    is_clean: bool = True
    keeps_delays: bool = True


async def run_drill(plan: Plan, folder: Path, terms: Terms) -> Judgement:
    """Run the plan in the empty ``folder``; every wait is bounded.

    Raises:
        NsqdFailedError: an nsqd did not start, or needed SIGKILL to end.
        Exception: the run itself broke; to be told as a failure of its seed.
    """
    account = Account(plan.channels)
    faults: list[str] = []
    async with running_nsqd(folder, plan.flags) as nsqd:
        await _create_channels(nsqd, plan)
        exit_code = await _load_and_stop(nsqd, plan, account, terms)
        if terms.is_clean and exit_code != 0:
            faults.append(f"exit code {exit_code} at the stop:\n{nsqd.log_tail()}")
    async with running_nsqd(folder, plan.flags) as nsqd:
        account.restarted()
        if terms.is_clean:
            faults += await _check_paused(nsqd, plan)
        faults += await _drain(nsqd, plan, account)
        nsqd.process.send_signal(signal.SIGTERM)
        if (exit_code := await _exit_code(nsqd)) != 0:
            faults.append(f"exit code {exit_code} at the second stop:\n{nsqd.log_tail()}")
    if terms.is_clean:
        faults += _left_on_disk(folder)
    judgement = judge(account, is_clean=terms.is_clean, keeps_delays=terms.keeps_delays)
    return Judgement(judgement.counts, (*judgement.faults, *faults))


async def _create_channels(nsqd: NsqdProcess, plan: Plan) -> None:
    """Every channel is there before the first message, and so is owed every message."""
    for topic in sorted({topic for topic, _ in plan.channels}):
        await http_request(nsqd.http_address, "POST", f"/topic/create?topic={topic}")
    for topic, channel in plan.channels:
        path = f"/channel/create?topic={topic}&channel={channel}"
        await http_request(nsqd.http_address, "POST", path)


async def _load_and_stop(
    nsqd: NsqdProcess, plan: Plan, account: Account, terms: Terms
) -> int | None:
    """The load, and amid it the signal; what nsqd exits with, None if it does not."""
    stop_at_s = trio.current_time() + plan.load_s
    async with trio.open_nursery() as load:
        for consumer in plan.consumers:
            rng = Random(f"{plan.seed} {consumer.name}")
            delays = Delays(rng, stop_at_s)
            await load.start(Consumer(consumer, rng, delays, account).run, nsqd)
        for publisher in plan.publishers:
            rng = Random(f"{plan.seed} {publisher.name}")
            delays = Delays(rng, stop_at_s)
            load.start_soon(Publisher(publisher, rng, delays, account).run, nsqd)
        await trio.sleep(plan.load_s * PAUSE_AT)
        if plan.paused_topic:
            path = f"/topic/pause?topic={plan.paused_topic}"
            await http_request(nsqd.http_address, "POST", path)
        await trio.sleep_until(stop_at_s)
        account.counts += _held_by(await read_stats(nsqd.http_address))
        account.is_signalled = True
        signalled_s = account.clock()
        nsqd.process.send_signal(signal.SIGTERM if terms.is_clean else signal.SIGKILL)
        exit_code = await _exit_code(nsqd)
        account.counts["stop_ms"] = round((account.clock() - signalled_s) * 1000)
        load.cancel_scope.deadline = trio.current_time() + LAST_WORDS_LIMIT_S
    return exit_code


def _held_by(topics: list[dict[str, Any]]) -> Counter[str]:
    """Where messages are just before the stop; a message counts at each of its channels."""
    channels = [channel for topic in topics for channel in topic["channels"]]
    queues = [*topics, *channels]
    return Counter(
        at_topic_at_stop=sum(topic["depth"] for topic in topics),
        at_channel_at_stop=sum(channel["depth"] for channel in channels),
        on_disk_at_stop=sum(queue["backend_depth"] for queue in queues),
        in_flight_at_stop=sum(channel["in_flight_count"] for channel in channels),
        deferred_at_stop=sum(channel["deferred_count"] for channel in channels),
    )


async def _exit_code(nsqd: NsqdProcess) -> int | None:
    with trio.move_on_after(EXIT_LIMIT_S):
        return await nsqd.process.wait()
    return None


async def _check_paused(nsqd: NsqdProcess, plan: Plan) -> list[str]:
    topics = await read_stats(nsqd.http_address)
    paused = {topic["topic_name"] for topic in topics if topic["paused"]}
    expected = {plan.paused_topic} - {None}
    return [] if paused == expected else [f"paused after the restart: {paused}, not {expected}"]


async def _drain(nsqd: NsqdProcess, plan: Plan, account: Account) -> list[str]:
    """Consume every channel until nsqd holds nothing; a fault if it never comes to that."""
    async with trio.open_nursery() as consumers:
        for channel in plan.channels:
            await consumers.start(_finish_all, nsqd, channel, account)
        if plan.paused_topic:
            path = f"/topic/unpause?topic={plan.paused_topic}"
            await http_request(nsqd.http_address, "POST", path)
        with trio.move_on_after(DRAIN_LIMIT_S) as limit:
            await _until_empty(nsqd, account)
        consumers.cancel_scope.cancel()
    if limit.cancelled_caught:
        return [f"not empty {DRAIN_LIMIT_S} s after the restart:\n{nsqd.log_tail()}"]
    return []


async def _finish_all(
    nsqd: NsqdProcess,
    channel: tuple[str, str],
    account: Account,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with await NsqConnection.open(nsqd.tcp_address) as connection:
        await connection.subscribe(*channel, READY_COUNT)
        task_status.started()
        while True:
            lines: list[bytes] = []
            for frame in await connection.frames():
                if isinstance(frame, MessageFrame):
                    if not account.receive(channel, frame):
                        # Not even its id may be one, so that it could not be finished.
                        raise StrangeMessageError(f"{channel} got {frame}")
                    lines.append(commands.finish(frame.message_id))
                elif isinstance(frame, ErrorFrame) and frame.code == "E_FIN_FAILED":
                    # The same message in flight twice: a kill may leave it in two queues.
                    account.counts["fin_refused_after_restart"] += 1
                else:
                    raise ConnectionEndedError(f"{channel}: {frame}")
            await connection.send(b"".join(lines))


async def _until_empty(nsqd: NsqdProcess, account: Account) -> None:
    """Until nsqd says several times running that it holds nothing.

    A message on its way from a topic to its channels may be in no count for a moment: if some
    are missing, it is asked for longer.
    """
    held = ("at_topic_at_stop", "at_channel_at_stop", "in_flight_at_stop", "deferred_at_stop")
    empty_polls = 0
    while empty_polls < EMPTY_POLLS_WITH_MISSING:
        counts = _held_by(await read_stats(nsqd.http_address))
        empty_polls = 0 if any(counts[name] for name in held) else empty_polls + 1
        if empty_polls >= EMPTY_POLLS and not any(account.missing()):
            return
        await trio.sleep(POLL_S)


def _left_on_disk(folder: Path) -> list[str]:
    """Depths that are not zero, and due times, in a folder whose messages are all consumed."""
    queues = {queue_of_file(path.name) for path in folder.glob(QUEUE_FILES)} - {None}
    depths = {queue: read_meta(folder, queue).depth for queue in queues if queue is not None}
    left = [f"{queue}: depth {depth} left on disk" for queue, depth in depths.items() if depth]
    return left + [f"{path.name} left" for path in folder.glob(SIDECARS)]
