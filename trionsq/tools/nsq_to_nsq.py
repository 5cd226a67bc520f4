"""The tool nsq_to_nsq: publishes the messages of topics to other nsqds.

A consumer for each topic, two tasks for each destination. A message is finished after the
destination's OK; otherwise it is requeued with the default delay, and the consumer backs off. With
--from logs are read in place of channels (see `trionsq.tools.fromlog`).

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

from trionsq.client import (
    Batch,
    ClientError,
    Config,
    Consumer,
    Producer,
    ProtocolError,
)
from trionsq.client.reply import Reply
from trionsq.hostport import parse_address
from trionsq.options import INT, STRING, STRINGS, option
from trionsq.tools.common import (
    checked_options,
    client_config,
    configure_log,
    consumer_config,
    die,
    on_signal,
    run_tool,
)
from trionsq.tools.forwarding import InProgress, RequestLog, forward
from trionsq.tools.fromlog import FromLogOptions, check_addresses, read_logs
from trionsq.tools.hostpool import hosts_of
from trionsq.tools.json_filter import JsonFilter, Rejection
from trionsq.tools.nsq_to_nsq_from import (
    Answerable,
    AnswerableBatch,
    LoggedBodies,
    passing,
    publish_all,
)
from trionsq.wire.names import is_valid_name

__all__ = ["NsqToNsqOptions", "main"]

log = logging.getLogger("trionsq.tools")

_TOOL: Final = "nsq_to_nsq"
_NO_FILTER: Final = JsonFilter((), "", "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqToNsqOptions(FromLogOptions):
    """The flags."""

    topic: tuple[str, ...] = option("topic", (), STRINGS, "topic to read")
    channel: str = option("channel", "nsq_to_nsq", STRING, "channel to read from")
    destination_topic: str = option(
        "destination-topic", "", STRING, "topic to publish to", note="default: the same"
    )
    destination_nsqd_tcp_address: tuple[str, ...] = option(
        "destination-nsqd-tcp-address", (), STRINGS, "host:port of an nsqd to publish to"
    )
    mode: str = option(
        "mode",
        "hostpool",
        STRING,
        "choice of the destination: round-robin, hostpool or epsilon-greedy",
    )
    status_every: int = option(
        "status-every", 250, INT, "log response times after this many publishes; 0: never"
    )
    whitelist_json_field: tuple[str, ...] = option(
        "whitelist-json-field", (), STRINGS, "top level field to keep; others are dropped"
    )
    require_json_field: str = option(
        "require-json-field", "", STRING, "publish only messages with this field"
    )
    require_json_value: str = option(
        "require-json-value", "", STRING, "publish only messages with this value of that field"
    )
    producer_opt: tuple[str, ...] = option(
        "producer-opt", (), STRINGS, "option of the client library for publishing: name,value"
    )


def _early_refusal(options: NsqToNsqOptions) -> str:
    """Why the options are refused, or ""; checked before the addresses."""
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
    """Why the options are refused, or ""; checked after the addresses."""
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
        topic: the topic to publish to.
        bodies: the bodies to publish.
        batch: the batch that the messages came from.
        indexes: the index of each message in the batch; None: the parcel is the whole batch.
    """

    topic: str
    bodies: list[bytes]
    batch: AnswerableBatch
    indexes: list[int] | None

    def answer(self, confirmed: list[bool]) -> None:
        """Finish the confirmed messages; requeue the others with the default delay and back off."""
        if self.indexes is None and all(confirmed):
            self.batch.finish()
            return
        indexes = range(len(self.bodies)) if self.indexes is None else self.indexes
        for index, is_confirmed in zip(indexes, confirmed, strict=True):
            message = self.batch[index]
            if is_confirmed:
                message.finish()
            else:
                message.requeue()


_OnAnswered: TypeAlias = Callable[[str, int, bool, float], None]
"""Called with the address, the number of messages, whether all were confirmed, and the seconds."""

_Sent: TypeAlias = tuple[_Parcel, list[Reply[bytes]], float]


class _Destination:
    """An nsqd to publish to: many unconfirmed messages over one connection.

    Two tasks: one sends, the other waits for the confirmations, which come in the order of sending.
    So a destination that is slow or cannot be reached delays no other one. The consumers'
    max-in-flight limits the messages that wait here. The messages of a parcel are answered
    together, once nsqd has answered all of them or the connection is lost.
    """

    def __init__(self, address: str, config: Config, on_answered: _OnAnswered) -> None:
        self.address = address
        self._config = config
        self._on_answered = on_answered
        self._to_send, self._parcels = trio.open_memory_channel[_Parcel](math.inf)
        self._to_confirm, self._sent = trio.open_memory_channel[_Sent](math.inf)

    def __repr__(self) -> str:
        waiting = self._parcels.statistics().current_buffer_used
        return f"<_Destination {self.address} {waiting} parcels wait>"

    def queue_parcel(self, parcel: _Parcel) -> None:
        """Queue a parcel to be published."""
        self._to_send.send_nowait(parcel)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with (
            Producer(self.address, config=self._config) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._await_confirmations)
            async for parcel in self._parcels:
                await self._send(producer, parcel)

    async def _send(self, producer: Producer, parcel: _Parcel) -> None:
        sent_s = trio.current_time()
        replies: list[Reply[bytes]] = []
        try:
            for body in parcel.bodies:
                # After an error the earlier replies still count: so no comprehension.
                replies.append(await producer.begin_publish(parcel.topic, body))  # noqa: PERF401
        except (ClientError, ValueError) as error:
            log.error("%s: failed to publish - %s", self.address, error)
        self._to_confirm.send_nowait((parcel, replies, sent_s))

    async def _await_confirmations(self) -> None:
        async for parcel, replies, sent_s in self._sent:
            count = len(parcel.bodies)
            confirmed = [False] * count
            failure: Exception | None = None
            for index, reply in enumerate(replies):
                try:
                    await reply.wait()
                    confirmed[index] = True
                except (ClientError, ProtocolError) as error:
                    # The first error says why the connection was lost; the others follow from it.
                    failure = failure or error
            if failure is not None:
                log.error("%s: failed to publish - %s", self.address, failure)
            parcel.answer(confirmed)
            self._on_answered(self.address, count, all(confirmed), trio.current_time() - sent_s)


class _Forwarding:
    """One run of the tool."""

    def __init__(
        self, options: NsqToNsqOptions, consumer_config: Config, producer_config: Config
    ) -> None:
        """Raises ValueError if an address is invalid."""
        self._options = options
        addresses = tuple(dict.fromkeys(options.destination_nsqd_tcp_address))
        self._hosts = hosts_of(options.mode, addresses, Random())
        self._request_log = RequestLog(addresses, options.status_every)
        self._destinations = {
            address: _Destination(address, producer_config, self._record_answers)
            for address in addresses
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
            if not options.begin
        ]
        self._config = consumer_config

    async def run(self) -> int:
        """Publish until a signal, and return the exit code. Raises ClientError, ProtocolError."""
        async with trio.open_nursery() as nursery:
            for destination in self._destinations.values():
                nursery.start_soon(destination.run)
            if self._options.begin:
                await self._forward_logs()
            else:
                await forward(self._consumers, self._distribute_batch, self._in_progress)
            nursery.cancel_scope.cancel()
        return 0

    async def _forward_logs(self) -> None:
        """Publish the logs of all topics up to their end, or until a signal."""

        async def forward_log(topic: str) -> None:
            async def forward_bodies(bodies: list[bytes]) -> None:
                bodies = passing(bodies, self._filter)
                await publish_all(bodies, self._options.max_in_flight, distribute)

            async def distribute(bodies: LoggedBodies) -> None:
                self._distribute(topic, bodies, _NO_FILTER)

            await read_logs(topic, self._options, self._config, forward_bodies, to="end")

        async with trio.open_nursery() as nursery:
            await nursery.start(on_signal, lambda _: nursery.cancel_scope.cancel())
            async with trio.open_nursery() as topics:
                for topic in dict.fromkeys(self._options.topic):
                    topics.start_soon(forward_log, topic)
            nursery.cancel_scope.cancel()

    async def _distribute_batch(self, consumer: Consumer, batch: Batch) -> None:
        self._distribute(consumer.topic, batch, self._filter)

    def _distribute(self, topic: str, batch: AnswerableBatch, json_filter: JsonFilter) -> None:
        topic = self._options.destination_topic or topic
        if len(self._destinations) == 1 and not json_filter.is_active:
            (address,) = self._destinations
            self._send(address, _Parcel(topic, batch.bodies, batch, None))
            return
        now_s = trio.current_time()
        parcels: dict[str, _Parcel] = {}
        for index, body in enumerate(batch.bodies):
            filtered = json_filter.filtered_body(body) if json_filter.is_active else body
            if isinstance(filtered, Rejection):
                _reject(batch[index], filtered)
                continue
            address = self._hosts.choose(now_s)
            parcel = parcels.get(address)
            if parcel is None:
                parcel = parcels[address] = _Parcel(topic, [], batch, [])
            parcel.bodies.append(filtered)
            assert parcel.indexes is not None
            parcel.indexes.append(index)
        for address, parcel in parcels.items():
            self._send(address, parcel)

    def _send(self, address: str, parcel: _Parcel) -> None:
        self._in_progress.add_one()
        self._destinations[address].queue_parcel(parcel)

    def _record_answers(
        self, address: str, count: int, is_confirmed: bool, response_s: float
    ) -> None:
        now_s = trio.current_time()
        self._hosts.record_response(address, now_s, response_s if is_confirmed else None)
        self._request_log.add_requests(address, response_s, count)
        self._in_progress.remove_one()


def _reject(message: Answerable, rejection: Rejection) -> None:
    if rejection is Rejection.REQUEUE:
        log.error("missing field to check required value: %r", message)
        message.requeue()
    else:
        message.finish()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options = checked_options(
        NsqToNsqOptions, _TOOL, argv, _early_refusal, _refusal, check_addresses
    )
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
