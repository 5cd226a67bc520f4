"""The flags of nsq_to_nsq, and what is refused before anything is done.

Spec: tools, nsq_to_nsq.
"""

from __future__ import annotations

import dataclasses

from trionsq.hostport import parse_address
from trionsq.options import INT, STRING, STRINGS, option
from trionsq.tools.common import ConsumerOptions
from trionsq.wire.names import is_valid_name

__all__ = ["Options", "early_refusal", "refusal"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options(ConsumerOptions):
    """All flags."""

    topic: tuple[str, ...] = option("topic", (), STRINGS, "topic to read", key=None)
    channel: str = option("channel", "nsq_to_nsq", STRING, "channel to read from", key=None)
    destination_topic: str = option(
        "destination-topic", "", STRING, "topic to publish to", note="default: the same", key=None
    )
    destination_nsqd_tcp_address: tuple[str, ...] = option(
        "destination-nsqd-tcp-address", (), STRINGS, "host:port of an nsqd to publish at", key=None
    )
    mode: str = option(
        "mode",
        "hostpool",
        STRING,
        "of destinations: round-robin, hostpool or epsilon-greedy",
        key=None,
    )
    status_every: int = option(
        "status-every", 250, INT, "log the times of publishes after so many, 0: never", key=None
    )
    whitelist_json_field: tuple[str, ...] = option(
        "whitelist-json-field", (), STRINGS, "keep only such top level fields", key=None
    )
    require_json_field: str = option(
        "require-json-field", "", STRING, "pass only messages with this field", key=None
    )
    require_json_value: str = option(
        "require-json-value", "", STRING, "and with this value of it", key=None
    )
    producer_opt: tuple[str, ...] = option(
        "producer-opt", (), STRINGS, "name,value of the client library, to publish", key=None
    )


def early_refusal(options: Options) -> str:
    """Why these options can't be used, or nothing; to be asked before those of all tools."""
    if not options.topic or not options.channel:
        return "--topic and --channel are required"
    if not all(map(_is_valid, options.topic)):
        return "--topic is invalid"
    if options.destination_topic and not _is_valid(options.destination_topic):
        return "--destination-topic is invalid"
    if not _is_valid(options.channel):
        return "--channel is invalid"
    return ""


def refusal(options: Options) -> str:
    """Why these options can't be used, beyond `early_refusal`; or nothing."""
    if not options.destination_nsqd_tcp_address:
        return "--destination-nsqd-tcp-address required"
    for address in options.destination_nsqd_tcp_address:
        try:
            parse_address(address)
        except ValueError as error:
            return f"--destination-nsqd-tcp-address: {error}"
    if options.max_in_flight <= 0:
        return "--max-in-flight should be positive"
    return ""


def _is_valid(name: str) -> bool:
    return is_valid_name(name.encode("utf-8", "surrogateescape"))
