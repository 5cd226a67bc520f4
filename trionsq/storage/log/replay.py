"""Replays journals at a start: what a power cut took from segments comes back from there.

A piece goes to the segment that it was written for, at its place; if that segment is gone, nobody
needs it. All is written again, also what seems to be there: after an fsync that failed it may be in
the page cache alone. Blocks.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from trionsq.disk import Disk, close_quietly, read_file
from trionsq.storage.log.damage import DamagedPlace
from trionsq.storage.log.format import FormatError, UnsupportedError
from trionsq.storage.log.journal import (
    SPARE_JOURNAL,
    JournalDamage,
    JournalPiece,
    journal_number,
    parse_journal,
)
from trionsq.storage.log.names import draft_name, parse_segment_name
from trionsq.storage.log.rows import StateError
from trionsq.storage.log.segments import read_header

__all__ = ["join_pieces", "journals_in", "read_journal", "replay_journals"]

_COPIED_BYTES: Final = 1 << 20


def journals_in(names: Iterable[str]) -> list[str]:
    """Return the names of journals in a folder, oldest first."""
    found = ((number, name) for name in names if (number := journal_number(name)) is not None)
    return [name for _, name in sorted(found)]


def read_journal(disk: Disk, name: str) -> tuple[list[JournalPiece], list[DamagedPlace]]:
    """Return what a journal has, and what is damaged.

    Raises:
        UnsupportedError: a later release made the file; the text names it.
        OSError: it cannot be read.
    """
    pieces: list[JournalPiece] = []
    damaged: list[DamagedPlace] = []
    try:
        for one in parse_journal(read_file(disk, name)):
            if isinstance(one, JournalDamage):
                text = f"{name}: bytes {one.offset} to {one.end} are damaged"
                damaged.append(DamagedPlace("", name, one.offset, text))
            else:
                pieces.append(one)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from error
    except FormatError as error:
        damaged.append(DamagedPlace("", name, 0, f"{name}: {error}"))
    return pieces, damaged


def join_pieces(pieces: Iterable[JournalPiece]) -> list[tuple[int, bytes]]:
    """Return offsets and data, in order; what stands side by side is one."""
    joined: list[tuple[int, list[bytes]]] = []
    end = -1
    for piece in sorted(pieces, key=lambda one: one.offset):
        if piece.offset < end:
            continue  # it is there twice
        if piece.offset == end:
            joined[-1][1].append(piece.data)
        else:
            joined.append((piece.offset, [piece.data]))
        end = piece.offset + len(piece.data)
    return [(offset, b"".join(parts)) for offset, parts in joined]


def replay_journals(disk: Disk) -> list[DamagedPlace]:
    """Write what the journals have to the segments, and remove them; return what is damaged.

    A journal whose header is damaged stays.

    Raises:
        StateError: a later release made a journal or a segment.
        OSError: a file cannot be read or written.
    """
    names = disk.names()
    segments = {(place[1], place[2]): name for name in names if (place := parse_segment_name(name))}
    damaged: list[DamagedPlace] = []
    replayed: list[str] = []
    changed: dict[str, None] = {}
    replaced: dict[str, None] = {}
    for name in journals_in(names):
        try:
            pieces, found = read_journal(disk, name)
            _write_pieces(disk, segments, pieces, changed, replaced)
        except UnsupportedError as error:
            raise StateError(str(error)) from error
        damaged += found
        if not any(place.offset == 0 for place in found):
            replayed.append(name)
    for name in changed:
        file = disk.open(name)
        try:
            file.sync()
        finally:
            close_quietly(file)
    for name in replaced:
        _replace_again(disk, name)
    if replaced:
        disk.sync_folder()
    for name in (*replayed, SPARE_JOURNAL):
        with suppress(FileNotFoundError):
            disk.unlink(name)
    return damaged


def _write_pieces(
    disk: Disk,
    segments: Mapping[tuple[int, int], str],
    pieces: Iterable[JournalPiece],
    changed: dict[str, None],
    replaced: dict[str, None],
) -> None:
    by_segment: dict[tuple[int, int], list[JournalPiece]] = defaultdict(list)
    for piece in pieces:
        by_segment[piece.incarnation, piece.first].append(piece)
    for place, parts in by_segment.items():
        name = segments.get(place)
        if name is None:
            continue
        file = disk.open(name)
        try:
            salt = read_header(file).salt
            if any(one.salt != salt for one in parts):
                # It took the name of one of which nothing was durable but here.
                replaced[name] = None
            for offset, data in join_pieces(one for one in parts if one.salt == salt):
                file.write(data, offset)
                changed[name] = None
        except UnsupportedError as error:
            raise UnsupportedError(f"{name}: {error}") from error
        except FormatError:
            pass  # whoever reads the segment says so
        finally:
            close_quietly(file)


def _replace_again(disk: Disk, name: str) -> None:
    """Have a copy of a segment take its name.

    It has replaced the segment that a journal was for. If the folder's fsync failed then, a power
    cut may bring that one back, and a later fsync proves nothing. A full disk leaves it as it is.
    """
    draft = draft_name(name)
    with suppress(FileNotFoundError):
        disk.unlink(draft)
    source = disk.open(name)
    try:
        copy = disk.create(draft)
        try:
            offset = 0
            while data := source.read(_COPIED_BYTES, offset):
                copy.write(data, offset)
                offset += len(data)
            copy.sync()
        finally:
            close_quietly(copy)
        disk.rename(draft, name)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        close_quietly(source)
