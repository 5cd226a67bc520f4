"""The topics that match a pattern, as nsqlookupds know them.

Spec: client, section 3 (discovery); lookupd's GET /topics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import trio

from trionsq import httpget
from trionsq.client import Config, ConfigError, DiscoveryError
from trionsq.client.discovery import topics_of
from trionsq.wire.names import is_valid_name

__all__ = ["find_topics", "topics_url"]

_REQUEST_S: Final = 10.0


async def find_topics(addresses: Sequence[str], pattern: str, config: Config) -> set[str]:
    """The topics of all nsqlookupds whose whole name matches.

    Raises:
        DiscoveryError: none of them had a usable answer.
    """
    found: set[str] = set()
    failures: list[str] = []

    async def ask(url: str) -> None:
        try:
            found.update(await _topics_of(url, config))
        except (httpget.GetError, DiscoveryError, ConfigError) as error:
            failures.append(f"{url}: {error}")

    async with trio.open_nursery() as nursery:
        for address in addresses:
            url = topics_url(address)
            nursery.start_soon(ask, url, name=f"topics of {url}")
    if len(failures) == len(addresses):
        raise DiscoveryError("; ".join(failures))
    matches = re.compile(pattern).fullmatch
    return {topic for topic in found if is_valid_name(topic.encode()) and matches(topic)}


async def _topics_of(url: str, config: Config) -> list[str]:
    headers = {"Accept": "application/vnd.nsq; version=1.0"}
    if config.auth_secret and config.skip_lookupd_authorization:
        headers["Authorization"] = f"Bearer {config.auth_secret}"
    request_s = min(_REQUEST_S, config.lookupd_poll_timeout_s)
    context = config.ssl_context() if url.startswith("https:") else None
    answer = await httpget.get(
        url, headers, min(config.dial_timeout_s, request_s), request_s, ssl_context=context
    )
    return topics_of(answer)


def topics_url(address: str) -> str:
    """The URL that is asked, for ``host:port`` or ``http(s)://host:port[/path]``.

    A path ``/lookup`` at the end, as the client library takes it, makes way for ``/topics``.

    Raises:
        ValueError: no port, or no URL at all.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ValueError(f"{address!r} is not host:port of an nsqlookupd, nor its URL")
    path = parts.path.rstrip("/").removesuffix("/lookup") + "/topics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
