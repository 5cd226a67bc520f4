"""A file that keeps disk space for the state, given up when the disk is full.

Without it a full disk stays full: a segment may go only after a commit that says so, and that
commit needs room.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from trionsq.disk import Disk, replace_file

__all__ = ["RESERVE_FILE", "DiskReserve"]

RESERVE_FILE: Final = "trionsq.reserve"

_PIECE_BYTES: Final = 1 << 20

log = logging.getLogger("trionsq")


class DiskReserve:
    """The reserve of a folder.

    Attributes:
        given_up: whether the space is not reserved now.
    """

    def __init__(self, disk: Disk, nbytes: int) -> None:
        """``nbytes`` 0: no reserve, which is never given up either."""
        self.given_up = nbytes > 0
        self._disk = disk
        self._nbytes = nbytes

    def __repr__(self) -> str:
        return f"<DiskReserve {self._nbytes} bytes{' given up' if self.given_up else ''}>"

    def make(self) -> None:
        """Reserve the space if that is not done and there is room; errors are only logged."""
        if not self.given_up:
            return
        draft = f"{RESERVE_FILE}.tmp"
        try:
            with suppress(FileNotFoundError):  # a file of the wrong size also counts as room
                if self._has_right_size():
                    self.given_up = False
                    return
                self._disk.unlink(RESERVE_FILE)
            # A quarter more than needed, so that it is not made and given up in turns.
            if self._disk.free_bytes() < self._nbytes + self._nbytes // 4:
                return
            replace_file(self._disk, RESERVE_FILE, self._pieces(), draft=draft)
            self.given_up = False
        except OSError as error:
            log.warning("reserving disk space failed: %s", error)

    def give_up(self) -> bool:
        """Release the space; return whether there was any to release."""
        if self.given_up or not self._nbytes:
            return False
        self.given_up = True
        try:
            self._disk.unlink(RESERVE_FILE)
        except OSError as error:
            log.error("the disk is full, and deleting the reserve failed: %s", error)
            return False
        log.error("the disk is full: %s gave its %d bytes up", RESERVE_FILE, self._nbytes)
        return True

    def _has_right_size(self) -> bool:
        file = self._disk.open(RESERVE_FILE)
        try:
            return file.size() == self._nbytes
        finally:
            file.close()

    def _pieces(self) -> Iterator[bytes]:
        """Yield the content: random, for some file systems store no zeros."""
        piece = os.urandom(min(_PIECE_BYTES, self._nbytes))
        left = self._nbytes
        while left:
            part = piece[:left]
            yield part
            left -= len(part)
