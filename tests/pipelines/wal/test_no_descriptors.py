"""The log in a process without free descriptors (EMFILE)."""

from __future__ import annotations

import errno
from random import Random

from pipelines.wal import WalError, WalFullError
from tests.pipelines.wal.logs import block, numbers_on, open_log
from trionsq.testing.disk import SimulatedDisk

OPENING = ("open", "create", "names", "sync_folder")


def test_an_append_that_can_open_nothing_is_not_in_the_log() -> None:
    """Whichever opening of a file fails: the append raises WalError and nothing of it is visible,
    or it is in the log whole; appends that returned are in it after a power failure, too."""
    for at in range(1, 40):
        disk = SimulatedDisk(random=Random(at))
        log = open_log(disk)
        disk.fail(errno.EMFILE, at=at, only=OPENING)
        done = []
        for number in range(6):
            try:
                log.append([block(number)])
            except WalFullError:
                raise AssertionError("the disk is not full") from None
            except WalError:
                break
            else:
                done.append(number)
        if not disk.faults:
            break
        disk.heal()
        after = disk.after_power_loss()
        again = open_log(after)
        assert numbers_on(after)[: len(done)] == done
        again.append([block(77)])
        assert numbers_on(after)[-1] == 77
    assert at > 5


def test_a_log_that_can_not_be_opened_loses_nothing() -> None:
    """Whichever opening fails when a log is opened: it is an error or it does not matter, and the
    next one finds all messages."""
    refused = 0
    for at in range(1, 40):
        disk = SimulatedDisk(random=Random(at))
        log = open_log(disk)
        for number in range(5):
            log.append([block(number)])
        disk = disk.after_kill()
        disk.fail(errno.EMFILE, at=at, only=OPENING)
        try:
            open_log(disk)
        except (WalError, OSError):
            refused += 1
        if not disk.faults:
            break
        again = disk.after_kill()
        assert open_log(again).end == 5
        assert numbers_on(again) == [0, 1, 2, 3, 4]
    assert at > 3
    assert refused
