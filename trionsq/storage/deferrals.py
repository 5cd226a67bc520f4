"""When the deferred messages of a disk queue are due: a file of ours beside the queue's own.

The original's records have no room for that time, and it ignores this file. It is text: a line
with format and version, then a line for each message, in the order in which they were stored::

    trionsq deferred 1
    30643836653932346136363633303030 1795280000000000000

that is the id in hex (a foreign file's ids may be any bytes) and nanoseconds since the epoch. The
last line of an id counts. Lines are appended, so a crash may leave a torn one at the end.
"""

from __future__ import annotations

import errno
import logging
import re
from binascii import unhexlify
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from trionsq.storage.disk import Disk, DiskFile, replace_file

__all__ = ["HEADER", "Decoded", "DeferralFile", "decode", "encode"]

HEADER: Final = b"trionsq deferred 1\n"

_ID_NBYTES: Final = 16
_DUE_END_NS: Final = 10**19
_LINE: Final = re.compile(rb"^([0-9a-f]{32}) ([0-9]{1,19})\n", re.MULTILINE)
_CHUNK_NBYTES: Final = 1 << 20
"""How much is decoded at once: bounds what the intermediate lists take."""

log = logging.getLogger("trionsq")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a file says.

    Attributes:
        due_ns: by message id, nanoseconds since the epoch.
        nbytes: size of the file without a torn end; new lines belong there.
        damaged: lines that were skipped.
        known: whether the file is of our format and version; if not, the rest is empty.
    """

    due_ns: dict[bytes, int]
    nbytes: int
    damaged: int = 0
    known: bool = True


def encode(entries: Collection[tuple[bytes, int]]) -> bytes:
    """The lines of some messages, each an id of 16 bytes and its due time in nanoseconds.

    Raises:
        ValueError: an id has another size, or a time does not fit.
    """
    for message_id, due_ns in entries:
        if len(message_id) != _ID_NBYTES or not 0 <= due_ns < _DUE_END_NS:
            raise ValueError(f"no id or due time: {message_id!r}, {due_ns}")
    lines = [f"{message_id.hex()} {due_ns}\n" for message_id, due_ns in entries]
    return "".join(lines).encode()


def decode(data: bytes) -> Decoded:
    """Read a whole file. A torn last line is ignored, damaged lines are skipped."""
    if not data.startswith(HEADER):
        # Also the start of a header that a crash cut off is ours: there is nothing behind it.
        return Decoded({}, 0, known=HEADER.startswith(data))
    due_ns: dict[bytes, int] = {}
    good = 0
    start = len(HEADER)
    end = data.rfind(b"\n") + 1
    while start < end:
        stop = data.rfind(b"\n", start, start + _CHUNK_NBYTES) + 1
        if not stop:  # a damaged line longer than that
            stop = data.index(b"\n", start) + 1
        found = _LINE.findall(data[start:stop])
        good += len(found)
        if found:
            ids, times = zip(*found, strict=True)
            due_ns.update(zip(map(unhexlify, ids), map(int, times), strict=True))
        start = stop
    return Decoded(due_ns, end, data.count(b"\n", len(HEADER), end) - good)


class DeferralFile:
    """The due times of one queue.

    A file of another version is left alone; when there is something to write, it is renamed.

    Attributes:
        name: of the file.
    """

    def __init__(self, disk: Disk, queue: str) -> None:
        """``queue`` is ``topic`` or ``topic:channel``."""
        self.name = f"{queue}.diskqueue.deferred.dat"
        self._disk = disk
        self._nbytes: int | None = None  # None: not looked at yet; 0: there is no file
        self._is_foreign = False
        self._is_doubtful = False

    def __repr__(self) -> str:
        return f"<DeferralFile {self.name}>"

    def load(self) -> dict[bytes, int]:
        """Due time in nanoseconds since the epoch, by message id; empty if there is no file.

        Raises:
            OSError: the file can't be read.
        """
        decoded = decode(self._read())
        self._nbytes = decoded.nbytes
        self._is_foreign = not decoded.known
        path = f"{self._disk.path}/{self.name}"
        if self._is_foreign:
            log.error("%s: of an unknown version; messages in it lose their delay", path)
        elif decoded.damaged:
            log.warning("%s: skipped %d damaged lines", path, decoded.damaged)
        return decoded.due_ns

    def append(self, entries: Collection[tuple[bytes, int]]) -> None:
        """Add messages, durably. A message that is there already gets the new time.

        Raises:
            OSError: they may not be durable. The call may be repeated.
            ValueError: as `encode`.
        """
        lines = encode(entries)
        if self._nbytes is None:
            self.load()
        if self._is_foreign or not self._nbytes:
            self._write_anew(HEADER + lines)
        elif self._is_doubtful:
            # A sync that succeeds later proves nothing about what an earlier one failed to do.
            kept = decode(self._read()[: self._nbytes]).due_ns
            self._write_anew(HEADER + encode(kept.items()) + lines)
        else:
            self._write_end(lines)

    def replace(self, due_ns: Mapping[bytes, int]) -> None:
        """Keep exactly these messages, durably; with none there is no file.

        Raises:
            OSError: the earlier content may stand.
            ValueError: as `encode`.
        """
        if not due_ns:
            self.remove()
            return
        if self._nbytes is None:
            self.load()
        self._write_anew(HEADER + encode(due_ns.items()))

    def remove(self) -> None:
        """Remove the file, of whatever version, if there is one.

        After a power failure it may be back: its messages are not.

        Raises:
            OSError: it is still there.
        """
        with suppress(FileNotFoundError):
            self._disk.unlink(self.name)
        self._wrote(0)

    def _read(self) -> bytes:
        try:
            file = self._disk.open(self.name)
        except FileNotFoundError:
            return b""
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def _wrote(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._is_foreign = False
        self._is_doubtful = False

    def _write_anew(self, data: bytes) -> None:
        if self._is_foreign:
            self._set_aside()
        replace_file(self._disk, self.name, data)
        self._wrote(len(data))

    def _write_end(self, lines: bytes) -> None:
        assert self._nbytes is not None
        try:
            file = self._disk.open(self.name)
        except FileNotFoundError:
            self._is_doubtful = True
            raise
        try:
            self._cut_off(file, self._nbytes)
            file.write(lines, self._nbytes)
            try:
                file.sync()
            except OSError:
                self._is_doubtful = True
                raise
        finally:
            file.close()
        self._nbytes += len(lines)

    def _cut_off(self, file: DiskFile, nbytes: int) -> None:
        """Remove what a crash or a failed write left after the last whole line."""
        size = file.size()
        if size > nbytes:
            file.truncate(nbytes)
        elif size < nbytes:
            self._is_doubtful = True
            raise OSError(errno.EIO, "shorter than what was written", self.name)

    def _set_aside(self) -> None:
        taken = set(self._disk.names())
        number = 0
        aside = f"{self.name}.bad"
        while aside in taken:
            number += 1
            aside = f"{self.name}.{number}.bad"
        self._disk.rename(self.name, aside)
        log.error("%s/%s: is now %s", self._disk.path, self.name, aside)
        self._is_foreign = False
        self._nbytes = 0
