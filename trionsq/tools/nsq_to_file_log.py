"""The files of one topic: written, made durable, rotated, moved when they are done.

Synchronous and without a clock, so that it can run in a thread and be tested at any time of day.
After `sync` or `close`, everything written before survives a loss of power: the file was fsynced,
and so was the folder that has its name. An OSError from any method is final: what was written
since the last sync may be lost, and only `abandon` may be called.

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

__all__ = ["Now", "TopicLog"]

log = logging.getLogger("trionsq.tools.nsq_to_file")

_FILE_MODE: Final = 0o666
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
# Written to the file at least so often, in bytes.
_CHUNK_NBYTES: Final = 1024 * 1024


class Now(NamedTuple):
    """The time: ``local`` names files, ``steady_s`` (any origin, in seconds) measures intervals."""

    local: datetime
    steady_s: float


class TopicLog:
    """The files of one topic, one after the other.

    Attributes:
        path: of the file in progress; None without one.
        unsynced: records that were written and not yet made durable.
        files: opened so far.
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
        self._nbytes = 0
        self._is_blank = True
        self._member: zlib._Compress | None = None

    def __repr__(self) -> str:
        return f"<TopicLog {self.path}, {self._nbytes} bytes, {self.unsynced} unsynced>"

    # What the tool does

    def write(self, bodies: Sequence[bytes], now: Now) -> bool:
        """Write records; True if a file was done meanwhile, so that a `sync` is due."""
        has_rotated = False
        chunk: list[bytes] = []
        chunk_nbytes = 0
        if self.path is None or self._is_due(now):
            has_rotated = self.path is not None
            self._next_file(now)
        for body in bodies:
            if self._is_full():
                self._put(chunk)
                self._next_file(now)
                chunk, chunk_nbytes, has_rotated = [], 0, True
            chunk.append(body)
            self._nbytes += len(body) + 1
            chunk_nbytes += len(body) + 1
            if chunk_nbytes >= _CHUNK_NBYTES:
                self._put(chunk)
                chunk, chunk_nbytes = [], 0
        self._put(chunk)
        return has_rotated

    def tick(self, now: Now) -> None:
        """Time has passed: rotate if that is due."""
        if self.path is not None and not self._is_due(now) and not self._is_full():
            return
        if self._settings.skip_empty_files:
            self.close()
        else:
            self._next_file(now)

    def sync(self) -> None:
        """Make durable what was written."""
        if self.unsynced:
            self._end_member()
            self._fsync(self._fd)
            self.unsynced = 0

    def close(self) -> None:
        """The file is done: make it durable, and move it where it belongs."""
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
        """After an error: let go of the file, as it is."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def move_leftovers(self) -> None:
        """Before the first record: move what crashed processes left in the work dir."""
        settings = self._settings
        if settings.leftovers is not None:
            folders.move_leftovers(
                settings.work_dir,
                settings.output_dir,
                settings.leftovers,
                gzip=settings.gzip_level is not None,
                fsync=self._fsync,
            )

    # When a file is done

    def _is_due(self, now: Now) -> bool:
        interval_s = self._settings.rotate_interval_s
        if interval_s > 0 and now.steady_s - self._opened_s > interval_s:
            return True
        return self._name_at(now) != self._name

    def _is_full(self) -> bool:
        return 0 < self._settings.rotate_size < self._nbytes

    def _name_at(self, now: Now) -> str:
        settings = self._settings
        moment = names.format_datetime(settings.datetime_format, now.local)
        return settings.name_format.replace(names.DATETIME, moment)

    # Bytes

    def _put(self, bodies: list[bytes]) -> None:
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

    def _next_file(self, now: Now) -> None:
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
        """Open the present revision; False if another one has to be tried."""
        settings = self._settings
        name = names.with_revision(self._name, self._revision)
        path = names.path_of(settings.work_dir, name)
        folders.make_folder(os.path.dirname(path), self._fsync)
        if settings.has_work_dir:
            done = names.path_of(settings.output_dir, name)
            folders.make_folder(os.path.dirname(done), self._fsync)
            if os.path.lexists(done):
                return False
        mode = os.O_EXCL if settings.is_exclusive else os.O_APPEND
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, _FILE_MODE)
        except FileExistsError:
            return False
        self._nbytes = os.fstat(fd).st_size
        if self._is_full():
            log.info("%s has %d bytes already", path, self._nbytes)
            os.close(fd)
            return False
        if settings.has_work_dir and not folders.hold(fd, path):
            os.close(fd)
            return False
        self._fd, self.path = fd, path
        self._begin_line()
        folders.sync_folder(os.path.dirname(path), self._fsync)
        return True

    def _begin_line(self) -> None:
        """A record that a crash or a full disk cut off in this file gets a line of its own."""
        assert self.path is not None
        if self._nbytes and self._settings.gzip_level is None:
            self._write(folders.finish_line(self.path))


def _empty_member(level: int) -> bytes:
    """What a gzip file without content consists of: no bytes at all would be no gzip file."""
    return zlib.compressobj(level, wbits=_GZIP_WBITS).flush()
