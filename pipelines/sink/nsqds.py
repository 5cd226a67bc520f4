"""The nsqds that a task publishes to, in rotation; when one fails, the next one is tried.

A command batch is published when nsqd has confirmed it. If the connection breaks before that, the
batch is sent again, and nsqd may then have it twice. Retries are bounded, and the pause between
rounds grows.

Spec: client, section 2; tcp-protocol, section 12; nsqlookupd, section 3 (GET /nodes).
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from pipelines.discovery import find_nodes
from pipelines.errors import PublishError
from pipelines.sink.commands import CommandBatch
from pipelines.sink.options import SinkOptions
from trionsq.client import (
    AuthRequiredError,
    Config,
    ConnectError,
    NotConnectedError,
    ProtocolError,
    UpgradeError,
)
from trionsq.client.connection import Connection

__all__ = ["NsqdPool", "find_nsqds", "open_nsqds"]

log = logging.getLogger("pipelines.sink")

_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
# An nsqd that refused a connection is skipped for so long, if there are others.
_SKIP_S: Final = 5.0
_CLOSE_LIMIT_S: Final = 2.0
# More nsqds than one task needs; each task begins with a different one.
_MAX_NSQDS: Final = 16
# Another nsqd may accept these, or the same one a moment later.
_RETRIED: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
_ADVICE: Final = {
    "E_BAD_BODY": "; batchBytes must be within nsqd's --max-body-size",
    "E_BAD_MESSAGE": "; maxMessageBytes must be within nsqd's --max-msg-size",
}
_DELAY_ADVICE: Final = "; defer_ms must be within nsqd's --max-req-timeout"


class Nsqd:
    """One nsqd and the connection to it, which is opened when it is needed.

    Attributes:
        skipped_until_s: trio's clock; until then other nsqds are tried first.
    """

    def __init__(self, address: str, config: Config, timeout_s: float, tasks: trio.Nursery) -> None:
        self.address = address
        self.skipped_until_s = -math.inf
        self._config = config
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._connecting = trio.Lock()
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"<Nsqd {self.address} {self._connection!r}>"

    async def publish(self, batch: CommandBatch) -> None:
        """Publish and wait until every command is confirmed.

        Raises:
            ConnectError, NotConnectedError, ProtocolError: as a Producer. nsqd may have some of
            several DPUBs; after NotConnectedError it may have all of any batch.
        """
        connection = await self._connected()
        with trio.move_on_after(self._timeout_s) as limit:
            await connection.room()
            for reply in [connection.request(command) for command in batch.commands]:
                response = await reply.wait()
                if response != b"OK":
                    raise PublishError(f"{self.address} answered {response[:64]!r} instead of OK")
        if limit.cancelled_caught:
            # A late response would be taken for that of the next command.
            connection.abort()
            raise NotConnectedError(f"{self.address}: no answer within {self._timeout_s:g} s")

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                try:
                    connection = await Connection.open(self.address, self._config)
                except ConnectError:
                    self.skipped_until_s = trio.current_time() + _SKIP_S
                    raise
                await self._tasks.start(connection.run, name=f"connection to {self.address}")
                self._connection = connection
            return self._connection

    async def close(self) -> None:
        """Close the connection in order, within a limit."""
        if self._connection is not None and self._connection.is_open:
            self._connection.end()
            with trio.move_on_after(_CLOSE_LIMIT_S):
                await self._connection.ended.wait()


class NsqdPool:
    """Several nsqds, used in rotation; made by `open_nsqds`."""

    def __init__(self, nsqds: Sequence[Nsqd], retries: int) -> None:
        self._nsqds = nsqds
        self._retries = retries
        self._next = 0

    @property
    def count(self) -> int:
        """The number of nsqds."""
        return len(self._nsqds)

    async def publish(self, batch: CommandBatch) -> None:
        """Publish a batch to the next nsqd, or to the first one after it that accepts the batch.

        Any number of tasks may call this at once.

        Raises:
            PublishError: nsqd refused the batch for good, or no nsqd accepted it in all rounds.
        """
        first, self._next = self._next, self._next + 1
        failures: dict[str, str] = {}
        for number in range(1 + self._retries):
            if number:
                await trio.sleep(min(_PAUSE_S * 2 ** min(number - 1, 10), _MAX_PAUSE_S))
            for nsqd in self._rotation(first):
                reason = await self._try(nsqd, batch)
                if reason is None:
                    return
                failures[nsqd.address] = reason
                log.warning("publishing to topic %s failed: %s", batch.topic, reason)
        rounds = f"{1 + self._retries} round" + "s" * bool(self._retries)
        raise PublishError(
            f"no nsqd accepted {batch.rows} messages for {batch.topic} in {rounds}: "
            + "; ".join(failures.values())
        )

    def _rotation(self, first: int) -> list[Nsqd]:
        """All nsqds that are not skipped, or all if every one is."""
        nsqds = [self._nsqds[(first + index) % self.count] for index in range(self.count)]
        now_s = trio.current_time()
        return [nsqd for nsqd in nsqds if nsqd.skipped_until_s <= now_s] or nsqds

    async def _try(self, nsqd: Nsqd, batch: CommandBatch) -> str | None:
        """Publish; the reason if it failed. Raises PublishError if a retry is pointless."""
        try:
            await nsqd.publish(batch)
        except (UpgradeError, AuthRequiredError) as error:
            raise PublishError(str(error)) from error
        except (ConnectError, NotConnectedError) as error:
            return str(error)
        except ProtocolError as error:
            reason = f"{nsqd.address}: {error}"
            if error.code not in _RETRIED:
                advice = _ADVICE.get(error.code, "")
                if error.code == "E_INVALID" and "out of range" in reason:
                    advice = _DELAY_ADVICE
                raise PublishError(
                    f"refused {batch.rows} messages for {batch.topic}: {reason}{advice}"
                ) from error
            return reason
        return None


@asynccontextmanager
async def open_nsqds(options: SinkOptions, first: int = 0) -> AsyncIterator[NsqdPool]:
    """The nsqds that the options name, and those that nsqlookupd knows.

    An exception of the block is raised as it is, not in a group.

    Args:
        options: addresses, retries, the client's options.
        first: index of the first nsqd in the rotation; tasks pass different ones.

    Raises:
        PublishError: there is no nsqd.
    """
    addresses = await find_nsqds(options)
    start = first % len(addresses)
    rotation = (addresses[start:] + addresses[:start])[:_MAX_NSQDS]
    failure: Exception | None = None
    async with trio.open_nursery() as tasks:
        nsqds = [
            Nsqd(address, options.client, options.publish_timeout_s, tasks) for address in rotation
        ]
        try:
            yield NsqdPool(nsqds, options.retries)
        except Exception as error:
            failure = error
        else:
            async with trio.open_nursery() as closing:
                for nsqd in nsqds:
                    closing.start_soon(nsqd.close, name=f"closing of {nsqd.address}")
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def find_nsqds(options: SinkOptions) -> list[str]:
    """``host:port`` of each nsqd that the options name or an nsqlookupd knows, in a fixed order.

    Raises:
        PublishError: there is none.
    """
    nodes, failures = await find_nodes(options.lookupd_http_addresses, options.client)
    for failure in failures:
        log.warning("%s", failure)
    addresses = dict.fromkeys((*options.nsqd_tcp_addresses, *sorted(nodes)))
    if not addresses:
        raise PublishError("; ".join(failures) or "nsqlookupd knows no nsqd")
    return list(addresses)
