"""The Spark source: ``spark.readStream.format("nsq")`` and ``spark.read.format("nsq")``.

Spark runs one long-lived Python process on the driver for a stream reader. The receiver and the
segment writer run in it. Executors read segments of the log.

- `datasource`: ``format("nsq")``, which has the sink as well
- `options`: the options of both
- `offsets`: positions in the log as Spark's offsets, and the end of a microbatch
- `batch`: partitions, how a task reads one, and the batch read of a whole log
- `stream`: `NsqStreamReader`, and the receiver in its process

It needs the ``spark`` extra; nothing else of trionsq imports it.
"""
