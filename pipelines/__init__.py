"""Spark sources, sinks and jobs for NSQ topics. Needs the ``spark`` extra.

- `session`, `java`: a Spark that works after ``pip install 'trionsq[spark]'`` alone
- `pyspark_nsq`: lets Spark find ``format("nsq")``
- `source`: ``readStream.format("nsq")``, and the batch read of its log
- `topiclog`: ``mode=log`` of the source, which reads the logs of nsqds
- `sink`: ``writeStream.format("nsq")`` and ``write.format("nsq")``
- `receiver`: receives messages from nsqds into the log; uses no Spark
- `wal`: the log, in which messages are stored before they are finished; uses no Spark
- `discovery`: topics and nsqds that nsqlookupds know
- `schema`, `options`, `errors`: the columns of a message, the reading of options, the exceptions
- `metrics`: /metrics of queries
- `jobs`: ``python -m pipelines NAME``

See docs/pipelines.md.
"""
