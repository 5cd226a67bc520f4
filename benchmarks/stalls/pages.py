"""Loads of those who look: pages of 5,000 channels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.capacity.topics import write_metadata
from benchmarks.stalls.stage import Stage

TOPICS = 2_500
EACH = 2
POLLERS = 5
PAGES = ("/stats?format=json", "/stats", "/metrics", "/debug/tasks", "/debug/loop?seconds=0.1")


def pages(stage: Stage) -> None:
    """Each page once, then /stats by several at once, as dashboards do."""
    topics = stage.some(TOPICS)
    with stage.folder() as folder:
        write_metadata(folder, topics, EACH)
        with stage.nsqd(folder=folder) as nsqd:
            for page in PAGES:
                with stage.watch(nsqd, f"{topics * EACH:,} channels: {page}"):
                    nsqd.get(page)
            with (
                stage.watch(nsqd, f"{topics * EACH:,} channels: {POLLERS} ask for /stats at once"),
                ThreadPoolExecutor(POLLERS) as pool,
            ):
                list(pool.map(nsqd.get, ["/stats?format=json"] * POLLERS))
