"""``format("nsq")``: the readers and writers of Spark's data source.

Spark imports this module in five short processes before the first row, one after the other. Each
imports only what it needs, inside the method that Spark calls there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pipelines.sink.options import SinkOptions
    from pipelines.sink.writers import NsqStagedWriter, NsqStreamWriter, NsqWriter
    from pipelines.source.batch import NsqBatchReader
    from pipelines.source.shared import NsqLogsReader
    from pipelines.source.stream import NsqStreamReader
    from pipelines.topiclog.batch import TopicLogBatchReader
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
        from pipelines.schema import SPARK_SCHEMA
        from pipelines.source.naming import named_options
        from pipelines.source.options import check_names
        from pipelines.topiclog.options import check_names as check_log_names
        from pipelines.topiclog.options import is_log_mode

        if is_log_mode(self.options):
            check_log_names(named_options(self.options, has_log=False))
        else:
            check_names(named_options(self.options, has_log=True))
        return SPARK_SCHEMA

    def streamReader(
        self, schema: StructType
    ) -> NsqStreamReader | NsqLogsReader | TopicLogStreamReader:
        """The reader of ``readStream``. Raises OptionsError; ValueError: another schema."""
        from pipelines.source.naming import named_options
        from pipelines.source.options import LogsOptions, read_stream
        from pipelines.topiclog.options import TopicLogOptions, is_log_mode

        _check_columns(schema)
        if is_log_mode(self.options):
            from pipelines.topiclog.stream import TopicLogStreamReader

            options = named_options(self.options, has_log=False)
            return TopicLogStreamReader(TopicLogOptions.read_stream(options))
        told = read_stream(named_options(self.options, has_log=True))
        if isinstance(told, LogsOptions):
            from pipelines.source.shared import NsqLogsReader

            return NsqLogsReader(told)
        from pipelines.source.stream import NsqStreamReader

        return NsqStreamReader(told)

    def reader(self, schema: StructType) -> NsqBatchReader | TopicLogBatchReader:
        """The reader of ``read``. Raises OptionsError; ValueError: another schema."""
        from pipelines.source.batch import NsqBatchReader
        from pipelines.source.options import BatchOptions
        from pipelines.topiclog.batch import TopicLogBatchReader
        from pipelines.topiclog.options import TopicLogOptions, is_log_mode

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
        from pipelines.sink.writers import NsqStagedWriter, NsqStreamWriter

        options = self._sink_options(schema)
        return NsqStreamWriter(options) if options.stage_path is None else NsqStagedWriter(options)

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        """The writer of ``write``. Raises OptionsError, ColumnsError; ValueError: overwrite."""
        from pipelines.sink.writers import NsqWriter

        if overwrite:
            raise ValueError('a topic can\'t be overwritten: write with mode("append")')
        options = self._sink_options(schema)
        if options.stage_path is not None:
            raise ValueError("mode=staged is for writeStream: a batch write is never repeated")
        return NsqWriter(options)

    def _sink_options(self, schema: StructType) -> SinkOptions:
        from pipelines.sink.commands import check_schema
        from pipelines.sink.options import SinkOptions

        options = SinkOptions.read(self.options)
        check_schema(schema, options.topic)
        return options


def _check_columns(schema: StructType) -> None:
    from pipelines.schema import COLUMNS

    if tuple(schema.fieldNames()) != COLUMNS:
        raise ValueError(f"the columns of nsq are {', '.join(COLUMNS)}: set no other schema")
