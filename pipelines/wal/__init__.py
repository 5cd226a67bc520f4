"""The write-ahead log: messages stored before they are acknowledged to nsqd.

A folder with

- ``META.json``: the log's id and the version of the format
- ``LOCK``: held (flock) by the one process that writes
- ``COMMITTED.json``: the position up to which Spark has committed microbatches
- ``<first>-<end>.arrow``: immutable segments (Arrow IPC files) without gaps

A position (``lsn``) counts messages from the start of the log. Messages are durable when
`Wal.append` returns. After a crash at any point the log has all of a segment or nothing of it.

- `log`: `Wal` and `WalLimits`
- `segments`: `Block` (what is appended), `SegmentRef` and `read_segment` (for executors)
- `recovery`: reads the folder when a log is opened; `meta`: the small files and the lock
- `duplicates`: ids of the retained segments

::

    with Wal.open("/var/lib/wal", create=True, limits=WalLimits()) as wal:
        end = wal.append([Block("topic", "channel", "host:4150", ids, times_ns, attempts, bodies)])
        for ref in wal.segments(wal.committed, end):       # picklable
            for batch in read_segment(ref, ref.first, ref.end):  # pyarrow.RecordBatch
                ...
        wal.commit(end)
"""

from pipelines.errors import (
    WalDamagedError,
    WalError,
    WalFullError,
    WalLockedError,
    WalRangeError,
)
from pipelines.wal.duplicates import Duplicates
from pipelines.wal.log import Wal, WalLimits
from pipelines.wal.segments import Block, SegmentRef, read_segment

__all__ = [
    "Block",
    "Duplicates",
    "SegmentRef",
    "Wal",
    "WalDamagedError",
    "WalError",
    "WalFullError",
    "WalLimits",
    "WalLockedError",
    "WalRangeError",
    "read_segment",
]
