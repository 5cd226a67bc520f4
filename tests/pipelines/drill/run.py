"""One drill: a stream, everything that can break it, and what its table has in the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from tests.pipelines.cluster.standalone import Cluster, standalone_cluster
from tests.pipelines.drill.disk import SmallDisk, small_disk
from tests.pipelines.drill.processes import (
    LIMIT_S,
    Driver,
    Nsqd,
    batches_in,
    kill_executor,
    rows_in,
)
from tests.pipelines.drill.publisher import Publisher, body_of
from tests.pipelines.settings import MASTER
from tests.pipelines.source.driver import begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["FAULTS", "TOPIC", "Plan", "judged", "run_drill"]

TOPIC: Final = "t"
FAULTS: Final = (
    "drivers_killed",
    "executors_killed",
    "nsqd_restarted",
    "disk_filled",
    "redeliveries_dropped",
)
_FULL_S: Final = 2.0
# Past msgTimeoutMs of the drilled query.
_FROZEN_S: Final = 7.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done.

    Attributes:
        messages: published by four parts, one from each kill on.
        batch: messages of a batch at most.
        is_standalone: in a standalone cluster of its own, else in ``local[2,3]``.
    """

    messages: int
    batch: int
    is_standalone: bool

    def share(self, part: int) -> int:
        """How many are published after so many parts."""
        return self.messages * part // 4


@dataclass(slots=True)
class _Stage:
    """What runs, and what was done to it."""

    plan: Plan
    folder: Path
    nsqd: Nsqd
    disk: SmallDisk | None
    cluster: Cluster | None
    publisher: Publisher
    counts: Counter[str]

    def publish_more(self, part: int, driver: Driver) -> None:
        """Have one part in so many of all published; returns amid it."""
        confirmed = len(self.publisher.confirmed)
        self.publisher.allow(confirmed + self.plan.messages // part)
        driver.await_that(lambda: len(self.publisher.confirmed) > confirmed)

    def see_it_go_on(self, driver: Driver) -> None:
        """Another batch comes. There is something for it, however far it was."""
        wanted = batches_in(self.folder) + 1
        self.publish_more(20, driver)
        driver.await_that(lambda: batches_in(self.folder) >= wanted)


def run_drill(plan: Plan, folder: Path, spark: Callable[[], SparkSession]) -> Counter[str]:
    """Drill in the folder, which exists; what was counted.

    ``spark`` makes the session that reads the rest and looks at the table. ``lost`` and
    ``duplicates`` must be 0.

    Raises:
        AssertionError: something did not go on, within `LIMIT_S` for each step.
    """
    with _staged(plan, folder) as stage:
        for part, inject in enumerate((_fill_disk, _kill_executors_and_freeze, _restart_nsqd), 1):
            _run_and_kill(stage, part, inject)
        _await_share(stage, 4)
        stage.publisher.end()
        query = begin(spark(), stage.nsqd.tcp_address, str(folder), {}, now=True)
        try:
            assert query.awaitTermination(int(LIMIT_S)), "it does not come to an end"
            _count_figures(stage.counts, _last_figures(query.recentProgress))
        finally:
            query.stop()
        return stage.counts + judged(spark(), folder, stage.publisher)


@contextmanager
def _staged(plan: Plan, folder: Path) -> Iterator[_Stage]:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "wal"))
        cluster = None
        if plan.is_standalone:
            cluster = stack.enter_context(standalone_cluster(folder / "cluster"))
        nsqd = Nsqd(folder)
        stack.callback(nsqd.kill)
        nsqd.start()
        publisher = Publisher(TOPIC, nsqd.http_address)
        publisher.start()
        stack.callback(publisher.end)
        yield _Stage(plan, folder, nsqd, disk, cluster, publisher, Counter())


def _run_and_kill(stage: _Stage, part: int, inject: Callable[[_Stage, Driver], None]) -> None:
    """A driver reads, something breaks, it goes on; and amid the next messages it is killed."""
    before = batches_in(stage.folder)
    stage.publisher.allow(stage.plan.share(part))
    master = stage.cluster.url if stage.cluster else MASTER
    with Driver(master, stage.nsqd.tcp_address, stage.folder, stage.plan.batch) as driver:
        driver.await_that(lambda: batches_in(stage.folder) > before)
        inject(stage, driver)
        stage.see_it_go_on(driver)
        _count_figures(stage.counts, driver.figures)
        confirmed = len(stage.publisher.confirmed)
        stage.publisher.allow(stage.plan.share(part + 1))
        driver.await_that(lambda: len(stage.publisher.confirmed) > confirmed)
        driver.kill()
    stage.counts["drivers_killed"] += 1
    stage.counts["unread_at_kills"] += len(stage.publisher.confirmed) - rows_in(stage.folder)


def _await_share(stage: _Stage, part: int) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while len(stage.publisher.confirmed) < stage.plan.share(part):
        assert time.monotonic() < deadline_s, "nsqd takes no messages"
        time.sleep(0.05)


# What breaks


def _fill_disk(stage: _Stage, driver: Driver) -> None:
    if stage.disk is None:
        stage.counts["no_right_to_mount"] += 1
        return
    stage.disk.fill()
    # There must be something that does not fit.
    stage.publish_more(10, driver)
    driver.await_that(lambda: driver.figures.get("paused"))
    time.sleep(_FULL_S)
    stage.counts["disk_filled"] += 1
    stage.disk.clear()
    driver.await_that(lambda: not driver.figures["paused"])


def _kill_executors_and_freeze(stage: _Stage, driver: Driver) -> None:
    def is_killed() -> bool:
        if stage.cluster is None:
            killed = driver.kill_python_workers()
        else:
            killed = int(kill_executor(stage.cluster.workers[0].pid))
        stage.counts["executors_killed"] += killed
        return killed > 0

    driver.await_that(is_killed)
    stage.see_it_go_on(driver)
    # nsqd delivers what comes meanwhile, and for so long that it does so again.
    with driver.frozen():
        stage.publish_more(10, driver)
        time.sleep(_FROZEN_S)
    driver.await_that(lambda: driver.figures.get("duplicatesDropped"))


def _restart_nsqd(stage: _Stage, driver: Driver) -> None:
    stage.publish_more(10, driver)
    stage.nsqd.stop()
    stage.nsqd.start()
    stage.counts["nsqd_restarted"] += 1


# What is there


def _last_figures(progress: Sequence[StreamingQueryProgress]) -> dict[str, int]:
    for report in reversed(progress):
        told = report.sources[0].latestOffset
        if told and "received" in told:
            found: dict[str, int] = json.loads(told)
            return found
    return {}


def _count_figures(counts: Counter[str], figures: dict[str, int]) -> None:
    """What receivers count, as far as they told it before they were killed."""
    counts["redeliveries_dropped"] += figures.get("duplicatesDropped", 0)
    counts["given_back"] += figures.get("requeued", 0)


def judged(spark: SparkSession, folder: Path, publisher: Publisher) -> Counter[str]:
    """What the table has, and what it lacks of what was published."""
    table = spark.read.parquet(f"{folder}/table").select("topic", "nsqd", "id", "body").toArrow()
    keys = table.select(["topic", "nsqd", "id"]).group_by(["topic", "nsqd", "id"]).aggregate([])
    found = set(pc.unique(table["body"]).to_pylist())
    owed = {body_of(number) for number in publisher.confirmed}
    maybe = {body_of(number) for number in publisher.unknown}
    return Counter(
        published=len(owed),
        unconfirmed=len(maybe),
        batches=batches_in(folder),
        rows=table.num_rows,
        distinct=keys.num_rows,
        lost=len(owed - found),
        duplicates=table.num_rows - len(found),
        strange=len(found - owed - maybe),
    )
