"""The tool nsq_to_nsq: messages of topics, published at other nsqds.

A consumer for each topic, two tasks for each destination. A message is finished after the
destination's OK; otherwise it is requeued with the default delay, and the consumer backs off.

Spec: tools, nsq_to_nsq.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeAlias

import trio

from trionsq.client import Batch, ClientError, Config, Consumer, Producer, ProtocolError
from trionsq.client.connection import Reply
from trionsq.hostport import parse_address
from trionsq.options import INT, STRING, STRINGS, option
from trionsq.tools.common import (
    ConsumerOptions,
    checked_options,
    client_config,
    configure_log,
    consumer_config,
    die,
    run_tool,
)
from trionsq.tools.forwarding import InProgress, RequestLog, forward
from trionsq.tools.hostpool import hosts_of
from trionsq.tools.json_filter import JsonFilter, Rejection
from trionsq.wire.names import is_valid_name

__all__ = ["NsqToNsqOptions", "main"]

log = logging.getLogger("trionsq.tools")

_TOOL: Final = "nsq_to_nsq"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqToNsqOptions(ConsumerOptions):
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


def _early_refusal(options: NsqToNsqOptions) -> str:
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


def _refusal(options: NsqToNsqOptions) -> str:
    """Why these options can't be used, beyond `_early_refusal`; or nothing."""
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


@dataclasses.dataclass(slots=True)
class _Parcel:
    """Messages of one batch for one destination.

    Attributes:
        topic: to publish to.
        bodies: what to publish.
        batch: where they came from.
        places: of each one in the batch; None: the parcel is the whole batch.
    """

    topic: str
    bodies: list[bytes]
    batch: Batch
    places: list[int] | None

    def answer(self, confirmed: list[bool]) -> None:
        """FIN those that were confirmed, REQ the others with the default delay and backoff."""
        if self.places is None and all(confirmed):
            self.batch.finish()
            return
        places = range(len(self.bodies)) if self.places is None else self.places
        for place, is_confirmed in zip(places, confirmed, strict=True):
            message = self.batch[place]
            if is_confirmed:
                message.finish()
            else:
                message.requeue()


_OnDecided: TypeAlias = Callable[[str, int, bool, float], None]
"""Called with the address, how many were sent, whether all were confirmed, and seconds it took."""

_Sent: TypeAlias = tuple[_Parcel, list[Reply[bytes]], float]


class _Destination:
    """An nsqd to publish at. A parcel's messages are answered once all of it is decided."""

    def __init__(self, address: str, config: Config, outcome: _OnDecided) -> None:
        self.address = address
        self._config = config
        self._outcome = outcome
        self._to_send, self._parcels = trio.open_memory_channel[_Parcel](math.inf)
        self._to_confirm, self._sent = trio.open_memory_channel[_Sent](math.inf)

    def __repr__(self) -> str:
        waiting = self._parcels.statistics().current_buffer_used
        return f"<_Destination {self.address} {waiting} parcels wait>"

    def put(self, parcel: _Parcel) -> None:
        """Publish these, soon."""
        self._to_send.send_nowait(parcel)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with (
            Producer(self.address, config=self._config) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._confirm)
            async for parcel in self._parcels:
                await self._send(producer, parcel)

    async def _send(self, producer: Producer, parcel: _Parcel) -> None:
        begun_s = trio.current_time()
        replies: list[Reply[bytes]] = []
        try:
            for body in parcel.bodies:
                # Those before an error count too.
                replies.append(await producer.begin_publish(parcel.topic, body))  # noqa: PERF401
        except (ClientError, ValueError) as error:
            log.error("%s: failed to publish - %s", self.address, error)
        self._to_confirm.send_nowait((parcel, replies, begun_s))

    async def _confirm(self) -> None:
        async for parcel, replies, begun_s in self._sent:
            count = len(parcel.bodies)
            confirmed = [False] * count
            failure: Exception | None = None
            for index, reply in enumerate(replies):
                try:
                    await reply.wait()
                    confirmed[index] = True
                except (ClientError, ProtocolError) as error:
                    # The first tells why the connection is lost, and with it the others.
                    failure = failure or error
            if failure is not None:
                log.error("%s: failed to publish - %s", self.address, failure)
            parcel.answer(confirmed)
            self._outcome(self.address, count, all(confirmed), trio.current_time() - begun_s)


class _Forwarding:
    """One run of the tool."""

    def __init__(
        self, options: NsqToNsqOptions, consumer_config: Config, producer_config: Config
    ) -> None:
        """Raises ValueError: an address that is none."""
        self._options = options
        addresses = tuple(dict.fromkeys(options.destination_nsqd_tcp_address))
        self._hosts = hosts_of(options.mode, addresses, Random())
        self._request_log = RequestLog(addresses, options.status_every)
        self._destinations = {
            address: _Destination(address, producer_config, self._decided) for address in addresses
        }
        self._filter = JsonFilter(
            options.whitelist_json_field, options.require_json_field, options.require_json_value
        )
        self._in_progress = InProgress()
        self._consumers = [
            Consumer(
                topic,
                options.channel,
                nsqd_tcp_addresses=dict.fromkeys(options.nsqd_tcp_address),
                lookupd_http_addresses=options.lookupd_http_address,
                config=consumer_config,
            )
            for topic in dict.fromkeys(options.topic)
        ]

    async def run(self) -> int:
        """Publish until a signal comes; the exit code. Raises ClientError, ProtocolError."""
        async with trio.open_nursery() as nursery:
            for destination in self._destinations.values():
                nursery.start_soon(destination.run)
            await forward(self._consumers, self._take, self._in_progress)
            nursery.cancel_scope.cancel()
        return 0

    async def _take(self, consumer: Consumer, batch: Batch) -> None:
        topic = self._options.destination_topic or consumer.topic
        if len(self._destinations) == 1 and not self._filter.is_needed:
            (address,) = self._destinations
            self._put(address, _Parcel(topic, batch.bodies, batch, None))
            return
        now_s = trio.current_time()
        parcels: dict[str, _Parcel] = {}
        for place, body in enumerate(batch.bodies):
            passed = self._filter.apply(body) if self._filter.is_needed else body
            if isinstance(passed, Rejection):
                _answer(batch, place, passed)
                continue
            address = self._hosts.choose(now_s)
            parcel = parcels.get(address)
            if parcel is None:
                parcel = parcels[address] = _Parcel(topic, [], batch, [])
            parcel.bodies.append(passed)
            assert parcel.places is not None
            parcel.places.append(place)
        for address, parcel in parcels.items():
            self._put(address, parcel)

    def _put(self, address: str, parcel: _Parcel) -> None:
        self._in_progress.add_one()
        self._destinations[address].put(parcel)

    def _decided(self, address: str, count: int, is_confirmed: bool, response_s: float) -> None:
        now_s = trio.current_time()
        self._hosts.mark(address, now_s, response_s if is_confirmed else None)
        self._request_log.add_requests(address, response_s, count)
        self._in_progress.remove_one()


def _answer(batch: Batch, place: int, verdict: Rejection) -> None:
    message = batch[place]
    if verdict is Rejection.REQUEUE:
        log.error("missing field to check required value: %r", message)
        message.requeue()
    else:
        message.finish()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options = checked_options(NsqToNsqOptions, _TOOL, argv, _early_refusal, _refusal)
    config = consumer_config(options, _TOOL)
    producer_config = client_config(NsqToNsqOptions, _TOOL, "--producer-opt", options.producer_opt)
    configure_log()
    try:
        forwarding = _Forwarding(options, config, producer_config)
    except ValueError as error:
        die(str(error))
    return run_tool(forwarding.run)


if __name__ == "__main__":
    raise SystemExit(main())
