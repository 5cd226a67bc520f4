"""Receivers as tasks of a Spark application: one task for each, as long as the application runs.

Spark places a task on an executor with a free core. A task that ends, or whose executor is lost, is
started again by the driver, wherever there is room, with the same log. When the driver dies, Spark
ends the executors, and the tasks store what they have received; the application that is
submitted next goes on with their logs.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pipelines.errors import ReceiverError, WalError
from pipelines.jobs.job import Job
from pipelines.jobs.terminal import one_line, print_line
from pipelines.receiver.detached import DetachedConfig, run_receiver
from pipelines.receiver.loglines import limit_repeated_lines
from pipelines.wal.notes import read_note, write_note

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["run_tasks"]

_STOP: Final = "STOP.json"
_STOP_POLL_S: Final = 1.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
# A task that has run for so long was well started.
_WELL_S: Final = 60.0
_MAX_FAILURES: Final = 10
_END_S: Final = 10.0
# The driver starts tasks again itself: Spark would give up at the fourth failure in a lifetime.
_SETTINGS: Final = {"spark.task.maxFailures": "1"}


def run_tasks(job: Job, configs: Sequence[DetachedConfig]) -> None:
    """Run a receiver for each config, until a signal comes.

    Raises:
        ReceiverError: a receiver failed ten times in a row, each time within a minute.
        SetupError, UsageError: Spark can't start.
    """
    context = job.spark(_SETTINGS).sparkContext
    if (cores := context.defaultParallelism) < len(configs):
        print_line(job.name, f"{len(configs)} receivers need as many cores; Spark has {cores}")
    root = configs[0].root
    tasks = [_Task(job, context, config) for config in configs]
    for task in tasks:
        task.thread.start()
    while not job.wait(0.25):
        if failed := [task for task in tasks if task.failure is not None]:
            job.stopping.set()
            _stop(root, context.applicationId, tasks)
            raise ReceiverError(f"{failed[0].failure}")
    if job.is_orphaned:
        # Its executors end by themselves, and the receivers store what they have.
        return
    _stop(root, context.applicationId, tasks)


def _stop(root: str, application: str, tasks: Sequence[_Task]) -> None:
    """Tell the tasks to end, and wait until they have."""
    try:
        write_note(root, _STOP, json.dumps({"application": application}).encode())
    except WalError as error:
        print_line("receive", f"the receivers can't be told to stop: {error}")
        return
    deadline_s = time.monotonic() + _END_S + tasks[0].config.receiver.stop_timeout_s
    for task in tasks:
        task.thread.join(max(0.0, deadline_s - time.monotonic()))


@dataclass
class _Task:
    """One receiver, run by Spark again and again.

    Attributes:
        failure: why it is not started again.
    """

    job: Job
    context: SparkContext
    config: DetachedConfig
    failure: str | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=self.config.name, daemon=True)

    def _run(self) -> None:
        stopping = self.job.stopping
        pause_s, failures = _FIRST_PAUSE_S, 0
        receive = partial(_receive, self.config, self.context.applicationId)
        while not stopping.is_set():
            began_s = time.monotonic()
            reason = "it ended by itself"
            try:
                self.context.parallelize([0], 1).foreachPartition(receive)
            except Exception as error:
                # Of Spark, of the task, of the connection to Java: the task is to run again.
                reason = one_line(error)
            if stopping.is_set():
                return
            if time.monotonic() - began_s >= _WELL_S:
                pause_s, failures = _FIRST_PAUSE_S, 0
            failures += 1
            text = f"receiver {self.config.name}: {reason}"
            if failures >= _MAX_FAILURES:
                self.failure = f"{text} ({failures} failures in a row)"
                return
            print_line(self.job.name, f"{text}; starting it again in {pause_s:g} s")
            stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


# In a Python worker of an executor


def _receive(config: DetachedConfig, application: str, _numbers: Iterable[int]) -> None:
    """The task: receive until the driver, the executor or the machine wants an end."""
    logging.basicConfig(level=logging.INFO, format=f"{config.name}: %(message)s")
    limit_repeated_lines()
    stopping = threading.Event()
    if threading.current_thread() is threading.main_thread():
        # Spark's daemon sends SIGHUP when the executor is gone.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stopping.set())
    run_receiver(config, _Leash(config.root, application, stopping).wait)


class _Leash:
    """What ends a task: a signal, the loss of its parent, or the driver's note."""

    def __init__(self, root: str, application: str, stopping: threading.Event) -> None:
        self._root = root
        self._application = application
        self._stopping = stopping
        self._parent = os.getppid()
        self._due_s = 0.0

    def wait(self, seconds: float) -> bool:
        """Wait for so long; whether to stop."""
        if self._stopping.wait(seconds) or os.getppid() != self._parent:
            return True
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + _STOP_POLL_S
        try:
            note = read_note(self._root, _STOP)
        except WalError as error:
            logging.getLogger("pipelines.receiver").warning("%s", error)
            return False
        return note is not None and json.loads(note).get("application") == self._application
