"""/metrics, /live and /ready of nsqlookupd (lookupd.metrics, trionsq.web.diagnostics)."""

from __future__ import annotations

import json
from collections import deque

from prometheus_client.parser import text_string_to_metric_families

from lookupd.api import lookupd_app
from lookupd.daemon import running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from lookupd.registry import Registry
from tests.lookupd.support import producer
from trionsq import httpget

SECOND_NS = 10**9


async def test_topics_and_producers_are_counted() -> None:
    """A producer that is silent or tombstoned is not counted where lookups leave it out."""
    registry = Registry(300 * SECOND_NS, 45 * SECOND_NS)
    now_ns = 1000 * SECOND_NS
    fresh, silent = producer(1, now_ns), producer(2, 0)
    for one in (fresh, silent):
        registry.add_producer(one)
        registry.register(one, "t", "c")
    registry.register(fresh, "hidden")
    deque(registry.tombstone("hidden", fresh.node, now_ns), 0)
    app = lookupd_app(registry, NsqlookupdOptions(), lambda: now_ns)
    text = await (await app.test_client().get("/metrics")).get_data(as_text=True)
    seen = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert seen[("nsqlookupd_topics",)] == 2
    assert seen[("nsqlookupd_producers",)] == 2
    assert seen[("nsqlookupd_active_producers",)] == 1
    assert seen[("nsqlookupd_topic_producers", "t")] == 1
    assert seen[("nsqlookupd_topic_channels", "t")] == 1
    assert seen[("nsqlookupd_topic_producers", "hidden")] == 0
    assert "process_cpu_seconds_total" in text
    assert "nsqlookupd_build_info{" in text


async def test_a_running_nsqlookupd_answers_all_three() -> None:
    """On its HTTP port; it is ready as long as it lives."""
    options = NsqlookupdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    async with running_nsqlookupd(options) as lookupd:
        for path, status in (("/live", "live"), ("/ready", "ready")):
            url = f"http://127.0.0.1:{lookupd.http_port}{path}"
            answer = await httpget.get(url, {}, 5.0, 5.0, 10_000)
            assert (answer.status, json.loads(answer.body)) == (200, {"status": status})
        url = f"http://127.0.0.1:{lookupd.http_port}/metrics"
        answer = await httpget.get(url, {}, 5.0, 5.0, 1_000_000)
        assert b"nsqlookupd_event_loop_lag_seconds_bucket" in answer.body
