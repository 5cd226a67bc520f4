"""A receiver without Spark: it fills a log below a folder that queries elsewhere read.

The log belongs to one name. A receiver that starts under a name goes on with the log of the one
before, whose process has ended. If that one hangs instead (it holds the log, and gives no sign of
life), its log is taken over: from then on nothing that it does reaches the log.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipelines.errors import WalError, WalFencedError, WalLockedError
from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.receiver import Receiver
from pipelines.receiver.status import (
    ReceiverNote,
    read_receiver_note,
    write_receiver_note,
)
from pipelines.wal import Wal, WalLimits
from pipelines.wal.objects import is_store_url

__all__ = ["DetachedConfig", "run_receiver"]

log = logging.getLogger("pipelines.receiver")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_POLL_S: Final = 0.25
_REPORT_S: Final = 60.0
_HEARTBEAT_S: Final = 5.0
# So many are missed before a log is taken over.
_SIGNS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedConfig:
    """What a detached receiver needs. Picklable. Raises ValueError for an invalid name.

    Attributes:
        root: the folder of all logs, or its URL; the log is ``root/name``.
        take_over_s: a log is taken over after so long without a sign of life.
        lock_timeout_s: how long to wait for the log of a receiver that lives.
    """

    root: str
    name: str
    receiver: ReceiverConfig
    limits: WalLimits
    take_over_s: float = 30.0
    lock_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r}: a name has letters, digits, '.', '_' and '-'")

    @property
    def heartbeat_s(self) -> float:
        """The time between two signs of life."""
        return min(_HEARTBEAT_S, self.take_over_s / _SIGNS)

    @property
    def path(self) -> str:
        """Of the log."""
        return f"{self.root.rstrip('/')}/{self.name}"


def run_receiver(config: DetachedConfig, wait: Callable[[float], bool]) -> None:
    """Receive until ``wait`` returns true; then store or requeue what was received.

    Args:
        config: of the receiver.
        wait: waits for up to so many seconds, and returns whether to stop.

    Raises:
        WalLockedError: another receiver of this name lives.
        WalFencedError: another receiver has taken the log over. What was not stored by then is
            nsqd's to deliver again.
        ReceiverError: it failed, or did not stop in time; the cause is attached.
        WalError: the log can't be opened or used.
    """
    wal = _open_log(config, wait)
    if wal is None:
        return
    receiver = Receiver(config.receiver, wal)
    note = ReceiverNote()
    log.info("receiving into %s, which ends at %d", wal.path, wal.end)
    receiver.start()
    try:
        _watch(receiver, config.heartbeat_s, note, wait)
    finally:
        # If this fails, the log stays locked as long as the process lives: it might still write.
        receiver.stop()
        _end(receiver, note)


def _end(receiver: Receiver, note: ReceiverNote) -> None:
    if not isinstance(receiver.failure, WalFencedError):
        note.is_running = False
        _beat(receiver, note)
    receiver.wal.close()
    log.info("stopped: %s", _summary(receiver))


def _watch(
    receiver: Receiver, heartbeat_s: float, note: ReceiverNote, wait: Callable[[float], bool]
) -> None:
    """Give signs of life until ``wait`` returns true. Raises the receiver's failure."""
    beat_s = report_s = time.monotonic()
    report_s += _REPORT_S
    while True:
        _check(receiver)
        now_s = time.monotonic()
        if now_s >= beat_s:
            beat_s = now_s + heartbeat_s
            _beat(receiver, note)
        if now_s >= report_s:
            report_s = now_s + _REPORT_S
            log.info("%s", _summary(receiver))
        if wait(_POLL_S):
            return


def _check(receiver: Receiver) -> None:
    """Raise the failure of the receiver; WalFencedError itself, for which there is an exit code."""
    if isinstance(receiver.failure, WalFencedError):
        raise receiver.failure
    receiver.check()


def _beat(receiver: Receiver, note: ReceiverNote) -> None:
    note.statistics = receiver.statistics()
    try:
        write_receiver_note(receiver.wal.path, note)
    except WalError as error:
        # A full disk, say: the receiver itself sees to that.
        log.warning("%s", error)


def _summary(receiver: Receiver) -> str:
    told = receiver.statistics()
    return (
        f"{told['stored']:,} stored, {told['duplicates_dropped']:,} duplicates dropped, "
        f"{told['requeued']:,} requeued, {told['pending']:,} pending; "
        f"{told['connections']} connections; the log has {told['wal_end']:,} messages in all, "
        f"{told['wal_end'] - told['wal_committed']:,} of them to be read"
    )


# The log


def _open_log(config: DetachedConfig, wait: Callable[[float], bool]) -> Wal | None:
    """Open the log, or take it over; None when told to stop meanwhile.

    Raises:
        WalLockedError, WalError: see `run_receiver`.
    """
    deadline_s = time.monotonic() + config.lock_timeout_s
    note = None
    seen_s = time.monotonic()
    is_first = True
    while True:
        newest = read_receiver_note(config.path)
        is_ended = newest is None or not newest.is_running
        if (newest and newest.sign) != (note and note.sign):
            note, seen_s = newest, time.monotonic()
        is_silent = time.monotonic() - seen_s >= config.take_over_s
        try:
            return _opened(config, is_ended=is_ended, is_silent=is_silent)
        except WalLockedError:
            owner = note.place if note else "a receiver that has left no note yet"
            if is_first:
                is_first = False
                log.warning("the log %s is in use by %s: waiting", config.path, owner)
            is_suspect = time.monotonic() - seen_s >= config.take_over_s / 2
            if time.monotonic() >= deadline_s and not is_suspect:
                raise WalLockedError(
                    f"the log {config.path} is in use by {owner}, which is alive"
                ) from None
        if wait(_POLL_S):
            return None


def _opened(config: DetachedConfig, *, is_ended: bool, is_silent: bool) -> Wal:
    """Open the log. Raises WalLockedError if its owner may be alive."""
    if is_silent:
        log.warning(
            "the log %s is taken over: its receiver has given no sign of life for %g s",
            config.path,
            config.take_over_s,
        )
        return Wal.open(config.path, limits=config.limits, take_over=True)
    # An object store has no lock: its note alone says whether a receiver lives.
    if is_store_url(config.path) and not is_ended:
        raise WalLockedError(config.path)
    return Wal.open(config.path, limits=config.limits)
