"""The flags of nsq_to_http, and what is refused before anything is done.

Spec: tools, nsq_to_http.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from trionsq import durations
from trionsq.options import DURATION, INT, STRING, STRINGS, option
from trionsq.tools.common import ConsumerOptions
from trionsq.wire.names import is_valid_name

__all__ = ["Options", "early_refusal", "headers_of", "refusal"]

_CONTENT_TYPE: Final = "application/octet-stream"
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]+")


def _float_text(text: str) -> str:
    try:
        float(text)
    except ValueError:
        raise ValueError("parse error") from None
    return text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options(ConsumerOptions):
    """All flags; durations in nanoseconds."""

    topic: str = option("topic", "", STRING, "topic to read", key=None)
    channel: str = option("channel", "nsq_to_http", STRING, "channel to read from", key=None)
    post: tuple[str, ...] = option("post", (), STRINGS, "URL that messages are POSTed to", key=None)
    get: tuple[str, ...] = option(
        "get", (), STRINGS, "URL to GET, with one %s for the escaped message", key=None
    )
    n: int = option("n", 100, INT, "requests at once at most", key=None)
    mode: str = option(
        "mode",
        "hostpool",
        STRING,
        "round-robin, hostpool or epsilon-greedy; any other: each message to all addresses",
        key=None,
    )
    sample: str = option(
        "sample",
        "1.0",
        dataclasses.replace(STRING, name="float", parse=_float_text),
        "share of the messages that is sent; the others are finished unsent",
        key=None,
    )
    content_type: str = option(
        "content-type", _CONTENT_TYPE, STRING, "Content-Type of what is POSTed", key=None
    )
    header: tuple[str, ...] = option("header", (), STRINGS, "'Name: value' to send", key=None)
    connect_timeout_ns: int = option(
        "http-client-connect-timeout",
        2 * durations.SECOND_NS,
        DURATION,
        "to connect to an address",
        key=None,
    )
    request_timeout_ns: int = option(
        "http-client-request-timeout",
        20 * durations.SECOND_NS,
        DURATION,
        "for a whole request",
        key=None,
    )
    status_every: int = option(
        "status-every", 250, INT, "log the times of requests after so many, 0: never", key=None
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those to POST to or to GET, each once."""
        return tuple(dict.fromkeys(self.post or self.get))


def headers_of(options: Options) -> dict[str, str]:
    """The headers that the flags give; of a name that comes again the last one.

    Raises:
        ValueError: one is not ``Name: value``.
    """
    found: dict[str, str] = {}
    for text in options.header:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(text)
        found[name.title()] = value
    return found


def early_refusal(options: Options) -> str:
    """Why these options can't be used, or nothing; to be asked before those of all tools."""
    try:
        headers_of(options)
    except ValueError:
        return "--header value format should be 'key=value'"
    if not options.topic or not options.channel:
        return "--topic and --channel are required"
    if options.content_type != _CONTENT_TYPE:
        if options.get:
            return "--content-type only used with --post"
        if not options.content_type:
            return "--content-type requires a value when used"
        if not _HEADER_VALUE.fullmatch(options.content_type):
            return "--content-type is invalid"
    return ""


def refusal(options: Options) -> str:
    """Why these options can't be used, beyond `early_refusal`; or nothing."""
    return next(_refusals(options), "")


def _refusals(options: Options) -> Iterator[str]:
    if not options.get and not options.post:
        yield "--get or --post required"
    if options.get and options.post:
        yield "use --get or --post not both"
    if any(address.count("%s") != 1 for address in options.get):
        yield "invalid GET address - must be a printf string"
    if not 0 <= float(options.sample) <= 1:
        yield "ERROR: --sample must be between 0.0 and 1.0"
    for name in (options.topic, options.channel):
        if not is_valid_name(name.encode("utf-8", "surrogateescape")):
            yield f"not a valid name: {name!r}"
    for address in options.addresses:
        if not _is_http_url(address.replace("%s", "x")):
            yield f"not the URL of an HTTP server: {address}"
    for flag, value in (
        ("n", options.n),
        ("max-in-flight", options.max_in_flight),
        ("http-client-connect-timeout", options.connect_timeout_ns),
        ("http-client-request-timeout", options.request_timeout_ns),
    ):
        if value <= 0:
            yield f"--{flag} should be positive"


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
