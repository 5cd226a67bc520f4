"""The Spark sink: ``df.writeStream.format("nsq")`` and ``df.write.format("nsq")``.

- `options`: the options, the same for both
- `commands`: rows become commands, after a check of their columns
- `nsqds`: publishes commands: nsqds in rotation, failover, bounded retries
- `writers`: what Spark calls: direct (at least once) and staged (once a microbatch is complete)
- `stage`: the folder of staged mode, with `stagedfile` for each task

It needs the ``spark`` extra; of trionsq only `pipelines.source.datasource` imports it.
"""
