"""Flags as Spark's options, and the frames and writers made of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.jobs.arguments import UsageError, only_one, pairs, split
from pipelines.options import OptionsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["messages", "persisted", "publish", "sink_options", "source_options"]


def source_options(arguments: argparse.Namespace, checkpoint: Path) -> dict[str, str]:
    """Options of the stream. Raises UsageError: any of them is wrong."""
    from pipelines.source.options import StreamOptions

    only_one(arguments.nsqd_tcp_address, arguments.lookupd_http_address)
    options = {
        "topic": ",".join(arguments.topic),
        "channel": arguments.channel,
        "walPath": arguments.wal or str(checkpoint / "wal"),
        **_addresses(arguments.nsqd_tcp_address, arguments.lookupd_http_address),
        **_client("--consumer-opt", arguments.consumer_opt),
        **pairs("--source-option", arguments.source_option),
    }
    _check(lambda: StreamOptions.read(options))
    return options


def sink_options(arguments: argparse.Namespace, topic: str | None) -> dict[str, str]:
    """Options of publishing: at the destination, which is the source's cluster by default.

    Raises:
        UsageError: any of them is wrong.
    """
    from pipelines.sink.options import SinkOptions

    nsqds = arguments.destination_nsqd_tcp_address
    lookupds = arguments.destination_lookupd_http_address
    if nsqds or lookupds:
        only_one(nsqds, lookupds, "destination-")
        client = _client("--producer-opt", arguments.producer_opt)
    else:
        nsqds, lookupds = arguments.nsqd_tcp_address, arguments.lookupd_http_address
        opts = arguments.producer_opt or getattr(arguments, "consumer_opt", [])
        client = _client("--producer-opt", opts)
    options = {
        **({} if topic is None else {"topic": topic}),
        **_addresses(nsqds, lookupds),
        **client,
        **pairs("--sink-option", arguments.sink_option),
    }
    _check(lambda: SinkOptions.read(options))
    return options


def messages(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The stream."""
    return spark.readStream.format("nsq").options(**options).load()


@contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Several uses of a batch, which is made once."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


def publish(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Publish the rows of a batch."""
    frame.write.format("nsq").mode("append").options(**options).save()


def _addresses(nsqds: list[str], lookupds: list[str]) -> dict[str, str]:
    if nsqds:
        return {"nsqd.tcp.addresses": split(nsqds)}
    return {"lookupd.http.addresses": split(lookupds)}


def _client(flag: str, given: list[str]) -> dict[str, str]:
    return {f"client.{name}": value for name, value in pairs(flag, given, ",").items()}


def _check(read: Callable[[], object]) -> None:
    """Raises UsageError, one line, for what an OptionsError tells in many."""
    try:
        read()
    except OptionsError as error:
        lines = str(error).partition("\nvalid options:")[0].splitlines()
        raise UsageError("; ".join(line.strip() for line in lines[1:])) from error
