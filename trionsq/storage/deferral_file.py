"""The deferral file of a disk queue: when its deferred messages are due.

The original's records have no room for that time; it ignores this file of ours. The file is text:
a line with format and version, then a line for each message, in the order of storing::

    trionsq deferred 1
    30643836653932346136363633303030 1795280000000000000

A line has the message id in hex (ids of foreign files may be any bytes) and nanoseconds since the
epoch. The last line of an id counts. A crash may leave a torn line at the end.
"""

from __future__ import annotations

import errno
import logging
import re
from binascii import unhexlify
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from trionsq.disk import Disk, DiskFile, read_pieces, replace_file
from trionsq.storage.positions import QueueFiles

__all__ = ["HEADER", "Decoded", "DeferralFile", "decode", "encode"]

HEADER: Final = b"trionsq deferred 1\n"

_ID_BYTES: Final = 16
# Above any due time: a delay of 2**63 ns (--max-req-timeout) after any time that a clock can show.
_DUE_END_NS: Final = 10**20
_LINE: Final = re.compile(rb"^([0-9a-f]{32}) ([0-9]{1,20})\n", re.MULTILINE)
_MAX_LINE_BYTES: Final = 32 + 1 + 20 + 1
# Bytes decoded in one call, in less than 1 ms. A longer call would hold up the event loop even from
# another thread.
_PIECE_BYTES: Final = 64 * 1024
# Lines encoded in one call, for the same reason.
_LINES_PER_PIECE: Final = 1_000

log = logging.getLogger("trionsq")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of a file.

    Attributes:
        due_ns: due time by message id, in nanoseconds since the epoch.
        size: of the file in bytes without a torn end; new lines belong there.
        damaged: number of skipped lines.
        known: whether format and version are ours; if not, the rest is empty.
        lines: number of the other lines.
    """

    due_ns: dict[bytes, int]
    size: int
    damaged: int = 0
    known: bool = True
    lines: int = 0


def encode(entries: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the lines of messages: ids of 16 bytes with due times in nanoseconds.

    Raises:
        ValueError: an id has another size, or a time is out of range.
    """
    lines: list[str] = []
    for message_id, due_ns in entries:
        if len(message_id) != _ID_BYTES or not 0 <= due_ns < _DUE_END_NS:
            raise ValueError(f"not an id and a due time: {message_id!r}, {due_ns}")
        lines.append(f"{message_id.hex()} {due_ns}\n")
    return "".join(lines).encode()


def decode(data: bytes | Iterable[bytes]) -> Decoded:
    """Decode a whole file. It may come in pieces, the first no shorter than the header.

    A torn last line is ignored, damaged lines are skipped.
    """
    pieces = _pieces_of(data) if isinstance(data, bytes) else iter(data)
    first = next(pieces, b"")
    if not first.startswith(HEADER):
        # A part of the header is ours, too: a crash tore it off, and nothing follows.
        return Decoded({}, 0, known=HEADER.startswith(first))
    due_ns: dict[bytes, int] = {}
    size, damaged, count = len(HEADER), 0, 0
    for lines, lines_bytes in _whole_lines(chain([first[len(HEADER) :]], pieces)):
        size += lines_bytes
        entries = _entries(lines)
        damaged += lines.count(b"\n") - len(entries)
        count += len(entries)
        due_ns.update(entries)
    return Decoded(due_ns, size, damaged, lines=count)


def _pieces_of(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield some whole lines at a time with their size in the file; a torn end is left out.

    Of an overlong line only the end is yielded.
    """
    rest, rest_bytes = b"", 0
    for piece in pieces:
        data = rest + piece
        size = rest_bytes + len(piece)
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        rest_bytes = len(rest) if end else size
        if end:
            yield data[:end], size - rest_bytes
        if len(rest) > _MAX_LINE_BYTES:
            rest = b"?"  # enough to count the rest of the line as damaged


def _entries(lines: bytes) -> list[tuple[bytes, int]]:
    return [(unhexlify(id_), int(due_ns)) for id_, due_ns in _LINE.findall(lines)]


class DeferralFile:
    """The due times of one queue on disk.

    A file of an unknown version is not changed: it is renamed before the first write.

    Attributes:
        name: of the file.
        lines: number of valid lines, at most; 1 before the file was read.
    """

    __slots__ = ("_disk", "_is_foreign", "_is_uncertain", "_size", "lines", "name")

    def __init__(self, disk: Disk, queue: str) -> None:
        """``queue`` is ``topic`` or ``topic:channel``."""
        self.name = QueueFiles(queue).deferrals
        self.lines = 1
        self._disk = disk
        # Size of the file; None: unknown, 0: there is no file.
        self._size: int | None = None
        self._is_foreign = False
        # A sync failed: the content may not be durable.
        self._is_uncertain = False

    def __repr__(self) -> str:
        return f"<DeferralFile {self.name}>"

    def size(self) -> int:
        """Return the size of the file in bytes; 0 if there is none.

        Raises:
            OSError: the size cannot be read.
        """
        try:
            with closing(self._disk.open(self.name)) as file:
                return file.size()
        except FileNotFoundError:
            self._note_content(0, 0)
            return 0

    def load(self) -> dict[bytes, int]:
        """Return due times in nanoseconds since the epoch by message id; empty without a file.

        Raises:
            OSError: the file cannot be read.
        """
        decoded = self._decode()
        self._size = decoded.size
        self._is_foreign = not decoded.known
        self.lines = decoded.lines
        path = f"{self._disk.path}/{self.name}"
        if self._is_foreign:
            log.error("%s: unknown version of the format; deferred messages lose their delay", path)
        elif decoded.damaged:
            log.warning("%s: skipped %d damaged lines", path, decoded.damaged)
        return decoded.due_ns

    def append(self, entries: Sequence[tuple[bytes, int]]) -> None:
        """Add messages durably. A message that is in the file gets the new time.

        Raises:
            OSError: the messages may not be durable. The call may be repeated.
            ValueError: as `encode`.
        """
        if self._size is None:
            self.load()
        lines = self.lines + len(entries)
        new = (
            encode(entries[at : at + _LINES_PER_PIECE])
            for at in range(0, len(entries), _LINES_PER_PIECE)
        )
        if self._is_foreign or not self._size:
            self._rewrite(chain([HEADER], new), len(entries))
        elif self._is_uncertain:
            # After a failed sync a later success proves nothing about the old content.
            with closing(self._pieces()) as old:
                self._rewrite(chain([HEADER], old, new), lines)
        else:
            self._append_pieces(new)
            self.lines = lines

    def keep_only(self, is_kept: Callable[[bytes, int], bool]) -> None:
        """Keep the lines whose id and due time ``is_kept`` accepts; without any, delete the file.

        Raises:
            OSError: the file may have its old content.
        """
        if self._size is None:
            self.load()
        with closing(self._kept(is_kept)) as kept:
            first = next(kept, None)
            if first is None:
                self.remove()
                return
            count = 0

            def lines() -> Iterator[bytes]:
                nonlocal count
                yield HEADER
                for entries in chain([first], kept):
                    count += len(entries)
                    yield encode(entries)

            self._rewrite(lines(), 0)
        self.lines = count

    def _kept(
        self, is_kept: Callable[[bytes, int], bool]
    ) -> Generator[list[tuple[bytes, int]], None, None]:
        """Yield the entries to be kept, many at a time."""
        with closing(self._pieces()) as pieces:
            for lines, _ in _whole_lines(pieces):
                if entries := [entry for entry in _entries(lines) if is_kept(*entry)]:
                    yield entries

    def _pieces(self) -> Generator[bytes, None, None]:
        """Yield the content behind the header; nothing if the file is gone."""
        if self._is_foreign or not self._size:
            return
        with suppress(FileNotFoundError), closing(self._disk.open(self.name)) as file:
            pieces = read_pieces(file, self._size, _PIECE_BYTES)
            yield next(pieces, b"")[len(HEADER) :]
            yield from pieces

    def remove(self) -> None:
        """Delete the file, of any version, if there is one.

        After a power failure the file may be back, but not its messages.

        Raises:
            OSError: the file is still there.
        """
        with suppress(FileNotFoundError):
            self._disk.unlink(self.name)
        self._note_content(0, 0)

    def _decode(self) -> Decoded:
        try:
            with closing(self._disk.open(self.name)) as file:
                return decode(read_pieces(file, piece_bytes=_PIECE_BYTES))
        except FileNotFoundError:
            return Decoded({}, 0)

    def _note_content(self, size: int, lines: int) -> None:
        self._size = size
        self.lines = lines
        self._is_foreign = False
        self._is_uncertain = False

    def _rewrite(self, pieces: Iterable[bytes], lines: int) -> None:
        if self._is_foreign:
            self._set_aside()
        size = 0

        def counted_pieces() -> Iterator[bytes]:
            nonlocal size
            for piece in pieces:
                size += len(piece)
                yield piece

        replace_file(self._disk, self.name, counted_pieces())
        self._note_content(size, lines)

    def _append_pieces(self, pieces: Iterable[bytes]) -> None:
        assert self._size is not None
        try:
            file = self._disk.open(self.name)
        except FileNotFoundError:
            self._is_uncertain = True
            raise
        try:
            self._truncate(file, self._size)
            end = self._size
            for piece in pieces:
                file.write(piece, end)
                end += len(piece)
            try:
                file.sync()
            except OSError:
                self._is_uncertain = True
                raise
        finally:
            file.close()
        self._size = end

    def _truncate(self, file: DiskFile, size: int) -> None:
        """Remove what a crash or a failed write left after the last whole line."""
        size_on_disk = file.size()
        if size_on_disk > size:
            file.truncate(size)
        elif size_on_disk < size:
            self._is_uncertain = True
            raise OSError(errno.EIO, "the file is shorter than what was written", self.name)

    def _set_aside(self) -> None:
        names = set(self._disk.names())
        number = 0
        new_name = f"{self.name}.bad"
        while new_name in names:
            number += 1
            new_name = f"{self.name}.{number}.bad"
        self._disk.rename(self.name, new_name)
        log.error("%s/%s: renamed to %s", self._disk.path, self.name, new_name)
        self._is_foreign = False
        self._size = 0
