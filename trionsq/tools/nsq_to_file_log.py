"""The files of one topic: writing, syncing, rotating, and moving finished ones.

Synchronous and without a clock, so that it can run in a thread and be tested at any time of day.
After `sync` or `close`, everything written before survives a loss of power: the file was fsynced,
and so was its folder. An OSError from any method is final: records since the last sync may be
lost, and only `abandon` may be called.

Spec: tools, nsq_to_file.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from trionsq.tools import nsq_to_file_folders as folders
from trionsq.tools import nsq_to_file_options as names
from trionsq.tools.nsq_to_file_options import LogSettings

__all__ = ["Now", "TopicArchive"]

log = logging.getLogger("trionsq.tools.nsq_to_file")

_FILE_MODE: Final = 0o666
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
# Records are joined up to this size before they are written.
_CHUNK_BYTES: Final = 1024 * 1024


class Now(NamedTuple):
    """The time: ``local`` for file names, ``steady_s`` (in seconds, any origin) for intervals."""

    local: datetime
    steady_s: float


class TopicArchive:
    """The files of one topic, one after the other.

    Attributes:
        path: the file in progress; None if there is none.
        unsynced: records that were written and are not yet durable.
        files: number of files opened so far.
    """

    def __init__(self, settings: LogSettings, fsync: folders.Fsync = os.fsync) -> None:
        self.path: str | None = None
        self.unsynced = 0
        self.files = 0
        self._settings = settings
        self._fsync = fsync
        self._fd = -1
        self._name = ""
        self._revision = 0
        self._opened_s = 0.0
        self._bytes = 0
        self._is_blank = True
        self._member: zlib._Compress | None = None

    def __repr__(self) -> str:
        return f"<TopicArchive {self.path}, {self._bytes} bytes, {self.unsynced} unsynced>"

    # For the tool

    def write(self, bodies: Sequence[bytes], now: Now) -> bool:
        """Write records. True if a file was rotated, so that a `sync` is due."""
        has_rotated = False
        chunk: list[bytes] = []
        chunk_bytes = 0
        if self.path is None or self._is_due(now):
            has_rotated = self.path is not None
            self._start_file(now)
        for body in bodies:
            if self._is_full():
                self._write_records(chunk)
                self._start_file(now)
                chunk, chunk_bytes, has_rotated = [], 0, True
            chunk.append(body)
            self._bytes += len(body) + 1
            chunk_bytes += len(body) + 1
            if chunk_bytes >= _CHUNK_BYTES:
                self._write_records(chunk)
                chunk, chunk_bytes = [], 0
        self._write_records(chunk)
        return has_rotated

    def rotate_if_due(self, now: Now) -> None:
        """Start the next file if the present one is too old or too large, or if there is none."""
        if self.path is not None and not self._is_due(now) and not self._is_full():
            return
        if self._settings.skip_empty_files:
            self.close()
        else:
            self._start_file(now)

    def sync(self) -> None:
        """Make the written records durable."""
        if self.unsynced:
            self._end_member()
            self._fsync(self._fd)
            self.unsynced = 0

    def close(self) -> None:
        """Make the file durable, close it, and move it to the output dir."""
        if self.path is None:
            return
        if self._settings.gzip_level is not None and self._is_blank:
            self._write(_empty_member(self._settings.gzip_level))
        self._end_member()
        self._fsync(self._fd)
        self.unsynced = 0
        fd, self._fd = self._fd, -1
        path, self.path = self.path, None
        os.close(fd)
        if self._settings.has_work_dir:
            output = self._settings.output_dir
            folders.move(path, output, self._name, self._revision, self._fsync)

    def abandon(self) -> None:
        """Close the file as it is, after an error."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def move_unfinished_files(self) -> None:
        """Move the files that crashed processes left in the work dir. Call this before `write`."""
        settings = self._settings
        if settings.unfinished is not None:
            folders.move_unfinished_files(
                settings.work_dir,
                settings.output_dir,
                settings.unfinished,
                gzip=settings.gzip_level is not None,
                fsync=self._fsync,
            )

    # When to rotate

    def _is_due(self, now: Now) -> bool:
        interval_s = self._settings.rotate_interval_s
        if interval_s > 0 and now.steady_s - self._opened_s > interval_s:
            return True
        return self._name_at(now) != self._name

    def _is_full(self) -> bool:
        return 0 < self._settings.rotate_size < self._bytes

    def _name_at(self, now: Now) -> str:
        settings = self._settings
        moment = names.format_datetime(settings.datetime_format, now.local)
        return settings.name_format.replace(names.DATETIME, moment)

    # Bytes

    def _write_records(self, bodies: list[bytes]) -> None:
        if not bodies:
            return
        data = b"\n".join(bodies) + b"\n"
        level = self._settings.gzip_level
        if level is not None:
            if self._member is None:
                self._member = zlib.compressobj(level, wbits=_GZIP_WBITS)
            data = self._member.compress(data)
        self._write(data)
        self.unsynced += len(bodies)

    def _end_member(self) -> None:
        if self._member is not None:
            self._write(self._member.flush())
            self._member = None

    def _write(self, data: bytes) -> None:
        self._is_blank = False
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    # Files

    def _start_file(self, now: Now) -> None:
        self.close()
        name = self._name_at(now)
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        self._opened_s = now.steady_s
        while not self._open():
            self._revision += 1
        self._is_blank = True
        self.files += 1
        log.info("opened %s", self.path)

    def _open(self) -> bool:
        """Open the present revision; False if the next one has to be tried."""
        settings = self._settings
        name = names.with_revision(self._name, self._revision)
        path = names.path_of(settings.work_dir, name)
        folders.make_folder(os.path.dirname(path), self._fsync)
        if settings.has_work_dir:
            output = names.path_of(settings.output_dir, name)
            folders.make_folder(os.path.dirname(output), self._fsync)
            if os.path.lexists(output):
                return False
        mode = os.O_EXCL if settings.is_exclusive else os.O_APPEND
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, _FILE_MODE)
        except FileExistsError:
            return False
        self._bytes = os.fstat(fd).st_size
        if self._is_full():
            log.info("%s is full (%d bytes)", path, self._bytes)
            os.close(fd)
            return False
        if settings.has_work_dir and not folders.lock_file(fd, path):
            os.close(fd)
            return False
        self._fd, self.path = fd, path
        self._begin_line()
        folders.sync_folder(os.path.dirname(path), self._fsync)
        return True

    def _begin_line(self) -> None:
        """If the last record in the file is incomplete, end its line."""
        assert self.path is not None
        if self._bytes and self._settings.gzip_level is None:
            self._write(folders.finish_line(self.path))


def _empty_member(level: int) -> bytes:
    """A gzip member without content. An empty file would not be a valid gzip file."""
    return zlib.compressobj(level, wbits=_GZIP_WBITS).flush()
