"""The drill of receivers of their own: two of them, two nsqds, one query that reads their logs.

A receiver is killed and replaced; the other is frozen, its log is taken over, and it wakes; the
query's driver is killed while the receivers go on, and started again.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.receiver.status import read_receiver_note
from pipelines.wal import open_logs
from tests.pipelines.drill.processes import LIMIT_S, Driver, Nsqd, batches_in, rows_in
from tests.pipelines.drill.publisher import Publisher
from tests.pipelines.drill.run import TOPIC, judged
from tests.pipelines.receiver.detached import ReceiverProcess
from tests.pipelines.settings import MASTER
from tests.pipelines.source.driver import begin
from tests.pipelines.source.publishing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RECEIVER_FAULTS", "run_receivers_drill"]

RECEIVER_FAULTS: Final = (
    "receivers_killed",
    "receivers_frozen",
    "drivers_killed",
    "stored_without_driver",
)
_PARTS: Final = 5


class _Stage:
    """What runs: ``receivers`` by name, and what was done to it in ``counts``."""

    def __init__(self, folder: Path, messages: int, stack: ExitStack) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self._messages = messages
        self._part = 0
        self._stack = stack
        self.nsqds = []
        for number in range(2):
            (folder / f"nsqd{number}").mkdir()
            nsqd = Nsqd(folder / f"nsqd{number}")
            stack.callback(nsqd.kill)
            nsqd.start()
            self.nsqds.append(nsqd)
        self.publisher = Publisher(TOPIC, *(nsqd.http_address for nsqd in self.nsqds))
        self.publisher.start()
        stack.callback(self.publisher.end)
        self.receivers = [self.start_receiver(number) for number in range(2)]

    def start_receiver(self, number: int) -> ReceiverProcess:
        """Each nsqd has one receiver, so that no message is in two logs."""
        addresses = [nsqd.tcp_address for nsqd in self.nsqds]
        flags = [f"--nsqd-tcp-address={addresses[1]}", f"--exclusive={number}/2"]
        flags += ["--take-over-after=2s", "--source-option=msgTimeoutMs=3000"]
        receiver = ReceiverProcess(self.folder / "logs", f"r{number}", addresses[0], *flags)
        return self._stack.enter_context(receiver)

    def start_driver(self, batch: int) -> Driver:
        """The query."""
        return self._stack.enter_context(Driver(MASTER, "", self.folder, batch))

    def publish_part(self) -> None:
        """Let another part be published."""
        self._part += 1
        self.publisher.allow(self._messages * self._part // _PARTS)

    def stored(self) -> int:
        """The number of messages in all logs since their begin."""
        return sum(view.end for view in open_logs(self.folder / "logs").values())

    def await_all_stored(self) -> None:
        """Wait until the logs have what is allowed to be published."""

        def are_stored() -> bool:
            for receiver in self.receivers:
                assert receiver.process.poll() is None, receiver.lines
            confirmed = len(self.publisher.confirmed)
            return self._messages * self._part // _PARTS <= confirmed <= self.stored()

        wait_until(are_stored, LIMIT_S)


def run_receivers_drill(
    messages: int, folder: Path, spark: Callable[[], SparkSession]
) -> Counter[str]:
    """Drill in the folder, which exists; what was counted. ``lost``, ``duplicates`` must be 0.

    Raises:
        AssertionError: something did not go on, within `LIMIT_S` for each step.
    """
    with ExitStack() as stack:
        stage = _Stage(folder, messages, stack)
        wait_until(lambda: len(open_logs(folder / "logs")) == 2, LIMIT_S)
        driver = stage.start_driver(messages // 10)
        stage.publish_part()
        driver.await_that(lambda: batches_in(folder) >= 2)
        _kill_receiver(stage)
        _freeze_receiver(stage)
        driver.await_that(lambda: rows_in(folder) >= messages // _PARTS)
        _kill_driver(stage, driver)
        driver = stage.start_driver(messages // 10)
        stage.publish_part()
        stage.await_all_stored()
        driver.await_that(lambda: rows_in(folder) >= len(stage.publisher.confirmed))
        driver.kill()
        stage.publisher.end()
        for number, receiver in enumerate(stage.receivers):
            receiver.send(signal.SIGTERM)
            assert receiver.exit_code() == 0, receiver.lines
            note = read_receiver_note(str(folder / "logs" / f"r{number}"))
            assert note is not None
            stage.counts["redeliveries_dropped"] += note.statistics["duplicates_dropped"]
        query = begin(spark(), "", str(folder), {}, now=True)
        try:
            assert query.awaitTermination(int(LIMIT_S)), "it does not come to an end"
        finally:
            query.stop()
        return stage.counts + judged(spark(), folder, stage.publisher)


def _kill_receiver(stage: _Stage) -> None:
    stage.publish_part()
    before = stage.stored()
    wait_until(lambda: stage.stored() > before, LIMIT_S)
    stage.receivers[0].send(signal.SIGKILL)
    stage.receivers[0].exit_code()
    stage.receivers[0] = stage.start_receiver(0)
    stage.counts["receivers_killed"] += 1
    stage.await_all_stored()


def _freeze_receiver(stage: _Stage) -> None:
    frozen = stage.receivers[1]
    stage.publish_part()
    frozen.send(signal.SIGSTOP)
    stage.receivers[1] = stage.start_receiver(1)
    stage.receivers[1].await_line("is taken over")
    stage.receivers[1].await_line("receiving into")
    frozen.send(signal.SIGCONT)
    assert frozen.exit_code() == 1, frozen.lines
    assert "was taken over by another process" in frozen.lines
    stage.counts["receivers_frozen"] += 1
    stage.await_all_stored()


def _kill_driver(stage: _Stage, driver: Driver) -> None:
    driver.kill()
    stage.counts["drivers_killed"] += 1
    rows, stored = rows_in(stage.folder), stage.stored()
    stage.publish_part()
    stage.await_all_stored()
    assert rows_in(stage.folder) == rows
    stage.counts["stored_without_driver"] += stage.stored() - stored
