"""The loads by name, in the table's order."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.stalls.cluster import admin, lookupd, registering
from benchmarks.stalls.consumers import come_and_go, in_flight, late_answers, tiny_messages
from benchmarks.stalls.logs import (
    log_consumers,
    log_deferred,
    log_fragments,
    log_publishers,
    log_readers,
    log_topics,
)
from benchmarks.stalls.pages import pages
from benchmarks.stalls.policies import many_policies
from benchmarks.stalls.queues import (
    deferred,
    empty_disk,
    many_channels,
    many_topics,
    singles,
)
from benchmarks.stalls.stage import Stage

Shape = Callable[[Stage], None]

SHAPES: dict[str, Shape] = {
    "late": late_answers,
    "deferred": deferred,
    "empty-disk": empty_disk,
    "pages": pages,
    "in-flight": in_flight,
    "consumers": come_and_go,
    "singles": singles,
    "channels": many_channels,
    "topics": many_topics,
    "policies": many_policies,
    "tiny": tiny_messages,
    "log-publishers": log_publishers,
    "log-consumers": log_consumers,
    "log-deferred": log_deferred,
    "log-fragments": log_fragments,
    "log-readers": log_readers,
    "log-topics": log_topics,
    "registering": registering,
    "nsqlookupd": lookupd,
    "nsqadmin": admin,
}
"""Each puts on its loads, one row for each."""
