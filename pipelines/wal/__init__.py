"""The write-ahead log: messages stored before they are acknowledged to nsqd.

A log lives in a folder with

- ``META.json``: the log's id and the version of the format
- ``LOCK``: held (flock) by the one process that writes
- ``COMMITTED.json``: the position up to which Spark has committed microbatches;
  ``<position>.committed``: the same of a reader that does not write the log
- ``<first>-<end>.arrow``: immutable segments (Arrow IPC files) without gaps
- ``OWNER.json``: who writes

or in an object store; see `store`. A position (``lsn``) counts messages from the start of the log.
Messages are durable when `Wal.append` returns. After a crash at any point the log has all of a
segment or nothing of it. There are never two writers: whoever takes a log over fences the former
writer off, even if that one sleeps and wakes up later.

- `log`: `Wal` and `WalLimits`, for the writer; `view`: `LogView`, for those who only read and
  commit, and `open_logs`
- `segments`: `Block` (what is appended), `SegmentRef` and `read_segment` (for executors)
- `place`: where a log can live; `folder` and `store`: the two kinds
- `recovery`: reads the folder when a log is opened; `meta`: the small files and the lock
- `duplicates`: the ids of messages that the log has

::

    with Wal.open("/var/lib/wal", create=True, limits=WalLimits()) as wal:
        end = wal.append([Block("topic", "channel", "host:4150", ids, times_ns, attempts, bodies)])
        for ref in wal.segments(wal.committed, end):       # picklable
            for batch in read_segment(ref, ref.first, ref.end):  # pyarrow.RecordBatch
                ...
        wal.commit(end)

Two processes, of which one receives and the other reads::

    wal = Wal.open("s3://bucket/logs/a", take_over=True)   # whoever had it writes no more
    wal.append(...)                 # WalFencedError after the next process has taken it over

    for name, view in open_logs("s3://bucket/logs").items():  # LogView.open(path) for one
        view.first, view.end        # no lock; also id, committed
        view.refresh()              # cheap; then view.end is later
        refs = view.segments(view.committed, view.end)
        view.commit(view.end)       # the writer trims
"""

from pipelines.errors import (
    WalDamagedError,
    WalError,
    WalFencedError,
    WalFullError,
    WalLockedError,
    WalMissingError,
    WalRangeError,
)
from pipelines.wal.duplicates import Duplicates
from pipelines.wal.log import Wal, WalLimits
from pipelines.wal.segments import Block, SegmentRef, read_segment
from pipelines.wal.store import oldest_ns
from pipelines.wal.view import LogView, open_logs

__all__ = [
    "Block",
    "Duplicates",
    "LogView",
    "SegmentRef",
    "Wal",
    "WalDamagedError",
    "WalError",
    "WalFencedError",
    "WalFullError",
    "WalLimits",
    "WalLockedError",
    "WalMissingError",
    "WalRangeError",
    "oldest_ns",
    "open_logs",
    "read_segment",
]
