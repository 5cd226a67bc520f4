"""The Spark sink: ``df.writeStream.format("nsq")`` and ``df.write.format("nsq")``.

- `options`: the options, the same for both
- `columns`: which columns there may be
- `parcels`: rows become commands, framed in bulk
- `nsqds`: who takes them: in turn, with fail-over, bounded retries, confirmed
- `writer`: at least once: tasks publish
- `staged`: published once, when the batch is complete; its folder is `stage`, on `arrowfiles`
- `errors`: what can go wrong

This needs the ``spark`` extra; nothing else of trionsq imports it.
"""
