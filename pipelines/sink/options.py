"""The options of the sink, for streams and for batch writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipelines.errors import OptionsError
from pipelines.options import (
    Option,
    byte_size,
    choice,
    duration_s,
    folder,
    integer,
    lookupd_addresses,
    nsqd_addresses,
    options_error_text,
    read_options,
)
from trionsq.client import Config, ConfigError
from trionsq.wire.names import is_valid_name

__all__ = ["SINK", "CommandLimits", "SinkOptions"]

_WRITE_TIMEOUT_S: Final = 10.0


def _topic(text: str) -> str:
    if not is_valid_name(text.encode("utf-8", "surrogatepass")):
        raise ValueError(f"{text!r} is not a valid name")
    return text


SINK: Final = (
    Option("topic", _topic, "topic of all rows; without it the column topic is used"),
    Option(
        "nsqd.tcp.addresses", nsqd_addresses, "host:port,...; they receive messages in rotation", ()
    ),
    Option(
        "lookupd.http.addresses",
        lookupd_addresses,
        "host:port,... or URLs: all nsqds registered there",
        (),
    ),
    Option(
        "mode",
        choice("direct", "staged"),
        "direct: tasks publish, at least once; staged: publish once, when a microbatch is complete",
        "direct",
    ),
    Option("stagePath", folder, "folder for mode=staged, one for each query, seen by all machines"),
    Option("batchMessages", integer(1, 1_000_000), "maximum messages of one MPUB", 5000),
    Option(
        "batchBytes",
        byte_size,
        "maximum size of one MPUB; nsqd's --max-body-size must be larger",
        1 << 20,
    ),
    Option(
        "maxMessageBytes",
        byte_size,
        "maximum size of a body; nsqd's --max-msg-size must allow it",
        1 << 20,
    ),
    Option("unconfirmed", integer(1, 64), "MPUBs sent to one nsqd before the first is answered", 2),
    Option(
        "retries", integer(0, 1000), "further rounds over the nsqds after the first one failed", 8
    ),
    Option("publishTimeout", duration_s, "limit for nsqd's answer to one MPUB", 30.0),
    Option("lockTimeout", duration_s, "limit for another process to release stagePath", 30.0),
    Option("checkpointLocation", str, "Spark's own, ignored here"),
    Option("queryName", str, "Spark's own, ignored here"),
    Option("client.*", str, "an option of the client library: client.tls_v1, client.auth_secret"),
)


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of one MPUB (messages, bytes of its body) and of one message (bytes)."""

    max_messages: int = 5000
    max_bytes: int = 1 << 20
    max_message_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The values of the options of `SINK`. Picklable. ``stage_path`` is None in direct mode."""

    topic: str | None
    nsqd_tcp_addresses: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    stage_path: str | None
    limits: CommandLimits
    client: Config
    unconfirmed: int = 2
    retries: int = 8
    publish_timeout_s: float = 30.0
    lock_timeout_s: float = 30.0

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises OptionsError."""
        values = read_options(SINK, options, "the nsq sink")
        try:
            return cls._of(values)
        except ValueError as error:
            raise OptionsError(options_error_text([str(error)], SINK, "the nsq sink")) from error

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> SinkOptions:
        addresses, lookupds = values["nsqd.tcp.addresses"], values["lookupd.http.addresses"]
        if not addresses and not lookupds:
            raise ValueError("nsqd.tcp.addresses or lookupd.http.addresses is required")
        if (values["mode"] == "staged") != (values["stagePath"] is not None):
            raise ValueError("mode=staged and stagePath must be set together")
        if values["publishTimeout"] <= 0:
            raise ValueError("publishTimeout must be above 0")
        return cls(
            topic=values["topic"],
            nsqd_tcp_addresses=addresses,
            lookupd_http_addresses=lookupds,
            stage_path=values["stagePath"],
            limits=CommandLimits(
                values["batchMessages"], values["batchBytes"], values["maxMessageBytes"]
            ),
            client=_client_config(values["client.*"]),
            unconfirmed=values["unconfirmed"],
            retries=values["retries"],
            publish_timeout_s=values["publishTimeout"],
            lock_timeout_s=values["lockTimeout"],
        )


def _client_config(options: Mapping[str, str]) -> Config:
    # nsqd reads nothing while it syncs its disk. A retry in that time would publish twice.
    base = Config(write_timeout_s=_WRITE_TIMEOUT_S)
    try:
        config = base.parse(*(f"{name},{value}" for name, value in options.items()))
        config.check_files()
    except ConfigError as error:
        raise ValueError(f"client: {error}") from error
    return config
