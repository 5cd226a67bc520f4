"""Messages for which memory has no room, and everything that survives a restart.

One backend for each topic and channel, behind `trionsq.core.queue.Backend`:

- `diskqueue`: the disk queue, in the files of the original. Its parts: `writer` (tail) and `reader`
  (head) of the `records`; `positions` (names of the files, and the positions file); `sync` (when to
  become durable, what follows from an error) and `sync_job` (the work in a thread); `deferrals`
  (when messages are due) and `deferral_file`; `recovery` (unclean stops, undeleted files); `peek`
- `log`: the log engine, in files of its own
- `discard`: the backend of ephemeral topics and channels, which discards messages

One for each data path:

- `folder`: its lock, and what all queues share: disk, limits, background jobs, faults
- `metadata`: topics and channels (``nsqd.dat``), and the message ids in use (``trionsq.dat``)

`trionsq.disk` is the disk below all of them.
"""
