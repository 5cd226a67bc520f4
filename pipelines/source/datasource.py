"""``format("nsq")``: the readers and writers of Spark's data source."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pipelines.schema import COLUMNS, SPARK_SCHEMA
from pipelines.sink.commands import check_schema
from pipelines.sink.options import SinkOptions
from pipelines.sink.writers import NsqStagedWriter, NsqStreamWriter, NsqWriter
from pipelines.source.batch import NsqBatchReader
from pipelines.source.naming import named_options
from pipelines.source.options import (
    BatchOptions,
    LogsOptions,
    check_names,
    read_stream,
)
from pipelines.source.shared import NsqLogsReader
from pipelines.source.stream import NsqStreamReader
from pipelines.topiclog.batch import TopicLogBatchReader
from pipelines.topiclog.options import TopicLogOptions, is_log_mode
from pipelines.topiclog.options import check_names as check_log_names
from pipelines.topiclog.stream import TopicLogStreamReader

__all__ = ["NsqDataSource"]


class NsqDataSource(DataSource):
    """NSQ topics as a stream and as a sink, and logs as tables: a stream's, or those of nsqds."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "nsq"

    def schema(self) -> str:
        """The columns of a message. Raises OptionsError, so that load() reports wrong options."""
        if is_log_mode(self.options):
            check_log_names(named_options(self.options, has_log=False))
        else:
            check_names(named_options(self.options, has_log=True))
        return SPARK_SCHEMA

    def streamReader(
        self, schema: StructType
    ) -> NsqStreamReader | NsqLogsReader | TopicLogStreamReader:
        """The reader of ``readStream``. Raises OptionsError; ValueError: another schema."""
        _check_columns(schema)
        if is_log_mode(self.options):
            options = named_options(self.options, has_log=False)
            return TopicLogStreamReader(TopicLogOptions.read_stream(options))
        told = read_stream(named_options(self.options, has_log=True))
        return NsqLogsReader(told) if isinstance(told, LogsOptions) else NsqStreamReader(told)

    def reader(self, schema: StructType) -> NsqBatchReader | TopicLogBatchReader:
        """The reader of ``read``. Raises OptionsError; ValueError: another schema."""
        _check_columns(schema)
        if is_log_mode(self.options):
            return TopicLogBatchReader(TopicLogOptions.read_batch(self.options))
        return NsqBatchReader(BatchOptions.read(self.options))

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> NsqStreamWriter | NsqStagedWriter:
        """The writer of ``writeStream``. Complete mode publishes every row in each microbatch.

        Raises OptionsError, ColumnsError.
        """
        options = self._sink_options(schema)
        return NsqStreamWriter(options) if options.stage_path is None else NsqStagedWriter(options)

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """The writer of ``write``. Raises OptionsError, ColumnsError; ValueError: overwrite."""
        if overwrite:
            raise ValueError('a topic can\'t be overwritten: write with mode("append")')
        options = self._sink_options(schema)
        if options.stage_path is not None:
            raise ValueError("mode=staged is for writeStream: a batch write is never repeated")
        return NsqWriter(options)

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = SinkOptions.read(self.options)
        check_schema(schema, options.topic)
        return options


def _check_columns(schema: StructType) -> None:
    if tuple(schema.fieldNames()) != COLUMNS:
        raise ValueError(f"the columns of nsq are {', '.join(COLUMNS)}: set no other schema")
