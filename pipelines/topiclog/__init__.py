"""``mode=log``: topics that nsqd keeps in logs, read from nsqd itself. No receiver, no second log.

Executors read ranges of the logs from nsqd's HTTP; the driver only plans.

- `options`: the options of the stream and of the batch read
- `places`: places in logs as Spark's offsets, and how a range becomes partitions; no I/O
- `nsqds`: requests to the nsqds, and the logs that there are
- `channels`: the channel whose position follows the query
- `tasks`: how a task reads its partition
- `stream`, `batch`: the readers that Spark calls

It needs the ``spark`` extra.
"""
