"""The jobs: ``python -m pipelines NAME ...``, or by spark-submit.

- `archive`: topics to a table, by date and topic
- `compact`: small files of such a table joined to larger ones
- `counts`: rates and sizes in time windows, by topic
- `deadletter`: messages with too many attempts, to a table and a topic
- `receive`: topics into logs that queries elsewhere read
- `replay`: an archive back into a topic, at a rate
- `enrich`: messages joined with a static table, by SQL
- `mirror`: topics of one cluster into another

They share `arguments` (flags, and the options of format nsq made from them), `job` (signals, the
session, a query from start to stop), `table` (the flags of tables) and `terminal` (progress and
failures). `parquet` and `compaction` are a table of Parquet files; `delta`, `deltafiles` and
`deltasource` are a Delta table.

A job imports pyspark and pyarrow when it runs: ``--help`` does not wait for them. So annotations
import their types under TYPE_CHECKING.
"""
