"""The options of the source: of the stream, and of the batch read of its log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pipelines.options import (
    Option,
    OptionsError,
    boolean,
    duration_s,
    folder,
    integer,
    lookupd_addresses,
    nbytes,
    nsqd_addresses,
    read_options,
    text,
    texts,
    told_of,
)
from pipelines.receiver import ReceiverConfig
from pipelines.wal import WalLimits
from trionsq.client import Config, ConfigError

__all__ = ["BATCH", "STREAM", "BatchOptions", "StreamOptions", "check_names"]

_LEAST_NBYTES: Final = 16 << 20
# What a regular expression has and a topic's name has not.
_PATTERN: Final = re.compile(r"[][*+?(){}|^$\\]")
_OF_RECEIVER: Final = ("max_in_flight", "msg_timeout", "max_attempts", "sample_rate")


def _offset(told: str) -> str | int:
    """``earliest``, ``committed``, ``latest`` or a position."""
    if told.lower() in ("earliest", "committed", "latest"):
        return told.lower()
    try:
        return integer(0)(told)
    except ValueError:
        raise ValueError(
            f"{told!r} is none of earliest, committed, latest and no position"
        ) from None


_OF_LOG: Final = (
    Option("walPath", folder, "folder of the log, one for each query", required=True),
    Option(
        "startingOffsets",
        _offset,
        "where a new query begins in the log: earliest, committed, latest, or a position",
        "committed",
    ),
    Option("failOnDataLoss", boolean, "fail when the log has no more what is to be read", True),
    Option("minPartitions", integer(1, 10_000), "into how many tasks a batch is split at least", 1),
)

STREAM: Final = (
    Option("topic", text, "one, several (a,b), or a regular expression (a.*)", required=True),
    Option("channel", text, "whose messages are taken", required=True),
    Option("nsqd.tcp.addresses", nsqd_addresses, "host:port,...", ()),
    Option("lookupd.http.addresses", lookupd_addresses, "host:port,... or URLs", ()),
    *_OF_LOG,
    Option("maxInFlight", integer(), "messages received and not yet stored", 20_000),
    Option("connectionsPerNsqd", integer(1, 64), "for each topic", 4),
    Option("msgTimeoutMs", integer(), "nsqd delivers again what is not stored by then", 15_000),
    Option("maxMessagesPerTrigger", integer(), "of one batch"),
    Option("minMessagesPerTrigger", integer(), "a batch waits for so many,"),
    Option("maxTriggerDelay", duration_s, "but not for longer than this", 900.0),
    Option(
        "availableNowIdle",
        duration_s,
        "Trigger.AvailableNow ends when nothing came for so long",
        2.0,
    ),
    Option("connectTimeout", duration_s, "fails if nothing can be connected to by then", 30.0),
    Option("stopTimeout", duration_s, "for storing and giving back at the end", 15.0),
    Option("duplicatesMax", integer(), "ids remembered for each topic of an nsqd", 2_000_000),
    Option("wal.maxBytes", nbytes, "size of the log; when it is full, messages go back", 4 << 30),
    Option("wal.retention", duration_s, "how long what was committed is kept", 120.0),
    Option("wal.segmentMs", integer(), "a segment is cut after so long,", 50),
    Option("wal.segmentMessages", integer(1, 1_000_000), "or at so many messages,", 20_000),
    Option("wal.segmentBytes", nbytes, "or at so many bytes", 16 << 20),
    Option("wal.lockTimeout", duration_s, "waits so long for the process before to end", 30.0),
    Option("client.*", str, "an option of the client library: client.tls_v1, client.auth_secret"),
)

BATCH: Final = (
    *_OF_LOG,
    Option("endingOffsets", _offset, "where it ends: committed, latest, or a position", "latest"),
)


def check_names(given: Mapping[str, str]) -> None:
    """Check what can be checked before it is known whether a stream or a batch is read.

    Raises:
        OptionsError: an option that neither has, a value that makes no sense, or no ``walPath``.
    """
    known = {option.name: option for option in (*STREAM, *BATCH)}
    # A batch read needs neither a topic nor a channel.
    table = [
        replace(option, required=option.required and option in _OF_LOG) for option in known.values()
    ]
    read_options(table, given, "format nsq")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the options of a stream mean. Picklable.

    Attributes:
        limits, receiver: for the log and the receiver.
        max_messages, min_messages: of a batch; None: any number.
        Times are in seconds; the rest as in `STREAM`.
    """

    wal_path: str
    limits: WalLimits
    receiver: ReceiverConfig
    starting_offsets: str | int
    fail_on_data_loss: bool
    min_partitions: int
    max_messages: int | None
    min_messages: int | None
    max_trigger_delay_s: float
    available_now_idle_s: float
    lock_timeout_s: float

    @classmethod
    def read(cls, given: Mapping[str, str]) -> StreamOptions:
        """Raises OptionsError."""
        values = read_options(STREAM, given, "the nsq stream")
        least, most = values["minMessagesPerTrigger"], values["maxMessagesPerTrigger"]
        try:
            if least is not None and most is not None and least > most:
                raise ValueError("minMessagesPerTrigger is above maxMessagesPerTrigger")
            _check_room(values)
            receiver = _receiver_config(values)
            limits = WalLimits(values["wal.maxBytes"], values["wal.retention"])
        except ValueError as error:
            raise OptionsError(
                told_of([_in_users_words(error)], STREAM, "the nsq stream")
            ) from error
        return cls(
            wal_path=values["walPath"],
            limits=limits,
            receiver=receiver,
            starting_offsets=values["startingOffsets"],
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
            max_messages=most,
            min_messages=least,
            max_trigger_delay_s=values["maxTriggerDelay"],
            available_now_idle_s=values["availableNowIdle"],
            lock_timeout_s=values["wal.lockTimeout"],
        )


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the options of a batch read mean, as in `BATCH`."""

    wal_path: str
    starting_offsets: str | int
    ending_offsets: str | int
    fail_on_data_loss: bool
    min_partitions: int

    @classmethod
    def read(cls, given: Mapping[str, str]) -> BatchOptions:
        """Raises OptionsError."""
        # Reading all that there is, is what one means by a batch.
        told = {"startingoffsets": "earliest"} | {key.lower(): text for key, text in given.items()}
        values = read_options(BATCH, told, "the batch read of an nsq log")
        return cls(
            wal_path=values["walPath"],
            starting_offsets=values["startingOffsets"],
            ending_offsets=values["endingOffsets"],
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
        )


def _check_room(values: Mapping[str, Any]) -> None:
    # A full log goes on when there is room for two segments; the newest one always stays.
    least = max(_LEAST_NBYTES, 4 * values["wal.segmentBytes"])
    if values["wal.maxBytes"] < least:
        raise ValueError(f"wal.maxBytes must be at least {least}: room for four segments")


_USERS_WORDS: Final = {
    "nsqd_tcp_addresses": "nsqd.tcp.addresses",
    "lookupd_http_addresses": "lookupd.http.addresses",
    "topic_pattern": "topic as a pattern",
    "max_in_flight": "maxInFlight",
    "connections_per_nsqd": "connectionsPerNsqd",
    "msg_timeout_ms": "msgTimeoutMs",
    "connect_timeout_s": "connectTimeout",
    "stop_timeout_s": "stopTimeout",
}


def _in_users_words(error: ValueError) -> str:
    said = str(error)
    for name, users_name in _USERS_WORDS.items():
        said = said.replace(name, users_name)
    return said


def _receiver_config(values: Mapping[str, Any]) -> ReceiverConfig:
    """Raises ValueError."""
    topic = values["topic"]
    is_pattern = _PATTERN.search(topic) is not None
    return ReceiverConfig(
        channel=values["channel"],
        topics=() if is_pattern else texts(topic),
        topic_pattern=topic if is_pattern else "",
        nsqd_tcp_addresses=values["nsqd.tcp.addresses"],
        lookupd_http_addresses=values["lookupd.http.addresses"],
        max_in_flight=values["maxInFlight"],
        connections_per_nsqd=values["connectionsPerNsqd"],
        msg_timeout_ms=values["msgTimeoutMs"],
        client=_client_config(values["client.*"]),
        segment_ms=values["wal.segmentMs"],
        segment_messages=values["wal.segmentMessages"],
        segment_nbytes=values["wal.segmentBytes"],
        duplicates_max=values["duplicatesMax"],
        connect_timeout_s=values["connectTimeout"],
        stop_timeout_s=values["stopTimeout"],
    )


def _client_config(given: Mapping[str, str]) -> Config:
    for name in given:
        if name.replace("-", "_") in _OF_RECEIVER:
            raise ValueError(f"client.{name} is decided by the source")
    try:
        config = Config().parse(*(f"{name},{told}" for name, told in given.items()))
        config.check_files()
    except ConfigError as error:
        raise ValueError(f"client: {error}") from error
    return config
