"""Nonsense to the HTTP API in this process, over unix sockets."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import trio

from tests.broker.support import check_balances
from tests.fuzz.http_cases import LOGGED
from tests.fuzz.parser import FuzzError
from tests.fuzz.sockets import http_connection, run_cases
from tests.fuzz.steady import TOPIC, SteadyPair, Talk
from tests.fuzz.watch import MIB, bounded_growth, no_traces, without_groups
from trionsq.broker.broker import Broker
from trionsq.daemon.listener import open_sockets
from trionsq.http.serve import serve_http
from trionsq.testing.memory import nsqd_in_memory

_GROWTH_NBYTES_MAX: Final = 200 * MIB


async def _run(count: int, seed: int, path: str) -> Counter[str]:
    statuses: Counter[str] = Counter()

    async def one(number: int) -> None:
        try:
            statuses[await http_connection(path, seed, number)] += 1
        except Exception as error:
            raise FuzzError(f"http, seed {seed}, case {number}: {error!r}") from error

    async with (
        nsqd_in_memory(
            seed=seed, mem_queue_size=100, max_msg_size=100_000, max_body_size=400_000
        ) as broker,
        trio.open_nursery() as nursery,
    ):
        (sock,) = await open_sockets(path)
        await nursery.start(_serve, broker, sock)
        pair = SteadyPair(Talk.in_memory(broker), Talk.in_memory(broker))
        await nursery.start(pair.run)

        async def tidy() -> None:
            check_balances(broker)
            for name in broker.topics.keys() - {TOPIC, LOGGED}:
                broker.delete_topic(name)

        await run_cases(count, one, tidy)
        await tidy()
        assert broker.client_failures == 0
        statuses["rounds of the pair"] = pair.rounds
        nursery.cancel_scope.cancel()
    return statuses


async def _serve(broker: Broker, sock: object, task_status: trio.TaskStatus[None]) -> None:
    await serve_http(broker, sock, task_status=task_status)  # type: ignore[arg-type]


def fuzz_http(count: int, seed: int) -> Counter[str]:
    """Run ``count`` connections; how they were answered.

    Raises:
        FuzzError: with the seed and the number of the case.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fuzz") as folder,
        no_traces(),
        bounded_growth(_GROWTH_NBYTES_MAX),
        without_groups(),
    ):
        return trio.run(_run, count, seed, str(Path(folder) / "http.sock"))
