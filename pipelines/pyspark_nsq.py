"""Found by Spark under the name ``pyspark_nsq``: ``format("nsq")`` needs no registration.

Spark looks for ``DefaultSource`` in every top-level module whose name begins with ``pyspark_``; a
wheel has this file there.
"""

from pipelines.source.datasource import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
