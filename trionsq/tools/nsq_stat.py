"""The tool nsq_stat: the counts of a channel over all nsqds, one row for each interval.

Spec: tools, nsq_stat.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import trio

from trionsq import durations, httpget
from trionsq.daemon.tokens import bearer_of
from trionsq.hostport import format_address
from trionsq.options import BOOL, DURATION, INT, STRING, STRINGS, option
from trionsq.tools.common import (
    ToolError,
    configure_log,
    die,
    on_signal,
    one_kind_of_address,
    read_options,
    run_tool,
)

_TOOL: Final = "nsq_stat"
_HEADER_EVERY: Final = 25
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_HEADER: Final = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients"
)
# An integer without a default: None means that the flag was not used.
_COUNT: Final = dataclasses.replace(INT, show=lambda value: "" if value is None else str(value))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqStatOptions:
    """The flags; durations in nanoseconds."""

    version: bool = option("version", False, BOOL, "print the version and exit")
    topic: str = option("topic", "", STRING, "topic")
    channel: str = option("channel", "", STRING, "channel")
    interval_ns: int = option("interval", 2 * durations.SECOND_NS, DURATION, "time between rows")
    count: int | None = option("count", None, _COUNT, "number of rows; default: unlimited")
    nsqd_http_address: tuple[str, ...] = option(
        "nsqd-http-address", (), STRINGS, "host:port of an nsqd"
    )
    lookupd_http_address: tuple[str, ...] = option(
        "lookupd-http-address", (), STRINGS, "host:port of an nsqlookupd"
    )
    connect_timeout_ns: int = option(
        "http-client-connect-timeout", 2 * durations.SECOND_NS, DURATION, "time limit to connect"
    )
    request_timeout_ns: int = option(
        "http-client-request-timeout", 5 * durations.SECOND_NS, DURATION, "time limit of a request"
    )
    token_file: str = option(
        "token-file", "", STRING, "path of a file with the token for nsqds and nsqlookupds"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelCounts:
    """The counts of a channel, named as in /stats; of one nsqd, or the sum of several."""

    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0

    def __add__(self, other: ChannelCounts) -> ChannelCounts:
        values = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return ChannelCounts(*[left + right for left, right in values])


def counts_of(stats: Mapping[str, Any], topic: str, channel: str) -> ChannelCounts | None:
    """The channel's counts in an answer to /stats; None if nsqd does not have the channel.

    Raises:
        KeyError, TypeError, ValueError: the answer cannot be understood.
    """
    stats = stats.get("data") or stats  # the form before nsqd 1.0
    for one_topic in stats["topics"]:
        for one_channel in one_topic["channels"] if one_topic["topic_name"] == topic else ():
            if one_channel["channel_name"] == channel:
                names = [field.name for field in dataclasses.fields(ChannelCounts)]
                clients = len(one_channel.get("clients") or ())
                return ChannelCounts(
                    *[
                        int(one_channel.get(name, clients if name == "client_count" else 0))
                        for name in names
                    ]
                )
    return None


def row(before: ChannelCounts, now: ChannelCounts, interval_s: float) -> str:
    """The row for one interval. Rates are rounded down to whole messages."""
    ingress = now.message_count - before.message_count
    egress = ingress - (now.depth - before.depth)
    return (
        f"{int(ingress / interval_s):7d} {int(egress / interval_s):7d} |"
        f" {now.depth:7d} {now.depth - now.backend_depth:7d} {now.backend_depth:7d}"
        f" {now.in_flight_count:5d} {now.deferred_count:5d} |"
        f" {now.requeue_count:7d} {now.timeout_count:7d}"
        f" {now.message_count:12d} {now.client_count:7d}"
    )


class _Polling:
    """One run of the tool."""

    def __init__(self, options: NsqStatOptions) -> None:
        self._options = options

    async def run(self) -> int:
        """Print rows until --count or a signal, and return the exit code. Raises ToolError."""
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
            await nursery.start(on_signal, lambda _: scope.cancel(), *signals)
            await self._print_rows()
            scope.cancel()
        return 0

    async def _print_rows(self) -> None:
        interval_s = self._options.interval_ns / durations.SECOND_NS
        before: ChannelCounts | None = None
        polls = 0
        while True:
            if polls % _HEADER_EVERY == 0:
                _print(_HEADER)
            now = await self._poll()
            if before is not None:
                _print(row(before, now, interval_s))
            if polls == self._options.count:
                return
            before = now
            polls += 1
            await trio.sleep(interval_s)

    async def _poll(self) -> ChannelCounts:
        """The sum of the channel's counts over all nsqds."""
        options = self._options
        addresses = list(options.nsqd_http_address) or await self._discover()
        query = (
            f"format=json&topic={quote(options.topic, safe='')}"
            f"&channel={quote(options.channel, safe='')}&include_clients=false"
        )
        answers: list[ChannelCounts | None] = []

        async def request_stats(address: str) -> None:
            status, stats = await self._get(f"http://{address}/stats?{query}")
            try:
                if status != 200:
                    raise ValueError(f"status {status}")
                answers.append(counts_of(stats, options.topic, options.channel))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ToolError(f"ERROR: failed to get nsqd stats - {address}: {error}") from error

        async with trio.open_nursery() as nursery:
            for address in dict.fromkeys(addresses):
                nursery.start_soon(request_stats, address)
        counts = [answer for answer in answers if answer is not None]
        if not counts:
            raise ToolError(
                f"ERROR: failed to find channel({options.channel}) in stats metadata"
                f" for topic({options.topic})"
            )
        return sum(counts, ChannelCounts())

    async def _discover(self) -> list[str]:
        """HTTP addresses of the nsqds that have the topic, from all nsqlookupds."""
        nsqds: list[str] = []

        async def request_producers(address: str) -> None:
            topic = quote(self._options.topic, safe="")
            status, answer = await self._get(f"http://{address}/lookup?topic={topic}")
            try:
                if status == 404 and answer.get("message") == "TOPIC_NOT_FOUND":
                    return
                if status != 200:
                    raise ValueError(f"status {status}")
                producers = (answer.get("data") or answer)["producers"]
                nsqds.extend(map(_http_address, producers))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                text = f"ERROR: failed to get topic producers - {address}: {error}"
                raise ToolError(text) from error

        async with trio.open_nursery() as nursery:
            for address in dict.fromkeys(self._options.lookupd_http_address):
                nursery.start_soon(request_producers, address)
        return nsqds

    async def _get(self, url: str) -> tuple[int, dict[str, Any]]:
        headers = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": "nsq_stat/1.3.0"}
        try:
            answer = await httpget.get(
                url,
                headers | bearer_of(self._options.token_file),
                self._options.connect_timeout_ns / durations.SECOND_NS,
                self._options.request_timeout_ns / durations.SECOND_NS,
                _MAX_ANSWER_BYTES,
            )
            return answer.status, json.loads(answer.body)
        except OSError as error:
            raise ToolError(f"ERROR: failed to read --token-file - {error}") from error
        except (httpget.GetError, ValueError) as error:
            raise ToolError(f"ERROR: failed to get {url} - {error}") from error


def _http_address(producer: Mapping[str, Any]) -> str:
    return format_address(str(producer["broadcast_address"]), int(producer["http_port"]))


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        raise ToolError(f"ERROR: failed to write to os.Stdout - {error.strerror}") from error


def _check(options: NsqStatOptions) -> None:
    if not options.topic or not options.channel:
        die("--topic and --channel are required")
    for flag, value in (
        ("interval", options.interval_ns),
        ("http-client-connect-timeout", options.connect_timeout_ns),
        ("http-client-request-timeout", options.request_timeout_ns),
        ("count", options.count),
    ):
        if value is not None and value <= 0:
            die(f"--{flag} should be positive")
    nsqds, lookupds = options.nsqd_http_address, options.lookupd_http_address
    one_kind_of_address(nsqds, lookupds, "--nsqd-http-address")
    for flag, addresses in (("nsqd", nsqds), ("lookupd", lookupds)):
        if any("://" in address for address in addresses):
            die(f"--{flag}-http-address error: address should not contain scheme")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 after other refusals.
    """
    options, _ = read_options(NsqStatOptions, _TOOL, sys.argv[1:] if argv is None else argv)
    _check(options)
    configure_log()
    return run_tool(_Polling(options).run)


if __name__ == "__main__":
    raise SystemExit(main())
