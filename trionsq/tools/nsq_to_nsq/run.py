"""The life of nsq_to_nsq: a consumer for each topic, two tasks for each destination.

A message is finished after the destination's OK, else requeued with the default delay, which
makes the consumer back off.

Spec: tools, nsq_to_nsq.
"""

from __future__ import annotations

import logging
from random import Random

import trio

from trionsq.client import Batch, Config, Consumer
from trionsq.tools.forwarding import UnderWay, forward
from trionsq.tools.hostpool import hosts_of
from trionsq.tools.nsq_to_nsq.destinations import Destination, Parcel
from trionsq.tools.nsq_to_nsq.fields import Fields, Verdict
from trionsq.tools.nsq_to_nsq.options import Options
from trionsq.tools.request_times import Status

__all__ = ["Forwarding"]

log = logging.getLogger("trionsq.tools")


class Forwarding:
    """One run of the tool."""

    def __init__(self, options: Options, consumer_config: Config, producer_config: Config) -> None:
        """Raises ValueError: an address that is none."""
        self._options = options
        addresses = tuple(dict.fromkeys(options.destination_nsqd_tcp_address))
        self._hosts = hosts_of(options.mode, addresses, Random())
        self._status = Status(addresses, options.status_every)
        self._destinations = {
            address: Destination(address, producer_config, self._decided) for address in addresses
        }
        self._fields = Fields(
            options.whitelist_json_field, options.require_json_field, options.require_json_value
        )
        self._under_way = UnderWay()
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
            await forward(self._consumers, self._take, self._under_way)
            nursery.cancel_scope.cancel()
        return 0

    async def _take(self, consumer: Consumer, batch: Batch) -> None:
        topic = self._options.destination_topic or consumer.topic
        if len(self._destinations) == 1 and not self._fields.is_needed:
            (address,) = self._destinations
            self._put(address, Parcel(topic, batch.bodies, batch, None))
            return
        now_s = trio.current_time()
        parcels: dict[str, Parcel] = {}
        for place, body in enumerate(batch.bodies):
            passed = self._fields.apply(body) if self._fields.is_needed else body
            if isinstance(passed, Verdict):
                _answer(batch, place, passed)
                continue
            address = self._hosts.choose(now_s)
            parcel = parcels.get(address)
            if parcel is None:
                parcel = parcels[address] = Parcel(topic, [], batch, [])
            parcel.bodies.append(passed)
            assert parcel.places is not None
            parcel.places.append(place)
        for address, parcel in parcels.items():
            self._put(address, parcel)

    def _put(self, address: str, parcel: Parcel) -> None:
        self._under_way.begin()
        self._destinations[address].put(parcel)

    def _decided(self, address: str, count: int, is_confirmed: bool, response_s: float) -> None:
        now_s = trio.current_time()
        self._hosts.mark(address, now_s, response_s if is_confirmed else None)
        self._status.add(address, response_s, count)
        self._under_way.end()


def _answer(batch: Batch, place: int, verdict: Verdict) -> None:
    message = batch[place]
    if verdict is Verdict.REQUEUE:
        log.error("missing field to check required value: %r", message)
        message.requeue()
    else:
        message.finish()
