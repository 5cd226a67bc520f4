"""The options of the source: of the stream, and of the batch read of its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pipelines.errors import OptionsError
from pipelines.options import (
    Option,
    boolean,
    byte_size,
    choice,
    duration_s,
    integer,
    log_place,
    lookupd_addresses,
    nsqd_addresses,
    options_error_text,
    read_options,
    text,
    texts,
    timestamp,
)
from pipelines.receiver import ReceiverConfig
from pipelines.wal import WalLimits
from pipelines.wal.objects import is_store_url
from trionsq.client import Config, ConfigError

__all__ = [
    "BATCH",
    "LOGS",
    "STREAM",
    "BatchOptions",
    "LogsOptions",
    "StreamOptions",
    "check_names",
    "client_config",
    "is_pattern",
    "logs_root",
    "read_stream",
]

_MIN_LOG_BYTES: Final = 16 << 20
# Characters of a regular expression that a topic's name can't have
_PATTERN: Final = re.compile(r"[][*+?(){}|^$\\]")
_SET_BY_RECEIVER: Final = ("max_in_flight", "msg_timeout", "max_attempts", "sample_rate")


def _offset(text: str) -> str | int:
    """``earliest``, ``committed``, ``latest`` or a position."""
    if text.lower() in ("earliest", "committed", "latest"):
        return text.lower()
    try:
        return integer(0)(text)
    except ValueError:
        raise ValueError(f"{text!r} is not earliest, committed, latest or a position") from None


_LOG_OPTIONS: Final = (
    Option("mode", choice("receiver"), "receiver, or log: read from nsqd", "receiver"),
    Option(
        "walPath", log_place, "folder or s3:// URL of the log, one for each query", required=True
    ),
    Option(
        "startingOffsets",
        _offset,
        "where a new query begins in the log: earliest, committed, latest, or a position",
        "committed",
    ),
    Option("failOnDataLoss", boolean, "fail when the log lacks messages to be read", True),
    Option("startingTimestamp", timestamp, "in place of it: RFC 3339, or ms since 1970"),
    Option("minPartitions", integer(1, 10_000), "minimum number of tasks of a microbatch", 1),
    Option("maxRecordsPerPartition", integer(), "maximum messages of a task", 50_000),
)

STREAM: Final = (
    Option("topic", text, "one, several (a,b), or a regular expression (a.*)", required=True),
    Option("channel", text, "channel to consume", required=True),
    Option("nsqd.tcp.addresses", nsqd_addresses, "host:port,...", ()),
    Option("lookupd.http.addresses", lookupd_addresses, "host:port,... or URLs", ()),
    *_LOG_OPTIONS,
    Option("maxInFlight", integer(), "maximum messages received and not yet stored", 20_000),
    Option("connectionsPerNsqd", integer(1, 64), "connections to each nsqd for each topic", 4),
    Option(
        "msgTimeoutMs",
        integer(),
        "nsqd delivers a message again if it is not stored by then",
        15_000,
    ),
    Option("maxMessagesPerTrigger", integer(), "maximum messages of a microbatch"),
    Option("maxBytesPerTrigger", byte_size, "the same by bytes, from the mean size of messages"),
    Option("minMessagesPerTrigger", integer(), "a microbatch waits for this many messages"),
    Option("maxTriggerDelay", duration_s, "limit for that waiting", 900.0),
    Option(
        "availableNowIdle",
        duration_s,
        "Trigger.AvailableNow ends after this time without messages",
        2.0,
    ),
    Option("connectTimeout", duration_s, "the query fails without any connection by then", 30.0),
    Option("stopTimeout", duration_s, "limit for storing and requeuing at the end", 15.0),
    Option(
        "duplicatesMax",
        integer(),
        "maximum ids remembered for each topic of an nsqd; by default it follows the rate",
    ),
    Option(
        "wal.maxBytes",
        byte_size,
        "maximum size of the log; when it is full, messages are requeued",
        4 << 30,
    ),
    Option("wal.retention", duration_s, "how long committed segments are kept", 120.0),
    Option(
        "wal.segmentMs", integer(), "a segment is written after this time (50; 500 in a store),"
    ),
    Option(
        "wal.segmentMessages",
        integer(1, 1_000_000),
        "or at this number of messages (20000, store: 100000),",
    ),
    Option("wal.segmentBytes", byte_size, "or at this size", 16 << 20),
    Option(
        "wal.lockTimeout", duration_s, "limit for the previous process to release the log", 30.0
    ),
    Option("client.*", str, "an option of the client library: client.tls_v1, client.auth_secret"),
)

_OF_LOGS: Final = (
    "maxBytesPerTrigger",
    "maxMessagesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "wal.lockTimeout",
)
LOGS: Final = (*_LOG_OPTIONS, *(option for option in STREAM if option.name in _OF_LOGS))

BATCH: Final = (
    *_LOG_OPTIONS,
    Option("endingOffsets", _offset, "where it ends: committed, latest, or a position", "latest"),
    Option("endingTimestamp", timestamp, "in place of it: messages before this time"),
)


def check_names(options: Mapping[str, str]) -> None:
    """Check options before it is known whether a stream or a batch is read. Raises OptionsError.

    With a topic it can only be a stream: then what it lacks is told as well.
    """
    if any(key.lower() == "topic" for key in options):
        read_stream(options)
        return
    # A batch read needs neither a topic nor a channel.
    table = [
        replace(option, required=option.required and option in _LOG_OPTIONS)
        for option in {option.name: option for option in (*STREAM, *BATCH)}.values()
    ]
    read_options(table, options, "format nsq")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The values of the options of `STREAM`. Picklable.

    Attributes:
        limits, receiver: for the log and the receiver.
        max_messages, min_messages: of a microbatch; None for no limit.
    """

    wal_path: str
    limits: WalLimits
    receiver: ReceiverConfig
    starting_offsets: str | int
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int
    starting_time: datetime | None
    max_messages: int | None
    max_bytes: int | None
    min_messages: int | None
    max_trigger_delay_s: float
    available_now_idle_s: float
    lock_timeout_s: float

    @classmethod
    def read(cls, options: Mapping[str, str]) -> StreamOptions:
        """Raises OptionsError."""
        values = read_options(STREAM, options, "the nsq stream")
        try:
            for problem in _limit_problems(values):
                raise ValueError(problem)
            _check_room(values)
            receiver = _receiver_config(values)
            limits = WalLimits(values["wal.maxBytes"], values["wal.retention"])
        except ValueError as error:
            raise OptionsError(
                options_error_text([_with_option_names(error)], STREAM, "the nsq stream")
            ) from error
        return cls(
            wal_path=values["walPath"],
            limits=limits,
            receiver=receiver,
            starting_offsets=values["startingOffsets"],
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
            max_records=values["maxRecordsPerPartition"],
            starting_time=values["startingTimestamp"],
            max_messages=values["maxMessagesPerTrigger"],
            max_bytes=values["maxBytesPerTrigger"],
            min_messages=values["minMessagesPerTrigger"],
            max_trigger_delay_s=values["maxTriggerDelay"],
            available_now_idle_s=values["availableNowIdle"],
            lock_timeout_s=values["wal.lockTimeout"],
        )


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The values of the options of `BATCH`."""

    wal_path: str
    starting_offsets: str | int
    ending_offsets: str | int
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int
    starting_time: datetime | None
    ending_time: datetime | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> BatchOptions:
        """Raises OptionsError."""
        # A batch read covers the whole log by default.
        texts = {"startingoffsets": "earliest"} | {
            key.lower(): value for key, value in options.items()
        }
        values = read_options(BATCH, texts, "the batch read of an nsq log")
        offsets = values["startingOffsets"], values["endingOffsets"]
        if logs_root(values["walPath"]) is not None and any(isinstance(o, int) for o in offsets):
            problem = "a position is of one log; earliest, committed or latest is of several"
            raise OptionsError(options_error_text([problem], BATCH, "the batch read of nsq logs"))
        return cls(
            wal_path=values["walPath"],
            starting_offsets=values["startingOffsets"],
            ending_offsets=values["endingOffsets"],
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
            max_records=values["maxRecordsPerPartition"],
            starting_time=values["startingTimestamp"],
            ending_time=values["endingTimestamp"],
        )


@dataclass(frozen=True, slots=True)
class LogsOptions:
    """The values of the options of `LOGS`: a stream of logs that receivers elsewhere write.

    Attributes:
        root: the folder of the logs.
        starting_offsets: earliest, committed or latest.
    """

    root: str
    starting_offsets: str
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int
    starting_time: datetime | None
    max_messages: int | None
    max_bytes: int | None
    min_messages: int | None
    max_trigger_delay_s: float
    lock_timeout_s: float

    @classmethod
    def read(cls, options: Mapping[str, str]) -> LogsOptions:
        """Raises OptionsError."""
        owner = "the nsq stream of several logs"
        ours = {option.name.lower() for option in LOGS}
        known = {option.name.lower() for option in STREAM}
        of_receivers = [
            f"{key} is set where the receivers run (`python -m pipelines receive --help`)"
            for key in options
            if key.lower() in known - ours or key.lower().startswith("client.")
        ]
        if of_receivers:
            raise OptionsError(options_error_text(of_receivers, LOGS, owner))
        values = read_options(LOGS, options, owner)
        problems = _limit_problems(values)
        if isinstance(values["startingOffsets"], int):
            problems.append(
                "startingOffsets: a position is of one log; earliest, committed or latest"
            )
        if problems:
            raise OptionsError(options_error_text(problems, LOGS, owner))
        return cls(
            root=logs_root(values["walPath"]) or "",
            starting_offsets=values["startingOffsets"],
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
            max_records=values["maxRecordsPerPartition"],
            starting_time=values["startingTimestamp"],
            max_messages=values["maxMessagesPerTrigger"],
            max_bytes=values["maxBytesPerTrigger"],
            min_messages=values["minMessagesPerTrigger"],
            max_trigger_delay_s=values["maxTriggerDelay"],
            lock_timeout_s=values["wal.lockTimeout"],
        )


def read_stream(options: Mapping[str, str]) -> StreamOptions | LogsOptions:
    """The options of a stream of topics, or of the logs of receivers. Raises OptionsError."""
    path = next((value for key, value in options.items() if key.lower() == "walpath"), "")
    return (StreamOptions if logs_root(path) is None else LogsOptions).read(options)


def logs_root(wal_path: str) -> str | None:
    """The folder of several logs that ``.../*`` names; None for the folder of one log."""
    path = wal_path.strip()
    return (path[:-2] or "/") if path.endswith("/*") else None


def _limit_problems(values: Mapping[str, Any]) -> list[str]:
    least, most = values["minMessagesPerTrigger"], values["maxMessagesPerTrigger"]
    if least is not None and most is not None and least > most:
        return ["minMessagesPerTrigger is above maxMessagesPerTrigger"]
    return []


def _check_room(values: Mapping[str, Any]) -> None:
    # A full log continues when it has room for two segments; the newest one is never removed.
    least = max(_MIN_LOG_BYTES, 4 * values["wal.segmentBytes"])
    if values["wal.maxBytes"] < least:
        raise ValueError(f"wal.maxBytes must be at least {least}: room for four segments")


_OPTION_NAMES: Final = {
    "nsqd_tcp_addresses": "nsqd.tcp.addresses",
    "lookupd_http_addresses": "lookupd.http.addresses",
    "topic_pattern": "topic as a pattern",
    "max_in_flight": "maxInFlight",
    "connections_per_nsqd": "connectionsPerNsqd",
    "msg_timeout_ms": "msgTimeoutMs",
    "connect_timeout_s": "connectTimeout",
    "stop_timeout_s": "stopTimeout",
}


def _with_option_names(error: ValueError) -> str:
    text = str(error)
    for name, option_name in _OPTION_NAMES.items():
        text = text.replace(name, option_name)
    return text


def _receiver_config(values: Mapping[str, Any]) -> ReceiverConfig:
    """Raises ValueError."""
    topic = values["topic"]
    has_pattern = is_pattern(topic)
    # A request to a store takes longer, and costs money.
    is_stored = is_store_url(values["walPath"])
    return ReceiverConfig(
        channel=values["channel"],
        topics=() if has_pattern else texts(topic),
        topic_pattern=topic if has_pattern else "",
        nsqd_tcp_addresses=values["nsqd.tcp.addresses"],
        lookupd_http_addresses=values["lookupd.http.addresses"],
        max_in_flight=values["maxInFlight"],
        connections_per_nsqd=values["connectionsPerNsqd"],
        msg_timeout_ms=values["msgTimeoutMs"],
        client=client_config(values["client.*"]),
        segment_ms=values["wal.segmentMs"] or (500 if is_stored else 50),
        segment_messages=values["wal.segmentMessages"] or (100_000 if is_stored else 20_000),
        segment_bytes=values["wal.segmentBytes"],
        max_duplicates=values["duplicatesMax"],
        connect_timeout_s=values["connectTimeout"],
        stop_timeout_s=values["stopTimeout"],
    )


def is_pattern(topic: str) -> bool:
    """Whether the option ``topic`` is a regular expression, not names."""
    return _PATTERN.search(topic) is not None


def client_config(options: Mapping[str, str]) -> Config:
    """The options ``client.*``. Raises ValueError."""
    for name in options:
        if name.replace("-", "_") in _SET_BY_RECEIVER:
            raise ValueError(f"client.{name} is set by the source")
    try:
        config = Config().parse(*(f"{name},{value}" for name, value in options.items()))
        config.check_files()
    except ConfigError as error:
        raise ValueError(f"client: {error}") from error
    return config
