"""A disk in memory that fails, fills up, crashes and loses power when a test asks for it.

`SimulatedDisk` is a `trionsq.disk.Disk` with two states: the page cache, which every operation
sees, and the durable state. `sync` makes the content of a file durable, `sync_folder` the names;
neither does the other's part. A test counts the operations of some work, then lets the disk crash
at each of them in turn::

    work(disk := SimulatedDisk())
    for at in range(1, disk.operations + 1):
        disk = SimulatedDisk(random=Random(at))
        disk.crash_at(at)
        with pytest.raises(Crashed):
            work(disk)
        recover(disk.after_kill())
        recover(disk.after_power_loss())

The disk is harsher than any real one. A synced file has no durable name before the folder is
synced. After a failed sync the content stays uncertain, even if a later sync succeeds.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from threading import Lock
from typing import Final, TypeVar

from trionsq.testing.faults import PlannedFault
from trionsq.testing.pagecache import FileContent, FolderNames, torn_range

__all__ = ["OPERATIONS", "Crashed", "SimulatedDisk", "SimulatedFile"]

_OF_DISK: Final = ("open", "create", "rename", "unlink", "names", "sync_folder", "free_bytes")
_OF_FILE: Final = ("write", "read", "size", "truncate", "sync", "close")

OPERATIONS: Final = frozenset((*_OF_DISK, *_OF_FILE))
"""Operations that can fail or crash: the names of the methods."""

_UNLIMITED_BYTES: Final = 1 << 40

_T = TypeVar("_T")


class Crashed(BaseException):
    """The simulated machine stopped. Not an Exception: error handlers must not continue."""


class SimulatedDisk:
    """The files of one folder in memory. For any thread.

    Attributes:
        path: of the folder, as errors show it.
        capacity: maximum bytes of all files, with deleted ones that are still open; None: no limit.
            May be changed at any time.
        operations: number of operations so far.
        faults: number of operations that failed because of `fail` or `capacity`, by operation.
        crashed: whether the crash planned by `crash_at` has happened.
        log: ``(operation, name)`` of each operation, if ``logged``. The name is empty for the
            folder, ``old -> new`` for a renamed file, and the name at opening for an open file.
    """

    def __init__(
        self,
        *,
        random: Random | None = None,
        path: str = "/simulated",
        capacity: int | None = None,
        logged: bool = False,
    ) -> None:
        self.path = path
        self.capacity = capacity
        self.operations = 0
        self.faults: Counter[str] = Counter()
        self.crashed = False
        self.log: list[tuple[str, str]] = []
        self._logged = logged
        self._random = random or Random(0)
        self._folder = FolderNames()
        self._handles: set[SimulatedFile] = set()
        self._planned: list[PlannedFault] = []
        self._crash: PlannedFault | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else f"{self.operations} operations"
        return f"<SimulatedDisk {self.path} {len(self._folder.names)} files, {state}>"

    # For tests: these are no operations and never fail

    @classmethod
    def load(
        cls, folder_path: str | Path, *, random: Random | None = None, path: str = "/simulated"
    ) -> SimulatedDisk:
        """Return a disk with the files of a real folder, all durable, without its folders."""
        disk = cls(random=random, path=path)
        for entry in sorted(Path(folder_path).iterdir()):
            if entry.is_file():
                disk.write_file(entry.name, entry.read_bytes())
        return disk

    def files(self) -> dict[str, bytes]:
        """Return the content of each file by name, as operations see it now."""
        with self._lock:
            return {name: bytes(file.data) for name, file in sorted(self._folder.names.items())}

    def write_file(self, name: str, data: bytes) -> None:
        """Create or replace a file, durably."""
        with self._lock:
            self._folder.change_durably(((name, FileContent(data)),))

    def uncertain_files(self) -> set[str]:
        """Return the names of files that may lose content, or that name, for a sync failed."""
        return self._folder.uncertain()

    @property
    def open_files(self) -> int:
        """Number of open files."""
        return len(self._handles)

    def fail(
        self,
        error_number: int,
        at: int = 1,
        forever: bool = False,
        only: Collection[str] | None = None,
        name: str = "*",
    ) -> None:
        """Let the ``at``-th operation from now fail; ``forever``: all later ones, too.

        ``only`` (some of `OPERATIONS`) and ``name`` (a shell pattern) select the operations; others
        neither count nor fail. A failed write leaves a part of its data in the file. A failed sync
        makes nothing durable and the content uncertain. A failed close closes the file. Other
        failed operations do nothing.
        """
        if at < 1 or not OPERATIONS.issuperset(only or ()):
            raise ValueError(f"no such operations: at={at}, only={only}")
        with self._lock:
            self._planned.append(PlannedFault(error_number, at, forever, only or OPERATIONS, name))

    def heal(self) -> None:
        """Cancel all present and planned failures."""
        with self._lock:
            self._planned.clear()

    def crash_at(self, count: int, only: Collection[str] | None = None, name: str = "*") -> None:
        """Let the ``count``-th operation from now raise `Crashed`, and all later ones, too.

        ``only`` and ``name`` select the operations that count, as in `fail`. The operation is done
        or not done; a write may be done in part.
        """
        if count < 1 or not OPERATIONS.issuperset(only or ()):
            raise ValueError(f"no such operation: count={count}, only={only}")
        with self._lock:
            self._crash = PlannedFault(0, count, False, only or OPERATIONS, name)

    def after_kill(self) -> SimulatedDisk:
        """Return the disk after a kill of the process: the whole page cache is there.

        Uncertain content stays uncertain. Planned faults are not kept.
        """
        with self._lock:
            disk = self._successor()
            disk._folder = deepcopy(self._folder)
        return disk

    def after_power_loss(self) -> SimulatedDisk:
        """Return the disk after a power failure: the durable state, and any part of the rest.

        Writes that were not durable may be complete, missing, or torn at any byte; bytes never
        written are zeros. A name may have its old or its new meaning. Each call draws anew.
        """
        with self._lock:
            disk = self._successor()
            for name, data in self._folder.after_power_loss(self._random).items():
                disk.write_file(name, data)
        return disk

    def _successor(self) -> SimulatedDisk:
        return SimulatedDisk(
            random=Random(self._random.getrandbits(64)),
            path=self.path,
            capacity=self.capacity,
            logged=self._logged,
        )

    # Operations

    def open(self, name: str) -> SimulatedFile:
        return self._perform(
            "open", (name,), lambda: SimulatedFile(self, name, self._content(name))
        )

    def create(self, name: str) -> SimulatedFile:
        def create() -> SimulatedFile:
            if name in self._folder.names:
                raise self._error(errno.EEXIST, name)
            content = FileContent()
            self._folder.change(((name, content),))
            return SimulatedFile(self, name, content)

        return self._perform("create", (name,), create)

    def rename(self, name: str, new_name: str) -> None:
        def rename() -> None:
            content = self._content(name, new_name)
            if name != new_name:
                self._folder.change(((name, None), (new_name, content)))

        self._perform("rename", (name, new_name), rename)

    def unlink(self, name: str) -> None:
        def unlink() -> None:
            self._content(name)
            self._folder.change(((name, None),))

        self._perform("unlink", (name,), unlink)

    def names(self) -> list[str]:
        known = self._folder.names
        return self._perform("names", ("",), lambda: self._random.sample(sorted(known), len(known)))

    def sync_folder(self) -> None:
        folder = self._folder
        self._perform("sync_folder", ("",), folder.mark_durable, failing=folder.mark_uncertain)

    def free_bytes(self) -> int:
        return self._perform("free_bytes", ("",), self._free_bytes)

    # All operations

    def _perform(
        self,
        operation: str,
        names: tuple[str, ...],
        act: Callable[[], _T],
        *,
        failing: Callable[[], None] = lambda: None,
        file: SimulatedFile | None = None,
    ) -> _T:
        """Run ``act``; or, if a fault is planned, run ``failing`` and raise."""
        with self._lock:
            if self.crashed:
                raise Crashed(f"{operation} after the crash")
            if file and file not in self._handles:
                raise ValueError(f"{operation} of a closed file: {file.path}")
            self.operations += 1
            if self._logged:
                self.log.append((operation, " -> ".join(names)))
            if self._crash is not None and self._crash.meets(operation, names):
                self._stop(operation, act, failing)
            # Each planned fault counts the operation, even if another one makes it fail.
            if faults := [fault for fault in self._planned if fault.meets(operation, names)]:
                self.faults[operation] += 1
                failing()
                raise self._error(faults[0].error_number, *names)
            return act()

    def _stop(self, operation: str, act: Callable[[], object], failing: Callable[[], None]) -> None:
        self.crashed = True
        outcome = self._random.choice(("not done", "done", "done in part"))
        if outcome == "done":
            with suppress(OSError):
                act()
        elif outcome == "done in part" and operation == "write":
            failing()
        raise Crashed(f"in operation {self.operations}: {operation}")

    def _error(self, error_number: int, name: str, new_name: str | None = None) -> OSError:
        path = os.path.join(self.path, name) if name else self.path
        if new_name is None:
            return OSError(error_number, os.strerror(error_number), path)
        new_path = os.path.join(self.path, new_name)
        return OSError(error_number, os.strerror(error_number), path, None, new_path)

    def _content(self, name: str, new_name: str | None = None) -> FileContent:
        if name not in self._folder.names:
            raise self._error(errno.ENOENT, name, new_name)
        return self._folder.names[name]

    def _free_bytes(self) -> int:
        if self.capacity is None:
            return _UNLIMITED_BYTES
        contents = {*self._folder.names.values(), *(file.content for file in self._handles)}
        return max(0, self.capacity - sum(len(content.data) for content in contents))


class SimulatedFile:
    """An open file of a `SimulatedDisk`, usable also after the file is renamed or deleted.

    Every method raises ValueError after `close`.

    Attributes:
        path: at opening.
        content: of the file, shared by all its open handles.
    """

    __slots__ = ("_disk", "_names", "content", "path")

    def __init__(self, disk: SimulatedDisk, name: str, content: FileContent) -> None:
        self.path = os.path.join(disk.path, name)
        self.content = content
        self._disk = disk
        self._names = (name,)
        disk._handles.add(self)

    def __repr__(self) -> str:
        return f"<SimulatedFile {self.path}>"

    def write(self, data: bytes, offset: int) -> None:
        def write() -> None:
            self._check(offset)
            count = self._fitting(len(data), offset)
            self._change(offset, data[:count])
            if count < len(data):
                self._disk.faults["write"] += 1
                raise self._disk._error(errno.ENOSPC, *self._names)

        def tear() -> None:
            first, last = torn_range(self._disk._random, len(data))
            count = self._fitting(len(data), offset)
            self._change(offset, data[: min(first, count)])
            self._change(offset + last, data[last:count])

        self._perform("write", write, tear)

    def write_durably(self, data: bytes, offset: int, room: int = 0) -> None:
        if not data:
            raise ValueError(f"nothing to make durable: {self.path}")
        content = self.content
        self.write(data + bytes(room), offset)
        self._perform("sync", content.mark_newest_durable, content.mark_newest_uncertain)

    def read(self, max_bytes: int, offset: int) -> bytes:
        def read() -> bytes:
            self._check(max_bytes, offset)
            return bytes(memoryview(self.content.data)[offset : offset + max_bytes])

        return self._perform("read", read)

    def size(self) -> int:
        return self._perform("size", lambda: len(self.content.data))

    def truncate(self, size: int) -> None:
        def truncate() -> None:
            self._check(size)
            self.content.change(size, None)

        self._perform("truncate", truncate)

    def sync(self) -> None:
        content = self.content
        self._perform("sync", content.mark_durable, content.mark_uncertain)

    def close(self) -> None:
        def close() -> None:
            self._disk._handles.discard(self)

        self._perform("close", close, close)

    def _perform(
        self,
        operation: str,
        act: Callable[[], _T],
        failing: Callable[[], None] = lambda: None,
    ) -> _T:
        return self._disk._perform(operation, self._names, act, failing=failing, file=self)

    def _change(self, offset: int, data: bytes) -> None:
        if data:
            self.content.change(offset, bytes(data))

    def _check(self, *numbers: int) -> None:
        if min(numbers) < 0:
            raise self._disk._error(errno.EINVAL, *self._names)

    def _fitting(self, size: int, offset: int) -> int:
        """Return how many of the first bytes of a write the disk has room for."""
        max_size = len(self.content.data) + self._disk._free_bytes()
        return max(0, min(size, max_size - offset))
