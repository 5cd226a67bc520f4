"""Asking nsqlookupds which channels a topic has elsewhere.

Spec: nsqd-internals, section 1 (channel pre-creation).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from urllib.parse import quote

import trio

from trionsq.httpget import Answer, GetError
from trionsq.wire.lookup import LookupdInfo
from trionsq.wire.names import is_ephemeral, is_valid_name

__all__ = ["ask_for_channels"]

log = logging.getLogger("trionsq")


async def ask_for_channels(
    lookupds: Iterable[LookupdInfo], topic: str, get: Callable[[str], Awaitable[Answer]]
) -> list[str]:
    """The names that any of them knows, each once, without ephemeral ones.

    All are asked at the same time. One that fails is logged and left out.

    Args:
        lookupds: to be asked.
        topic: the name, valid.
        get: asks for a URL, in bounded time; raises GetError.
    """
    found: dict[str, None] = {}

    async def ask(info: LookupdInfo) -> None:
        url = f"http://{info.http_address}/channels?topic={quote(topic, safe='')}"
        try:
            found.update(dict.fromkeys(_channels(await get(url))))
        except (GetError, ValueError) as error:  # ValueError: a host that can't be looked up
            log.error("TOPIC(%s): asking %s for channels: %s", topic, info.http_address, error)

    async with trio.open_nursery() as nursery:
        for info in lookupds:
            nursery.start_soon(ask, info)
    return list(found)


def _channels(answer: Answer) -> Iterator[str]:
    """Raises ValueError for an answer that names none."""
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    names = content.get("channels") if isinstance(content, dict) else None
    if not isinstance(names, list):
        raise ValueError("the answer has no list of channels")
    for name in names:
        if not isinstance(name, str) or not is_valid_name(name.encode(errors="replace")):
            log.warning("ignoring the invalid channel name %.100r", name)
        elif not is_ephemeral(name):
            yield name
