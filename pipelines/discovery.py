"""Topics and nsqds that nsqlookupds know.

Spec: client, section 3 (discovery); nsqlookupd, section 3 (GET /topics and /nodes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

import trio

from trionsq import httpget
from trionsq.client import Config, ConfigError, DiscoveryError
from trionsq.client.discovery import addresses_of, topics_of
from trionsq.hostport import format_address
from trionsq.wire.names import is_valid_name

__all__ = ["endpoint_url", "find_nodes", "find_topic_nodes", "find_topics"]

_REQUEST_LIMIT_S: Final = 10.0
_Found = TypeVar("_Found")
_Reader: TypeAlias = Callable[[httpget.Answer], Sequence[_Found]]


async def find_topics(lookupds: Sequence[str], pattern: str, config: Config) -> set[str]:
    """The topics of all nsqlookupds whose whole name matches the regular expression.

    Raises:
        DiscoveryError: no nsqlookupd gave a usable response.
    """
    names, failures = await _query_all(lookupds, "topics", topics_of, config)
    if len(failures) == len(lookupds):
        raise DiscoveryError("; ".join(failures))
    matches = re.compile(pattern).fullmatch
    return {topic for topic in names if is_valid_name(topic.encode()) and matches(topic)}


async def find_nodes(lookupds: Sequence[str], config: Config) -> tuple[set[str], list[str]]:
    """``host:port`` of the nsqds of all nsqlookupds, and a line for each that failed."""
    return await _query_all(lookupds, "nodes", addresses_of, config)


async def find_topic_nodes(
    lookupds: Sequence[str], config: Config
) -> tuple[set[tuple[str, str]], list[str]]:
    """Each topic with ``host:port`` of the HTTP of an nsqd that has it, and failures as above."""
    return await _query_all(lookupds, "nodes", _topic_nodes_of, config)


def _topic_nodes_of(answer: httpget.Answer) -> list[tuple[str, str]]:
    """Raises DiscoveryError: the answer is an error, or cannot be understood."""
    if answer.status != 200:
        raise DiscoveryError(f"answered {answer.status}")
    try:
        body = json.loads(answer.body)
        return [
            (str(topic), format_address(str(node["broadcast_address"]), int(node["http_port"])))
            for node in body.get("data", body)["producers"]
            for topic, is_hidden in zip_longest(node["topics"], node.get("tombstones") or ())
            if topic is not None and not is_hidden
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DiscoveryError(f"invalid answer: {error!r}") from error


async def _query_all(
    lookupds: Sequence[str], endpoint: str, read: _Reader[_Found], config: Config
) -> tuple[set[_Found], list[str]]:
    """The union of the responses, and a line for each nsqlookupd that failed."""
    names: set[_Found] = set()
    failures: list[str] = []

    async def query(url: str) -> None:
        try:
            names.update(await _query(url, read, config))
        except (httpget.GetError, DiscoveryError, ConfigError) as error:
            failures.append(f"{url}: {error}")

    async with trio.open_nursery() as nursery:
        for address in lookupds:
            url = endpoint_url(address, endpoint)
            nursery.start_soon(query, url, name=f"query of {url}")
    return names, failures


async def _query(url: str, read: _Reader[_Found], config: Config) -> Sequence[_Found]:
    headers = {"Accept": "application/vnd.nsq; version=1.0"}
    if config.auth_secret and config.skip_lookupd_authorization:
        headers["Authorization"] = f"Bearer {config.auth_secret}"
    request_s = min(_REQUEST_LIMIT_S, config.lookupd_poll_timeout_s)
    context = config.ssl_context() if url.startswith("https:") else None
    response = await httpget.get(
        url, headers, min(config.dial_timeout_s, request_s), request_s, ssl_context=context
    )
    return read(response)


def endpoint_url(address: str, endpoint: str) -> str:
    """The URL of an endpoint, for ``host:port`` or ``http(s)://host:port[/path]``.

    A path that ends with ``/lookup``, as the client library accepts it, loses that part.

    Raises:
        ValueError: no port, or not a URL.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ValueError(f"{address!r} is neither host:port of an nsqlookupd nor its URL")
    path = f"{parts.path.rstrip('/').removesuffix('/lookup')}/{endpoint}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
