"""Ready pipelines: ``python -m pipelines NAME ...``, or by spark-submit.

- `archive`: topics to Parquet, by date and topic
- `compact`: small files of such a table joined; `compaction` does it
- `counts`: rates and sizes in windows, by topic
- `deadletter`: messages with too many attempts, to a table and a topic
- `replay`: an archive back into a topic, at a rate; `portions`, `pace`
- `enrich`: messages joined with a static table, by SQL
- `mirror`: topics of one cluster into another

What they share: `arguments` (flags), `frames` (Spark's options made of them), `running` (a query
from its start to a clean stop), `progress` and `failures` (what a terminal shows), `table` (Parquet
files that appear once), `files` (what survives a power cut).
"""
