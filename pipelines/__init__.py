"""Spark sources, sinks and ready pipelines for NSQ topics. Needs the ``spark`` extra.

- `session`, `java`: a Spark that works after ``pip install 'trionsq[spark]'`` alone
- `source`: ``readStream.format("nsq")``, and the batch read of its log
- `sink`: ``writeStream.format("nsq")`` and ``write.format("nsq")``
- `receiver`: takes messages from nsqds into the log; no Spark in it
- `wal`: the log: messages stored before they are acknowledged; no Spark in it
- `schema`, `options`: the columns of a message, and how options are read
- `jobs`: ``python -m pipelines NAME``
- `pyspark_nsq`: how Spark finds the format's name

See docs/pipelines.md.
"""
