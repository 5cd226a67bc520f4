"""What nsqd holds, and consuming all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import trio

from tests.drill.account import Account
from tests.drill.connection import ConnectionEndedError, NsqConnection, read_stats
from tests.processes import NsqdProcess
from tests.promises.checks import ChannelKey
from tests.promises.ledger import Delivery
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, MessageFrame

__all__ = ["StrangeMessageError", "finish_all", "held_by", "places_of", "queues_of", "until_empty"]

POLL_S: Final = 0.1
EMPTY_POLLS: Final = 3
EMPTY_POLLS_WITH_MISSING: Final = 20
READY_COUNT: Final = 2500


class StrangeMessageError(Exception):
    """A message was delivered that was never published to its topic, or is damaged."""


def queues_of(topics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Topics and channels of /stats."""
    return [*topics, *(channel for topic in topics for channel in topic["channels"])]


def places_of(queue: dict[str, Any]) -> tuple[int, ...]:
    """How many of its messages are in memory, and how many in files."""
    held = queue["depth"] + queue.get("in_flight_count", 0) + queue.get("deferred_count", 0)
    return held, queue["backend_depth"]


def held_by(topics: Sequence[dict[str, Any]]) -> Counter[str]:
    """Where messages are just before the stop; a message counts at each of its channels."""
    channels = [channel for topic in topics for channel in topic["channels"]]
    return Counter(
        at_topic_at_stop=sum(topic["depth"] for topic in topics),
        at_channel_at_stop=sum(channel["depth"] for channel in channels),
        on_disk_at_stop=sum(queue["backend_depth"] for queue in queues_of(topics)),
        in_flight_at_stop=sum(channel["in_flight_count"] for channel in channels),
        deferred_at_stop=sum(channel["deferred_count"] for channel in channels),
        timed_out=sum(channel["timeout_count"] for channel in channels),
    )


async def finish_all(
    nsqd: NsqdProcess,
    channel: ChannelKey,
    account: Account,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Finish every message of a channel; started when subscribed."""
    # By id: what was finished last.
    finished: dict[bytes, Delivery] = {}
    async with await NsqConnection.open(nsqd.tcp_address) as connection:
        await connection.subscribe(*channel, READY_COUNT)
        task_status.started()
        while True:
            lines: list[bytes] = []
            for frame in await connection.frames():
                if isinstance(frame, MessageFrame):
                    delivery = account.receive(channel, frame, "drain")
                    if delivery is None:
                        # Not even its id may be one, so that it could not be finished.
                        raise StrangeMessageError(f"{channel} got {frame}")
                    delivery.answer = "FIN"
                    finished[frame.message_id] = delivery
                    lines.append(commands.finish(frame.message_id))
                elif isinstance(frame, ErrorFrame) and frame.code == "E_FIN_FAILED":
                    # It timed out, or is in flight twice: a kill may leave it in two queues.
                    account.counts["fin_refused_in_drain"] += 1
                    finished[frame.text.split(b" ")[1]].answer = "refused"
                else:
                    raise ConnectionEndedError(f"{channel}: {frame}")
            await connection.send(b"".join(lines))


async def until_empty(nsqd: NsqdProcess, account: Account) -> None:
    """Until nsqd says several times running that it holds nothing.

    A message on its way from a topic to its channels may be in no count for a moment: if some
    are missing, it is asked for longer.
    """
    held = ("at_topic_at_stop", "at_channel_at_stop", "in_flight_at_stop", "deferred_at_stop")
    empty_polls = 0
    while empty_polls < EMPTY_POLLS_WITH_MISSING:
        counts = held_by(await read_stats(nsqd.http_address))
        empty_polls = 0 if any(counts[name] for name in held) else empty_polls + 1
        if empty_polls >= EMPTY_POLLS and not account.lacks_any():
            break
        await trio.sleep(POLL_S)
    account.counts["timed_out"] += counts["timed_out"]
