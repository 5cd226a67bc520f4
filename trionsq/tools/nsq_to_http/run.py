"""The life of nsq_to_http: a task for each message under way, `n` at once at most.

A message is finished once its request succeeded, else requeued with the default delay, which
makes the consumer back off.

Spec: tools, nsq_to_http.
"""

from __future__ import annotations

import logging
from random import Random

import trio

from trionsq.client import Batch, Config, Consumer, Message
from trionsq.tools.forwarding import UnderWay, forward
from trionsq.tools.hostpool import MODES, Hosts, hosts_of
from trionsq.tools.nsq_to_http.options import Options
from trionsq.tools.nsq_to_http.requests import RequestError, Requests
from trionsq.tools.request_times import Status

__all__ = ["Sending"]

log = logging.getLogger("trionsq.tools")


class Sending:
    """One run of the tool."""

    def __init__(self, options: Options, config: Config, random: Random | None = None) -> None:
        """`random`: for tests. Raises ValueError: an address that is none."""
        self._options = options
        self._random = random or Random()
        self._sample = float(options.sample)
        self._hosts: Hosts | None = None
        if options.mode in MODES:
            self._hosts = hosts_of(options.mode, options.addresses, self._random)
        self._status = Status(options.addresses, options.status_every)
        self._requests = Requests(options)
        self._turns = trio.CapacityLimiter(options.n)
        self._under_way = UnderWay()
        self._consumer = Consumer(
            options.topic,
            options.channel,
            nsqd_tcp_addresses=dict.fromkeys(options.nsqd_tcp_address),
            lookupd_http_addresses=options.lookupd_http_address,
            config=config,
        )

    async def run(self) -> int:
        """Send until a signal comes; the exit code. Raises ClientError, ProtocolError."""
        async with self._requests, trio.open_nursery() as self._tasks:
            await forward([self._consumer], self._take, self._under_way)
            self._tasks.cancel_scope.cancel()
        return 0

    async def _take(self, _consumer: Consumer, batch: Batch) -> None:
        for message in batch:
            if self._random.random() >= self._sample:
                message.finish()
                continue
            # Released by another task, which so becomes its owner.
            await self._turns.acquire_on_behalf_of(message)
            if not batch.is_answerable:
                self._turns.release_on_behalf_of(message)
                return
            self._under_way.begin()
            self._tasks.start_soon(self._send, message)

    async def _send(self, message: Message) -> None:
        try:
            if await self._was_taken(message.body):
                message.finish()
            else:
                message.requeue()
        finally:
            self._turns.release_on_behalf_of(message)
            self._under_way.end()

    async def _was_taken(self, body: bytes) -> bool:
        """Whether the address whose turn it is took it; without turns, whether all did."""
        if self._hosts is not None:
            return await self._request(self._hosts.choose(trio.current_time()), body)
        for address in self._options.addresses:
            if not await self._request(address, body):
                return False
        return True

    async def _request(self, address: str, body: bytes) -> bool:
        begun_s = trio.current_time()
        failure: RequestError | None = None
        try:
            await self._requests.send(address, body)
        except RequestError as error:
            failure = error
            log.error("%s: %s", address, error)
        now_s = trio.current_time()
        if self._hosts is not None:
            self._hosts.mark(address, now_s, None if failure else now_s - begun_s)
        self._status.add(address, now_s - begun_s)
        return failure is None
