"""Asking nsqlookupds which channels a topic has elsewhere.

Spec: nsqd-internals, section 1 (channel pre-creation).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final
from urllib.parse import quote

import msgspec
import trio

from trionsq.httpget import Answer, GetError
from trionsq.logtext import printable
from trionsq.wire.lookup import LookupdInfo
from trionsq.wire.names import is_ephemeral, is_valid_name

__all__ = ["ANSWER_NBYTES_MAX", "ask_for_channels"]

log = logging.getLogger("trionsq")

ANSWER_NBYTES_MAX: Final = 1 << 20
"""Of an answer: 10,000 names of 100 bytes. It is decoded in one go, in 10 ms at the most."""

_CHANNELS_MAX: Final = 10_000
# Of one turn of the event loop
_NAMES_MAX: Final = 512
# Log lines for one answer
_SHOWN_MAX: Final = 10


class _Channels(msgspec.Struct):
    channels: list[str | int | float | bool | None] | None = None


_ANSWER: Final = msgspec.json.Decoder(_Channels)


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
            found.update(dict.fromkeys(await _channels(await get(url))))
        except (GetError, ValueError) as error:  # ValueError: a host that can't be looked up
            log.error("TOPIC(%s): asking %s for channels: %s", topic, info.http_address, error)

    async with trio.open_nursery() as nursery:
        for info in lookupds:
            nursery.start_soon(ask, info, name=f"channels of {topic} at {info.http_address}")
    return list(found)


async def _channels(answer: Answer) -> list[str]:
    """The valid names. Raises ValueError for an answer that has none, or too many."""
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    try:
        names = _ANSWER.decode(answer.body).channels
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        names = None
    if names is None:
        raise ValueError("the answer has no list of channels")
    if len(names) > _CHANNELS_MAX:
        raise ValueError(f"the answer has {len(names)} channels (at most {_CHANNELS_MAX} are made)")
    found, ignored = [], 0
    for number, name in enumerate(names, 1):
        if not isinstance(name, str) or not is_valid_name(name.encode()):
            ignored += 1
            if ignored <= _SHOWN_MAX:
                log.warning("ignoring the invalid channel name %s", printable(str(name), 100))
        elif not is_ephemeral(name):
            found.append(name)
        if number % _NAMES_MAX == 0:
            await trio.lowlevel.checkpoint()
    if ignored > _SHOWN_MAX:
        log.warning("ignoring %d more invalid channel names", ignored - _SHOWN_MAX)
    return found
