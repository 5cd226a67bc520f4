"""The processes of a drill: nsqd on fixed ports, the driver with all that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow.parquet import read_metadata

from tests.pipelines.source.publishing import wait_until
from tests.processes import free_address, nsqd_command

__all__ = ["LIMIT_S", "Driver", "Nsqd", "batches_in", "kill_executor", "rows_in"]

LIMIT_S: Final = 240.0
_JVM_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_PYTHON_WORKER: Final = "pyspark.daemon"


class Nsqd:
    """An nsqd that can be stopped and started again on the same ports and data."""

    def __init__(self, folder: Path, *more_flags: str, memory_queue: int = 2000) -> None:
        self._more_flags = more_flags
        self._memory_queue = memory_queue
        self.tcp_address = free_address()
        self.http_address = free_address()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        flags = {
            "tcp-address": self.tcp_address,
            "http-address": self.http_address,
            "broadcast-address": "127.0.0.1",
            "data-path": str(self._folder),
            "mem-queue-size": str(self._memory_queue),
        }
        with (self._folder / "nsqd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *nsqd_command(),
                    *(f"--{name}={value}" for name, value in flags.items()),
                    *self._more_flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """SIGTERM. AssertionError: it exits otherwise than by 0."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(LIMIT_S)
        assert code == 0, f"nsqd exits with {code}"

    def kill(self) -> None:
        """For an end in any case."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http_address}/ping", timeout=5):
                return True
        except OSError:
            return False


class Driver:
    """The user's program, and what it started: its JVM and the reader's. A context manager."""

    def __init__(self, master: str, nsqd_address: str, folder: Path, messages: int) -> None:
        self.folder = folder
        self._is_killed = False
        (folder / "figures.json").unlink(missing_ok=True)
        program = [sys.executable, "-m", "tests.pipelines.drill.driver"]
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*program, master, nsqd_address, str(folder), str(messages)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL, all at once; what it started may outlive it."""
        if not self._is_killed:
            self._is_killed = True
            for pid in self._tree():
                signal_to(pid, signal.SIGKILL)
            self._process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP all of it, and SIGCONT at the end."""
        pids = self._tree()
        for pid in pids:
            signal_to(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                signal_to(pid, signal.SIGCONT)

    def _tree(self) -> list[int]:
        return [self._process.pid, *descendants(self._process.pid)]

    @property
    def figures(self) -> dict[str, Any]:
        """The source's last progress report; empty before the first."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "figures.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def await_that(self, condition: Callable[[], object]) -> None:
        """Wait for it. AssertionError, with the log, if the program ends or it takes too long."""

        def is_so() -> bool:
            assert self._process.poll() is None, "the driver has ended"
            return bool(condition())

        try:
            wait_until(is_so, LIMIT_S)
        except AssertionError as error:
            log = (self.folder / "driver.log").read_text(errors="replace")[-5000:]
            raise AssertionError(f"{error}; figures {self.figures}:\n{log}") from error

    def kill_python_workers(self) -> int:
        """SIGKILL what runs the tasks' Python; how many. Local masters only."""
        workers = [
            child
            for pid in descendants(self._process.pid)
            if _PYTHON_WORKER in command_of(pid)
            for child in descendants(pid)
        ]
        for pid in workers:
            signal_to(pid, signal.SIGKILL)
        return len(workers)


def kill_executor(root: int) -> bool:
    """SIGKILL the JVM of an executor that the worker with this pid has started, if there is one."""
    for pid in descendants(root):
        if _JVM_EXECUTOR in command_of(pid):
            signal_to(pid, signal.SIGKILL)
            return True
    return False


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal; the process may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, their children, and so on; none if the process is gone."""
    # A JVM's threads have children of their own.
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)


def command_of(pid: int) -> str:
    """The command line of a process; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def batches_in(folder: Path) -> int:
    """The number of complete microbatches in the table."""
    names = [path.name for path in folder.glob("table/_spark_metadata/*")]
    return max((int(name.split(".")[0]) + 1 for name in names if name[0].isdigit()), default=0)


def rows_in(folder: Path) -> int:
    """The number of rows in these microbatches."""
    paths = set()
    for log in folder.glob("table/_spark_metadata/[0-9]*"):
        _version, *entries = log.read_text(encoding="utf-8").splitlines()
        paths |= {json.loads(entry)["path"] for entry in entries}
    return sum(read_metadata(unquote(urlsplit(path).path)).num_rows for path in paths)
