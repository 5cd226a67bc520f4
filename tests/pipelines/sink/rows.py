"""Shared by the sink's tests: record batches, options, and the messages at nsqd in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import trio

from pipelines.sink.options import SinkOptions
from trionsq.client import Config, Consumer

LIMIT_S = 180.0


def options(*addresses: str, **more: str) -> SinkOptions:
    """Options for topic t and these nsqds; dots in names are two underscores."""
    given = {"topic": "t", "nsqd.tcp.addresses": ",".join(addresses)}
    given |= {name.replace("__", "."): told for name, told in more.items()}
    return SinkOptions.read({name: told for name, told in given.items() if told})


def batch(bodies: Sequence[Any], **columns: Sequence[Any]) -> pa.RecordBatch:
    """A record batch of bodies, with further columns."""
    return pa.record_batch({"body": pa.array(bodies), **columns})


def numbers(start: int, end: int, step: int = 1000) -> Iterator[pa.RecordBatch]:
    """Record batches whose bodies are these numbers."""
    for first in range(start, end, step):
        yield batch([b"%d" % number for number in range(first, min(first + step, end))])


def taken(address: str, count: int, topic: str = "t") -> list[bytes]:
    """So many bodies from a new channel; what a short wait brings after them, too."""
    return trio.run(_take, address, count, topic)


async def _take(address: str, count: int, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with trio.fail_after(LIMIT_S):
        async with Consumer(
            topic,
            "c",
            nsqd_tcp_addresses=[address],
            config=Config(dial_timeout_s=LIMIT_S, max_in_flight=2000),
        ) as consumer:
            batches = consumer.batches()
            while len(found) < count:
                got = await anext(batches)
                found += got.bodies
                got.finish()
    return found
