"""Lets Spark find ``format("nsq")`` without registration.

Spark imports ``DefaultSource`` from every top-level module whose name begins with ``pyspark_``. The
wheel has this file as the top-level module ``pyspark_nsq``.
"""

from pipelines.source.datasource import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
