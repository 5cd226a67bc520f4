"""Writes that the kernel does by itself, by io_uring: no thread, and none that waits for the GIL.

Only what a log needs: a write to a file that is durable when it is done. The structures are the
kernel's (linux/io_uring.h); their layout is the same on all machines that CPython runs on.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import Final, TypeAlias

__all__ = ["Ring", "open_ring"]

_SETUP: Final = 425
_ENTER: Final = 426

_ENTRIES: Final = 8
# The mapping of the kernel's submission entries, as an offset in the ring's descriptor.
_OFFSET_OF_ENTRIES: Final = 0x10000000
_PARAMS: Final = struct.Struct("=7I12x8IQ8IQ")
_ENTRY: Final = struct.Struct("=BBHiQQIIQ24x")
_COMPLETION: Final = struct.Struct("=QiI")
_U32: Final = struct.Struct("=I")
# One mapping for both rings; completions are never dropped; a vector need not outlive its call;
# plain writes (Linux 5.6).
_FEATURES: Final = 0b1111

_WRITEV: Final = 2
_WRITE: Final = 23
# A worker of the kernel does it: a write to a file's cache may wait for the disk.
_IN_WORKER: Final = 1 << 4
_DSYNC: Final = 2

_libc = ctypes.PyDLL(None, use_errno=True)  # no call of it blocks, so it keeps the GIL
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_Write: TypeAlias = tuple[bytes, int, Callable[[OSError | None], None]]

# What stands behind a write that makes room; nobody ever writes to it, so it takes no memory.
_ZEROS: Final = bytes(2 << 20)


class _Pieces(ctypes.Structure):
    """Two `struct iovec`: data, and zeros."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("data_size", ctypes.c_size_t),
        ("zeros", ctypes.c_char_p),
        ("zeros_size", ctypes.c_size_t),
    )


# Writes that were under way when their ring was closed: the kernel may still read the bytes.
_abandoned: list[tuple[mmap.mmap, mmap.mmap, dict[int, _Write]]] = []


class Ring:
    """Writes that are under way. For one thread; no call blocks."""

    def __init__(self) -> None:
        """Make a ring.

        Raises:
            OSError: the system has none, or does not let us use it.
        """
        params = ctypes.create_string_buffer(_PARAMS.size)
        fd = _syscall(_SETUP, _ENTRIES, params)
        if fd < 0:
            raise _os_error(ctypes.get_errno())
        self._fd = int(fd)
        try:
            self._map(_PARAMS.unpack(params.raw))
        except BaseException:
            os.close(self._fd)
            raise
        self._tail = self._head = 0
        self._pieces = _Pieces()
        # Where the data of these is.
        self._address = ctypes.c_size_t.from_buffer(self._pieces)
        # The bytes have to stay where they are.
        self._under_way: dict[int, _Write] = {}

    def _map(self, params: tuple[int, ...]) -> None:
        entries, completions, features = params[0], params[1], params[5]
        if features & _FEATURES != _FEATURES:
            raise _os_error(errno.ENOSYS)
        submission, completion = params[7:16], params[16:25]
        self._sq_tail, self._sq_array = submission[1], submission[6]
        self._cq_head, self._cq_tail, self._cqes = completion[0], completion[1], completion[5]
        self._mask, self._cq_mask = entries - 1, completions - 1
        nbytes = max(
            self._sq_array + entries * _U32.size, self._cqes + completions * _COMPLETION.size
        )
        self._rings = mmap.mmap(self._fd, nbytes)
        self._entries = mmap.mmap(self._fd, entries * _ENTRY.size, offset=_OFFSET_OF_ENTRIES)

    def __repr__(self) -> str:
        return f"<Ring {self._fd} writes={len(self._under_way)}>"

    def __len__(self) -> int:
        """Return how many writes are under way."""
        return len(self._under_way)

    def fileno(self) -> int:
        """Return a descriptor that is readable while a write has ended."""
        return self._fd

    def submit_write(
        self, fd: int, data: bytes, offset: int, room: int, done: Callable[[OSError | None], None]
    ) -> bool:
        """Begin to write ``data``, and ``room`` zeros behind it, and to make that durable.

        Returns False if that cannot begin now. `end_writes` calls ``done`` with the error, if any.
        After one, any part may be written.
        """
        if len(self._under_way) >= _ENTRIES or room > len(_ZEROS):
            return False
        at = self._tail & self._mask
        number = self._tail
        pieces, size = self._pieces, len(data)
        pieces.data = data
        if room:
            # The kernel reads the vector before the call below returns.
            pieces.data_size, pieces.zeros, pieces.zeros_size = size, _ZEROS, room
            operation, address, length = _WRITEV, ctypes.addressof(pieces), 2
        else:
            operation, address, length = _WRITE, self._address.value, size
        _ENTRY.pack_into(
            self._entries, at * _ENTRY.size,
            operation, _IN_WORKER, 0, fd, offset, address, length, _DSYNC, number,
        )  # fmt: skip
        _U32.pack_into(self._rings, self._sq_array + at * _U32.size, at)
        _U32.pack_into(self._rings, self._sq_tail, (number + 1) & 0xFFFFFFFF)
        if _syscall(_ENTER, self._fd, 1, 0, 0, None, 0) != 1:
            # The kernel has not taken the entry.
            _U32.pack_into(self._rings, self._sq_tail, number)
            return False
        self._tail = (number + 1) & 0xFFFFFFFF
        self._under_way[number] = data, size + room, done
        return True

    def end_writes(self) -> None:
        """Call the ``done`` of each write that has ended.

        One that raises holds up the others until the next call.
        """
        (tail,) = _U32.unpack_from(self._rings, self._cq_tail)
        while self._head != tail:
            place = self._cqes + (self._head & self._cq_mask) * _COMPLETION.size
            number, result, _ = _COMPLETION.unpack_from(self._rings, place)
            self._head = (self._head + 1) & 0xFFFFFFFF
            _U32.pack_into(self._rings, self._cq_head, self._head)
            _, size, done = self._under_way.pop(number)
            if result < 0:
                done(_os_error(-result))
            elif result < size:
                # Or a limit was met: a further write would say which.
                done(_os_error(errno.ENOSPC))
            else:
                done(None)

    def close(self) -> None:
        """Release the ring. What is under way goes on, and nobody hears of it."""
        if self._under_way:
            _abandoned.append((self._rings, self._entries, self._under_way))
        else:
            self._rings.close()
            self._entries.close()
        os.close(self._fd)


def open_ring() -> Ring | None:
    """Return a new ring; None if the system has none, or does not let us use it."""
    if sys.platform != "linux":
        return None
    try:
        return Ring()
    except OSError:
        return None


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
