"""--from of the tools: the logs of a topic, read from nsqd's HTTP without a channel.

Each nsqd of a topic has a log of its own; they are read side by side.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final
from urllib.parse import quote

import trio

from trionsq import httpget
from trionsq.client import Config, TopicLogReader
from trionsq.hostport import format_address
from trionsq.options import STRING, STRINGS, option
from trionsq.tools.common import ConsumerOptions, ToolError, die

__all__ = ["FromLogOptions", "OnBodies", "check_addresses", "find_nsqds", "read_logs"]

log = logging.getLogger("trionsq.tools")

OnBodies = Callable[[list[bytes]], Awaitable[None]]
"""Called with the bodies of some messages; by several readers in turn, never at the same time."""

_ACCEPT: Final = "application/vnd.nsq; version=1.0"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FromLogOptions(ConsumerOptions):
    """The flags of every tool that can read logs."""

    nsqd_http_address: tuple[str, ...] = option(
        "nsqd-http-address", (), STRINGS, "with --from: host:port of an nsqd's HTTP"
    )
    begin: str = option(
        "from",
        "",
        STRING,
        "read the topic's log without a channel: beginning, end, a time (RFC 3339) or a sequence",
    )
    to: str = option("to", "", STRING, "with --from: where to end; as --from")


def check_addresses(options: FromLogOptions) -> bool:
    """Return whether --from is given; exit with 1 if the addresses do not fit.

    Raises:
        SystemExit: 1, with one line on stderr.
    """
    if not options.begin:
        if options.to or options.nsqd_http_address:
            die("--to and --nsqd-http-address need --from")
        return False
    if options.nsqd_tcp_address:
        die("--from needs --nsqd-http-address or --lookupd-http-address, not --nsqd-tcp-address")
    if bool(options.nsqd_http_address) == bool(options.lookupd_http_address):
        die("--from needs either --nsqd-http-address or --lookupd-http-address")
    return True


async def read_logs(
    topic: str,
    options: FromLogOptions,
    config: Config,
    on_bodies: OnBodies,
    *,
    to: str | None = None,
    get: Callable[..., Awaitable[httpget.Answer]] = httpget.get,
    dial: httpget.Dial = trio.open_tcp_stream,
) -> None:
    """Read the logs that all nsqds have of a topic, each up to the end that was asked for.

    Args:
        topic: its name.
        options: where they are, and from where on.
        config: time limits, and what is trusted.
        on_bodies: see `OnBodies`.
        to: where to end if the options do not say; None: never. Then nsqds that nsqlookupd hears of
            later are read as well.
        get, dial: for tests.

    Raises:
        ToolError: no nsqlookupd answers at first, or none knows the topic.
        ClientError: an nsqd cannot be reached at first, or refuses.
    """
    end = options.to or to
    turn = trio.Lock()

    async def read(address: str) -> None:
        reader = TopicLogReader(
            topic, address, begin=options.begin, to=end, config=config, dial=dial
        )
        async with aclosing(reader.batches()) as batches:
            async for messages in batches:
                async with turn:
                    await on_bodies(messages.columns.bodies)
        log.info("%s: read %s up to %s", address, topic, reader.sequence)

    known = dict.fromkeys(options.nsqd_http_address)
    if not known:
        known = dict.fromkeys(await find_nsqds(topic, options.lookupd_http_address, config, get))
        if not known:
            raise ToolError(f"no nsqd has the topic {topic}")
    async with trio.open_nursery() as nursery:
        for address in known:
            nursery.start_soon(read, address)
        while end is None and options.lookupd_http_address:
            await trio.sleep(config.lookupd_poll_interval_s)
            try:
                found = await find_nsqds(topic, options.lookupd_http_address, config, get)
            except ToolError as error:
                log.error("%s", error)
                continue
            for address in found:
                if address not in known:
                    known[address] = None
                    nursery.start_soon(read, address)


async def find_nsqds(
    topic: str,
    lookupds: Iterable[str],
    config: Config,
    get: Callable[..., Awaitable[httpget.Answer]] = httpget.get,
) -> list[str]:
    """Return the HTTP addresses of the nsqds that have a topic, from all nsqlookupds.

    Raises:
        ToolError: none of them answers as one.
    """
    found: dict[str, None] = {}
    failures: list[str] = []
    answered = 0
    for address in lookupds:
        base = address if "://" in address else f"http://{address}"
        url = f"{base.rstrip('/')}/lookup?topic={quote(topic, safe='')}"
        context = config.ssl_context() if url.startswith("https:") else None
        request = partial(get, url, {"Accept": _ACCEPT}, ssl_context=context)
        try:
            answer = await request(
                connect_timeout_s=min(config.dial_timeout_s, config.lookupd_poll_timeout_s),
                request_timeout_s=config.lookupd_poll_timeout_s,
            )
            found |= dict.fromkeys(_addresses_of(answer))
            answered += 1
        except (httpget.GetError, ValueError, KeyError, TypeError) as error:
            failures.append(f"{address}: {error!s}")
    if not answered:
        raise ToolError(f"no nsqlookupd answers: {'; '.join(failures)}")
    for failure in failures:
        log.warning("%s", failure)
    return list(found)


def _addresses_of(answer: httpget.Answer) -> list[str]:
    document = json.loads(answer.body)
    if answer.status == 404 and document["message"] == "TOPIC_NOT_FOUND":
        return []
    if answer.status != 200:
        raise ValueError(f"answered {answer.status}")
    return [
        format_address(str(one["broadcast_address"]), int(one["http_port"]))
        for one in document["producers"]
    ]
