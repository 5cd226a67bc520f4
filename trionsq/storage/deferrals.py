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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from trionsq.disk import Disk, DiskFile, read_pieces, replace_file

__all__ = ["HEADER", "Decoded", "DeferralFile", "decode", "encode", "sidecar_name"]

HEADER: Final = b"trionsq deferred 1\n"

_ID_NBYTES: Final = 16
# Due times are below: a delay of 2**63 ns (--max-req-timeout) from any time that a clock can show.
_DUE_END_NS: Final = 10**20
_LINE: Final = re.compile(rb"^([0-9a-f]{32}) ([0-9]{1,20})\n", re.MULTILINE)
# No line of ours is longer.
_LINE_NBYTES_MAX: Final = 32 + 1 + 20 + 1
# How much is decoded at once. A call that does more would keep the event loop from running, even
# in a thread of its own: this takes less than 1 ms.
_PIECE_NBYTES: Final = 64 * 1024
_ENCODED_AT_ONCE: Final = 1_000

log = logging.getLogger("trionsq")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a file says.

    Attributes:
        due_ns: by message id, nanoseconds since the epoch.
        nbytes: size of the file without a torn end; new lines belong there.
        damaged: lines that were skipped.
        known: whether the file is of our format and version; if not, the rest is empty.
        lines: those that were not skipped. The last one of an id counts.
    """

    due_ns: dict[bytes, int]
    nbytes: int
    damaged: int = 0
    known: bool = True
    lines: int = 0


def encode(entries: Iterable[tuple[bytes, int]]) -> bytes:
    """The lines of some messages, each an id of 16 bytes and its due time in nanoseconds.

    Raises:
        ValueError: an id has another size, or a time does not fit.
    """
    lines: list[str] = []
    for message_id, due_ns in entries:
        if len(message_id) != _ID_NBYTES or not 0 <= due_ns < _DUE_END_NS:
            raise ValueError(f"no id or due time: {message_id!r}, {due_ns}")
        lines.append(f"{message_id.hex()} {due_ns}\n")
    return "".join(lines).encode()


def decode(data: bytes | Iterable[bytes]) -> Decoded:
    """Read a whole file, which may come in pieces, the first no shorter than the header.

    A torn last line is ignored, damaged lines are skipped.
    """
    pieces = _cut(data) if isinstance(data, bytes) else iter(data)
    first = next(pieces, b"")
    if not first.startswith(HEADER):
        # Also the start of a header that a crash cut off is ours: there is nothing behind it.
        return Decoded({}, 0, known=HEADER.startswith(first))
    due_ns: dict[bytes, int] = {}
    nbytes, damaged, count = len(HEADER), 0, 0
    for lines, lines_nbytes in _whole_lines(chain([first[len(HEADER) :]], pieces)):
        nbytes += lines_nbytes
        found = _entries(lines)
        damaged += lines.count(b"\n") - len(found)
        count += len(found)
        due_ns.update(found)
    return Decoded(due_ns, nbytes, damaged, lines=count)


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _PIECE_NBYTES] for at in range(0, len(data), _PIECE_NBYTES))


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Some whole lines at a time, and how many bytes of the file they are; a torn end is left out.

    Of a line that is longer than any of ours only the end comes.
    """
    rest, rest_nbytes = b"", 0
    for piece in pieces:
        data = rest + piece
        nbytes = rest_nbytes + len(piece)
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        rest_nbytes = len(rest) if end else nbytes
        if end:
            yield data[:end], nbytes - rest_nbytes
        if len(rest) > _LINE_NBYTES_MAX:
            rest = b"?"  # enough to make a damaged line of what is still to come


def _entries(lines: bytes) -> list[tuple[bytes, int]]:
    return [(unhexlify(id_), int(due_ns)) for id_, due_ns in _LINE.findall(lines)]


def sidecar_name(queue: str) -> str:
    """Name of the file of a queue (``topic`` or ``topic:channel``)."""
    return f"{queue}.diskqueue.deferred.dat"


class DeferralFile:
    """The due times of one queue.

    A file of another version is left alone; when there is something to write, it is renamed.

    Attributes:
        name: of the file.
        lines: at most so many useful lines stand in it; 1 if it was not looked at yet.
    """

    def __init__(self, disk: Disk, queue: str) -> None:
        """``queue`` is ``topic`` or ``topic:channel``."""
        self.name = sidecar_name(queue)
        self.lines = 1
        self._disk = disk
        self._nbytes: int | None = None  # None: not looked at yet; 0: there is no file
        self._is_foreign = False
        self._is_doubtful = False

    def __repr__(self) -> str:
        return f"<DeferralFile {self.name}>"

    def size(self) -> int:
        """Of the file, in bytes; 0 if there is none.

        Raises:
            OSError: it can't be asked.
        """
        try:
            with closing(self._disk.open(self.name)) as file:
                return file.size()
        except FileNotFoundError:
            self._wrote(0, 0)
            return 0

    def load(self) -> dict[bytes, int]:
        """Due time in nanoseconds since the epoch, by message id; empty if there is no file.

        Raises:
            OSError: the file can't be read.
        """
        decoded = self._decode()
        self._nbytes = decoded.nbytes
        self._is_foreign = not decoded.known
        self.lines = decoded.lines
        path = f"{self._disk.path}/{self.name}"
        if self._is_foreign:
            log.error("%s: of an unknown version; messages in it lose their delay", path)
        elif decoded.damaged:
            log.warning("%s: skipped %d damaged lines", path, decoded.damaged)
        return decoded.due_ns

    def append(self, entries: Sequence[tuple[bytes, int]]) -> None:
        """Add messages, durably. A message that is there already gets the new time.

        Raises:
            OSError: they may not be durable. The call may be repeated.
            ValueError: as `encode`.
        """
        if self._nbytes is None:
            self.load()
        lines = self.lines + len(entries)
        new = (
            encode(entries[at : at + _ENCODED_AT_ONCE])
            for at in range(0, len(entries), _ENCODED_AT_ONCE)
        )
        if self._is_foreign or not self._nbytes:
            self._write_anew(chain([HEADER], new), len(entries))
        elif self._is_doubtful:
            # A sync that succeeds later proves nothing about what an earlier one failed to do.
            with closing(self._pieces()) as old:
                self._write_anew(chain([HEADER], old, new), lines)
        else:
            self._write_end(new)
            self.lines = lines

    def keep_only(self, is_kept: Callable[[bytes, int], bool]) -> None:
        """Keep the lines for whose id and due time ``is_kept`` says so; without any, no file.

        Raises:
            OSError: the earlier content may stand.
        """
        if self._nbytes is None:
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

            self._write_anew(lines(), 0)
        self.lines = count

    def _kept(
        self, is_kept: Callable[[bytes, int], bool]
    ) -> Generator[list[tuple[bytes, int]], None, None]:
        """The entries to be kept, many at a time."""
        with closing(self._pieces()) as pieces:
            for lines, _ in _whole_lines(pieces):
                if entries := [entry for entry in _entries(lines) if is_kept(*entry)]:
                    yield entries

    def _pieces(self) -> Generator[bytes, None, None]:
        """What stands in the file behind the header; nothing if it went away."""
        if self._is_foreign or not self._nbytes:
            return
        with suppress(FileNotFoundError), closing(self._disk.open(self.name)) as file:
            pieces = read_pieces(file, self._nbytes, _PIECE_NBYTES)
            yield next(pieces, b"")[len(HEADER) :]
            yield from pieces

    def remove(self) -> None:
        """Remove the file, of whatever version, if there is one.

        After a power failure it may be back: its messages are not.

        Raises:
            OSError: it is still there.
        """
        with suppress(FileNotFoundError):
            self._disk.unlink(self.name)
        self._wrote(0, 0)

    def _decode(self) -> Decoded:
        try:
            with closing(self._disk.open(self.name)) as file:
                return decode(read_pieces(file, piece_bytes=_PIECE_NBYTES))
        except FileNotFoundError:
            return Decoded({}, 0)

    def _wrote(self, nbytes: int, lines: int) -> None:
        self._nbytes = nbytes
        self.lines = lines
        self._is_foreign = False
        self._is_doubtful = False

    def _write_anew(self, pieces: Iterable[bytes], lines: int) -> None:
        if self._is_foreign:
            self._set_aside()
        nbytes = 0

        def counted() -> Iterator[bytes]:
            nonlocal nbytes
            for piece in pieces:
                nbytes += len(piece)
                yield piece

        replace_file(self._disk, self.name, counted())
        self._wrote(nbytes, lines)

    def _write_end(self, pieces: Iterable[bytes]) -> None:
        assert self._nbytes is not None
        try:
            file = self._disk.open(self.name)
        except FileNotFoundError:
            self._is_doubtful = True
            raise
        try:
            self._cut_off(file, self._nbytes)
            end = self._nbytes
            for piece in pieces:
                file.write(piece, end)
                end += len(piece)
            try:
                file.sync()
            except OSError:
                self._is_doubtful = True
                raise
        finally:
            file.close()
        self._nbytes = end

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
