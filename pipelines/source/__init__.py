"""The Spark source: ``spark.readStream.format("nsq")`` and ``spark.read.format("nsq")``.

Spark has one long-lived Python process on the driver for a stream's reader; in it run the receiver
and the log's writer. Executors read segments of the log.

- `datasource`: `NsqDataSource`, what Spark asks first
- `options`: the options of both
- `stream`: `NsqStreamReader`, the answers to Spark's questions
- `admission`: how far a batch goes
- `offsets`: positions in the log as Spark's offsets, and what of them is lost
- `running`: the open log and the receiver in the reader's process, up to its end
- `partitions`: a batch cut into tasks, and what a task does
- `batch`: the batch read of the retained log

This needs the ``spark`` extra; nothing else of trionsq imports it.
"""
