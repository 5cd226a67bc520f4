"""The options of ``mode=log``: of the stream, and of the batch read of history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pipelines.errors import OptionsError
from pipelines.options import (
    Option,
    boolean,
    byte_size,
    choice,
    duration_s,
    integer,
    lookupd_addresses,
    options_error_text,
    read_options,
    text,
    texts,
    timestamp,
)
from pipelines.source.options import client_config, is_pattern
from pipelines.topiclog.places import (
    BEGINNING,
    END,
    Positions,
    parse_positions,
    position_at,
)
from trionsq.client import Config
from trionsq.hostport import parse_address
from trionsq.httpmessage import GetError, split_url
from trionsq.wire.names import is_valid_name

__all__ = ["BATCH", "STREAM", "TopicLogOptions", "check_names", "is_log_mode"]

_STREAM_OWNER: Final = "the nsq stream with mode=log"
_BATCH_OWNER: Final = "the nsq batch read with mode=log"


def _http_addresses(value: str) -> tuple[str, ...]:
    """One or several ``host:port`` or ``http(s)://host:port`` of nsqd's HTTP."""
    addresses = texts(value)
    for address in addresses:
        if "@" in address:
            shown = address.rpartition("@")[2]
            raise ValueError(f"the address of {shown} has credentials: set client.auth_secret")
        if "://" not in address:
            parse_address(address)
            continue
        try:
            parts = split_url(address)
        except GetError as error:
            raise ValueError(str(error)) from None
        if parts.path not in ("", "/") or parts.query:
            raise ValueError(f"{address!r} has a path: write http://host:port")
    return tuple(address.rstrip("/") for address in addresses)


def _starting(value: str) -> Positions:
    return parse_positions(BEGINNING, value)


def _ending(value: str) -> Positions:
    return parse_positions(END, value)


_STARTING_HELP: Final = (
    'earliest, latest, or JSON: {"orders": {"127.0.0.1:4151": 81237}}; -2 is earliest, -1 latest'
)


def _shared_options(starting: str) -> tuple[Option, ...]:
    return (
        Option("mode", choice("log"), "log: read topics from the logs of nsqd", required=True),
        Option("topic", text, "one, several (a,b), or a regular expression (a.*)", required=True),
        Option("nsqd.http.addresses", _http_addresses, "host:port,... or URLs of nsqd's HTTP", ()),
        Option("lookupd.http.addresses", lookupd_addresses, "host:port,... or URLs", ()),
        Option("startingOffsets", _starting, _STARTING_HELP, _starting(starting)),
        Option("startingTimestamp", timestamp, "in place of it: RFC 3339, or ms since 1970"),
        Option("failOnDataLoss", boolean, "fail when a log lacks messages to be read", True),
        Option("minPartitions", integer(1, 10_000), "minimum number of tasks of a microbatch", 1),
        Option("maxRecordsPerPartition", integer(), "maximum messages of a task", 200_000),
        Option("nsqdTimeout", duration_s, "limit for waiting for an nsqd that is away", 120.0),
        Option("client.*", str, "an option of the client library: client.tls_root_ca_file"),
    )


STREAM: Final = (
    *_shared_options("latest"),
    Option("channel", text, "channel whose position follows the query; no consumer may use it"),
    Option(
        "whenNsqdIsAway", choice("continue", "wait"), "continue without it, or wait", "continue"
    ),
    Option("maxMessagesPerTrigger", integer(), "maximum messages of a microbatch"),
    Option("maxBytesPerTrigger", byte_size, "the same by bytes, from the mean size of messages"),
    Option("minMessagesPerTrigger", integer(), "a microbatch waits for this many messages"),
    Option("maxTriggerDelay", duration_s, "limit for that waiting", 900.0),
)

BATCH: Final = (
    *_shared_options("earliest"),
    Option("endingOffsets", _ending, _STARTING_HELP, _ending("latest")),
    Option("endingTimestamp", timestamp, "in place of it: messages before this time"),
)


def is_log_mode(options: Mapping[str, str]) -> bool:
    """Whether the options ask for ``mode=log``.

    Raises:
        OptionsError: the mode is neither ``log`` nor ``receiver``.
    """
    mode = next((value for key, value in options.items() if key.lower() == "mode"), "receiver")
    if mode.lower() not in ("log", "receiver"):
        raise OptionsError(
            f"options of format nsq:\n  mode: {mode!r} is neither receiver nor log (staged and "
            "direct are modes of writing)"
        )
    return mode.lower() == "log"


def check_names(options: Mapping[str, str]) -> None:
    """Check options before it is known whether a stream or a batch is read. Raises OptionsError."""
    table = list({option.name: option for option in (*STREAM, *BATCH)}.values())
    values = read_options(table, options, "format nsq with mode=log")
    try:
        _check(values)
    except ValueError as error:
        raise OptionsError(options_error_text([str(error)], table, "format nsq")) from error


@dataclass(frozen=True, slots=True)
class TopicLogOptions:
    """The values of the options of `STREAM` or `BATCH`. Picklable.

    Attributes:
        topics: names; empty if there is a pattern.
        topic_pattern: matches whole names.
        nsqds: addresses or URLs of their HTTP.
        starting, ending: where a new query begins, and where a batch read ends.
        nsqd_timeout_s: how long a task, or the start, waits for an nsqd.
        waits: whether microbatches wait for an nsqd that is away.
        channel: empty for none.
        max_messages, max_bytes, min_messages: of a microbatch; None for no limit.
    """

    topics: tuple[str, ...]
    topic_pattern: str
    nsqds: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    starting: Positions
    ending: Positions
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int
    nsqd_timeout_s: float
    client: Config
    channel: str = ""
    waits: bool = False
    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_trigger_delay_s: float = 900.0

    @classmethod
    def read_stream(cls, options: Mapping[str, str]) -> Self:
        """The options of a stream. Raises OptionsError."""
        return cls._read(STREAM, options, _STREAM_OWNER)

    @classmethod
    def read_batch(cls, options: Mapping[str, str]) -> Self:
        """The options of a batch read. Raises OptionsError."""
        return cls._read(BATCH, options, _BATCH_OWNER)

    @classmethod
    def _read(cls, table: tuple[Option, ...], options: Mapping[str, str], owner: str) -> Self:
        values = read_options(table, options, owner)
        try:
            _check(values)
            client = client_config(values["client.*"])
        except ValueError as error:
            raise OptionsError(options_error_text([str(error)], table, owner)) from error
        topic = values["topic"]
        starting, ending = values["startingOffsets"], values.get("endingOffsets", Positions(END))
        if values["startingTimestamp"] is not None:
            starting = Positions(position_at(values["startingTimestamp"]))
        if values.get("endingTimestamp") is not None:
            ending = Positions(position_at(values["endingTimestamp"]))
        return cls(
            topics=() if is_pattern(topic) else texts(topic),
            topic_pattern=topic if is_pattern(topic) else "",
            nsqds=values["nsqd.http.addresses"],
            lookupd_http_addresses=values["lookupd.http.addresses"],
            starting=starting,
            ending=ending,
            fail_on_data_loss=values["failOnDataLoss"],
            min_partitions=values["minPartitions"],
            max_records=values["maxRecordsPerPartition"],
            nsqd_timeout_s=values["nsqdTimeout"],
            client=client,
            channel=values.get("channel") or "",
            waits=values.get("whenNsqdIsAway") == "wait",
            max_messages=values.get("maxMessagesPerTrigger"),
            max_bytes=values.get("maxBytesPerTrigger"),
            min_messages=values.get("minMessagesPerTrigger"),
            max_trigger_delay_s=values.get("maxTriggerDelay", 900.0),
        )


def _check(values: Mapping[str, Any]) -> None:
    """Raises ValueError."""
    topic = values["topic"]
    if is_pattern(topic):
        if not values["lookupd.http.addresses"]:
            raise ValueError("topic as a pattern needs lookupd.http.addresses")
        names = []
    else:
        names = list(texts(topic))
    if channel := values.get("channel"):
        names.append(channel)
    for name in names:
        if not is_valid_name(name.encode("utf-8", "surrogatepass")):
            raise ValueError(f"not a valid name: {name!r}")
    if channel and channel.endswith("#ephemeral"):
        raise ValueError("an ephemeral channel has no position in a log")
    if not values["nsqd.http.addresses"] and not values["lookupd.http.addresses"]:
        raise ValueError("nsqd.http.addresses or lookupd.http.addresses is needed")
    least, most = values.get("minMessagesPerTrigger"), values.get("maxMessagesPerTrigger")
    if least is not None and most is not None and least > most:
        raise ValueError("minMessagesPerTrigger is above maxMessagesPerTrigger")
