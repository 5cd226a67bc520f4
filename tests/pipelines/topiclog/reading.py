"""Shared by the tests of ``mode=log``: readers, called as Spark calls them, and a log to read."""

from __future__ import annotations

import json
import pickle
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from pipelines.schema import ARROW_SCHEMA
from pipelines.topiclog.batch import TopicLogBatchReader
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.stream import TopicLogStreamReader
from pipelines.topiclog.tasks import RangePartition
from tests.pipelines.source.publishing import publish, wait_until

ALL = ReadAllAvailable()
LOG = {"storage": "log", "durability": "always"}
"""Options of an nsqd."""


def options(*nsqds: str, **more: str) -> dict[str, str]:
    return {
        "mode": "log",
        "topic": "t",
        "nsqd.http.addresses": ",".join(nsqds),
        "startingOffsets": "earliest",
        "nsqdTimeout": "10s",
    } | {name.replace("client_", "client."): text for name, text in more.items()}


def stream_of(*nsqds: str, **more: str) -> TopicLogStreamReader:
    return TopicLogStreamReader(TopicLogOptions.read_stream(options(*nsqds, **more)))


def bodies_of(
    reader: TopicLogStreamReader | TopicLogBatchReader, partitions: Sequence[Any]
) -> list[bytes]:
    """What the tasks read, in order; reader and partitions are pickled as Spark pickles them."""
    remote = pickle.loads(pickle.dumps(reader))
    found: list[bytes] = []
    for partition in partitions:
        assert isinstance(partition, RangePartition)
        for batch in remote.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.equals(ARROW_SCHEMA)
            found += batch["body"].to_pylist()
    return found


def microbatch(
    reader: TopicLogStreamReader, start: dict[str, Any], limit: ReadLimit = ALL
) -> tuple[dict[str, Any], list[bytes]]:
    """The next offset, and the bodies up to it; offsets are as the checkpoint gives them back."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, bodies_of(reader, reader.partitions(start, end))


def published(http_address: str, bodies: Sequence[bytes], topic: str = "t") -> None:
    """Publish, and wait until the log shows them."""
    before = count_of(http_address, topic)
    publish(http_address, topic, bodies)
    wait_until(lambda: count_of(http_address, topic) >= before + len(bodies))


def count_of(http_address: str, topic: str = "t") -> int:
    """The end of the topic's log; 0 without the topic."""
    url = f"http://{http_address}/topic/log?topic={topic}&from=end&to=0"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(json.loads(answer.readline())["from"])
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return 0


def post(http_address: str, path: str, **values: str) -> None:
    request = f"http://{http_address}{path}?{urlencode(values)}"
    with urllib.request.urlopen(request, b"", timeout=60) as answer:
        answer.read()


def depth_of(http_address: str, channel: str = "c") -> int:
    """The depth of a channel of the topic."""
    url = f"http://{http_address}/stats?format=json&topic=t&channel={channel}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        (topic,) = json.load(answer)["topics"]
    (one,) = topic["channels"]
    return int(one["depth"])


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def now_ms() -> str:
    return str(time.time_ns() // 1_000_000)
