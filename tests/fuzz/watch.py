"""What must hold while nonsense comes in: no defect in the log, bounded memory, others flow on."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


class Failures(logging.Handler):
    """Keeps the log records that tell of a defect: those with a trace."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.CRITICAL:
            self.found.append(logging.Formatter().format(record))


@contextmanager
def without_groups() -> Iterator[None]:
    """Raise the first error that tasks raised, without the groups that nurseries put it in."""
    try:
        yield
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


@contextmanager
def no_traces() -> Iterator[None]:
    """Fail with the first trace that was logged inside; other lines are thrown away."""
    handler, log = Failures(), logging.getLogger("trionsq")
    propagate, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
    assert not handler.found, f"{len(handler.found)} traces logged, the first:\n{handler.found[0]}"


def resident_nbytes(pid: int | str = "self") -> int:
    """The memory that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_NBYTES


@contextmanager
def bounded_growth(nbytes_max: int, pid: int | str = "self") -> Iterator[None]:
    """Fail if a process has grown by more than this in the end."""
    gc.collect()
    before = resident_nbytes(pid)
    yield
    gc.collect()
    grown = resident_nbytes(pid) - before
    assert grown <= nbytes_max, f"grown by {grown // MIB} MiB"
