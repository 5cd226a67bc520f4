"""The options of the sink, for streams and for batch writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipelines.options import (
    Option,
    OptionsError,
    choice,
    duration_s,
    folder,
    integer,
    lookupd_addresses,
    nbytes,
    nsqd_addresses,
    read_options,
    told_of,
)
from trionsq.client import Config, ConfigError
from trionsq.wire.names import is_valid_name

__all__ = ["SINK", "Limits", "SinkOptions"]

_WRITE_TIMEOUT_S: Final = 10.0


def _topic(told: str) -> str:
    if not is_valid_name(told.encode("utf-8", "surrogatepass")):
        raise ValueError(f"{told!r} is no valid name")
    return told


SINK: Final = (
    Option("topic", _topic, "of all rows; without it the column topic tells"),
    Option("nsqd.tcp.addresses", nsqd_addresses, "host:port,...; they get messages in turn", ()),
    Option(
        "lookupd.http.addresses",
        lookupd_addresses,
        "host:port,... or URLs: all nsqds known there",
        (),
    ),
    Option(
        "mode",
        choice("direct", "staged"),
        "direct: tasks publish, at least once; staged: publish once, when a batch is complete",
        "direct",
    ),
    Option("stagePath", folder, "folder for mode=staged, one for each query, seen by all machines"),
    Option("batchMessages", integer(1, 1_000_000), "of one MPUB at most", 5000),
    Option("batchBytes", nbytes, "of one MPUB; nsqd's --max-body-size is above it", 1 << 20),
    Option("maxMessageBytes", nbytes, "larger bodies are refused; nsqd's --max-msg-size", 1 << 20),
    Option("unconfirmed", integer(1, 64), "MPUBs sent to an nsqd and not answered yet", 2),
    Option("retries", integer(0, 1000), "rounds over the nsqds after the first one failed", 8),
    Option("publishTimeout", duration_s, "for nsqd's answer to one MPUB", 30.0),
    Option("lockTimeout", duration_s, "for another process to leave stagePath", 30.0),
    Option("checkpointLocation", str, "Spark's own, of no meaning here"),
    Option("queryName", str, "Spark's own, of no meaning here"),
    Option("client.*", str, "an option of the client library: client.tls_v1, client.auth_secret"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one MPUB (messages, bytes of its body) and of one message (bytes)."""

    messages: int = 5000
    nbytes: int = 1 << 20
    message_nbytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the options mean, as in `SINK`. Picklable. ``stage_path`` is None in direct mode."""

    topic: str | None
    nsqd_tcp_addresses: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]
    stage_path: str | None
    limits: Limits
    client: Config
    unconfirmed: int = 2
    retries: int = 8
    publish_timeout_s: float = 30.0
    lock_timeout_s: float = 30.0

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises OptionsError."""
        values = read_options(SINK, given, "the nsq sink")
        try:
            return cls._of(values)
        except ValueError as error:
            raise OptionsError(told_of([str(error)], SINK, "the nsq sink")) from error

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> SinkOptions:
        addresses, lookupds = values["nsqd.tcp.addresses"], values["lookupd.http.addresses"]
        if not addresses and not lookupds:
            raise ValueError("nsqd.tcp.addresses or lookupd.http.addresses is required")
        if (values["mode"] == "staged") != (values["stagePath"] is not None):
            raise ValueError("mode=staged and stagePath are given together or not at all")
        if values["publishTimeout"] <= 0:
            raise ValueError("publishTimeout must be above 0")
        return cls(
            topic=values["topic"],
            nsqd_tcp_addresses=addresses,
            lookupd_http_addresses=lookupds,
            stage_path=values["stagePath"],
            limits=Limits(values["batchMessages"], values["batchBytes"], values["maxMessageBytes"]),
            client=_client_config(values["client.*"]),
            unconfirmed=values["unconfirmed"],
            retries=values["retries"],
            publish_timeout_s=values["publishTimeout"],
            lock_timeout_s=values["lockTimeout"],
        )


def _client_config(given: Mapping[str, str]) -> Config:
    # An nsqd that flushes to its disk takes nothing for a moment; a retry would publish twice.
    base = Config(write_timeout_s=_WRITE_TIMEOUT_S)
    try:
        config = base.parse(*(f"{name},{told}" for name, told in given.items()))
        config.check_files()
    except ConfigError as error:
        raise ValueError(f"client: {error}") from error
    return config
