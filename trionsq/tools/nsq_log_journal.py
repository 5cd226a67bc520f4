"""Segments as the next start of nsqd makes them, for nsq_log: with what journals have of them."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Sequence

from trionsq.disk import DiskFile, RealDisk
from trionsq.storage.log.journal import JournalPiece
from trionsq.storage.log.replay import join_pieces, journals_in, read_journal

__all__ = ["Journaled", "JournaledSegment"]


class Journaled:
    """The journals of a data path.

    Attributes:
        damaged: what is damaged in them, as lines.
        remarks: what else there is to say of them.
    """

    def __init__(self, path: str) -> None:
        """Read them.

        Raises:
            UnsupportedError: a later release made one; the text names it.
            OSError: one cannot be read.
        """
        self.damaged: list[str] = []
        self.remarks: list[str] = []
        self._pieces: dict[tuple[int, int], list[JournalPiece]] = defaultdict(list)
        disk = RealDisk(path, open_flags=os.O_RDONLY)
        for name in journals_in(disk.names()):
            pieces, damaged = read_journal(disk, name)
            self.damaged += [place.text for place in damaged]
            for piece in pieces:
                self._pieces[piece.incarnation, piece.first].append(piece)
            segments = len({(piece.incarnation, piece.first) for piece in pieces})
            self.remarks.append(
                f"{name}: {len(pieces)} pieces of {segments} segments,"
                " read as if they were there; nsqd's next start writes them"
            )

    def open(self, file: DiskFile, incarnation: int, first: int, salt: int) -> DiskFile:
        """Return a segment with what the journals have of it."""
        pieces = [one for one in self._pieces.get((incarnation, first), ()) if one.salt == salt]
        return JournaledSegment(file, join_pieces(pieces)) if pieces else file


class JournaledSegment:
    """A `trionsq.disk.DiskFile` for reading: bytes at some offsets take the place of the file's."""

    def __init__(self, file: DiskFile, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._file = file
        self._pieces = pieces

    def read(self, max_bytes: int, offset: int) -> bytes:
        data = bytearray(self._file.read(max_bytes, offset))
        for start, piece in self._pieces:
            first, last = max(start, offset), min(start + len(piece), offset + max_bytes)
            if first < last:
                data.extend(bytes(max(0, last - offset - len(data))))
                data[first - offset : last - offset] = piece[first - start : last - start]
        return bytes(data)

    def size(self) -> int:
        return max([self._file.size(), *(start + len(piece) for start, piece in self._pieces)])

    def close(self) -> None:
        self._file.close()

    def write(self, data: bytes, offset: int) -> None:
        raise OSError(errno.EBADF, "only for reading")

    def write_durably(self, data: bytes, offset: int, room: int = 0) -> None:
        raise OSError(errno.EBADF, "only for reading")

    def truncate(self, size: int) -> None:
        raise OSError(errno.EBADF, "only for reading")

    def sync(self) -> None:
        raise OSError(errno.EBADF, "only for reading")
