"""The nsqds that a task publishes to: in turn, and when one fails, the next.

A parcel is delivered when nsqd has confirmed it. If a connection breaks before that, it is sent
again, and may then be there twice. Tries are bounded, and a wait grows between rounds.

Spec: client, section 2; tcp-protocol, section 12; lookupd's GET /nodes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import trio

from pipelines.sink.errors import PublishError
from pipelines.sink.options import SinkOptions
from pipelines.sink.parcels import Parcel
from trionsq import httpget
from trionsq.client import (
    AuthRequiredError,
    Config,
    ConfigError,
    ConnectError,
    DiscoveryError,
    NotConnectedError,
    ProtocolError,
    UpgradeError,
)
from trionsq.client.connection import Connection
from trionsq.client.discovery import addresses_of

__all__ = ["Nsqds", "find_nsqds", "nodes_url", "open_nsqds"]

log = logging.getLogger("pipelines.sink")

_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
# One that can't be connected to is left out for so long, if there are others.
_REST_S: Final = 5.0
_FAREWELL_S: Final = 2.0
_LOOKUPD_S: Final = 10.0
# More nsqds than a task needs; where it begins differs from task to task.
_NSQDS_MAX: Final = 16
# What another nsqd, or the same a moment later, may well do.
_MAY_PASS: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})
_ADVICE: Final = {
    "E_BAD_BODY": "; batchBytes must be within nsqd's --max-body-size",
    "E_BAD_MESSAGE": "; maxMessageBytes must be within nsqd's --max-msg-size",
}
_ADVICE_ON_DELAYS: Final = "; defer_ms must be within nsqd's --max-req-timeout"


class Nsqd:
    """One nsqd and the connection to it, made when it is needed.

    Attributes:
        rests_until_s: trio's clock; it could not be connected to, others come first.
    """

    def __init__(self, address: str, config: Config, timeout_s: float, tasks: trio.Nursery) -> None:
        self.address = address
        self.rests_until_s = -math.inf
        self._config = config
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._connecting = trio.Lock()
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"<Nsqd {self.address} {self._connection!r}>"

    async def send(self, parcel: Parcel) -> None:
        """Publish and wait until all of it is confirmed.

        Raises:
            ConnectError, NotConnectedError, ProtocolError: as a Producer. Parts of a parcel of
            DPUBs may have been taken; with NotConnectedError, all of any parcel.
        """
        connection = await self._connected()
        with trio.move_on_after(self._timeout_s) as patience:
            await connection.room()
            for reply in [connection.request(command) for command in parcel.commands]:
                answer = await reply.wait()
                if answer != b"OK":
                    raise PublishError(f"{self.address} answered {answer[:64]!r} instead of OK")
        if patience.cancelled_caught:
            # Its answers would be taken for those of what follows.
            connection.abort()
            raise NotConnectedError(f"{self.address}: no answer within {self._timeout_s:g} s")

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                try:
                    connection = await Connection.open(self.address, self._config)
                except ConnectError:
                    self.rests_until_s = trio.current_time() + _REST_S
                    raise
                await self._tasks.start(connection.run, name=f"connection to {self.address}")
                self._connection = connection
            return self._connection

    async def end(self) -> None:
        """Close in order, within a limit."""
        if self._connection is not None and self._connection.is_open:
            self._connection.end()
            with trio.move_on_after(_FAREWELL_S):
                await self._connection.ended.wait()


class Nsqds:
    """Several of them; made by `open_nsqds`."""

    def __init__(self, nsqds: Sequence[Nsqd], retries: int) -> None:
        self._nsqds = nsqds
        self._retries = retries
        self._next = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._nsqds)

    async def deliver(self, parcel: Parcel) -> None:
        """Publish a parcel to the next nsqd, or to the first after it that takes it.

        Any number of tasks may do so at once.

        Raises:
            PublishError: refused for good, or by none taken in all rounds.
        """
        begin, self._next = self._next, self._next + 1
        failures: dict[str, str] = {}
        for number in range(1 + self._retries):
            if number:
                await trio.sleep(min(_PAUSE_S * 2 ** min(number - 1, 10), _PAUSE_MAX_S))
            for nsqd in self._in_turn(begin):
                reason = await self._try(nsqd, parcel)
                if reason is None:
                    return
                failures[nsqd.address] = reason
                log.warning("publishing to %s failed: %s", parcel.topic, reason)
        rounds = f"{1 + self._retries} round" + "s" * bool(self._retries)
        raise PublishError(
            f"no nsqd took {parcel.rows} messages for {parcel.topic} in {rounds}: "
            + "; ".join(failures.values())
        )

    def _in_turn(self, begin: int) -> list[Nsqd]:
        """All but those that rest; all, if all of them do."""
        nsqds = [self._nsqds[(begin + at) % self.count] for at in range(self.count)]
        now_s = trio.current_time()
        return [nsqd for nsqd in nsqds if nsqd.rests_until_s <= now_s] or nsqds

    async def _try(self, nsqd: Nsqd, parcel: Parcel) -> str | None:
        """None: done. Else why not, with the address; PublishError if a retry is of no use."""
        try:
            await nsqd.send(parcel)
        except (UpgradeError, AuthRequiredError) as error:
            raise PublishError(str(error)) from error
        except (ConnectError, NotConnectedError) as error:
            return str(error)
        except ProtocolError as error:
            reason = f"{nsqd.address}: {error}"
            if error.code not in _MAY_PASS:
                advice = _ADVICE.get(error.code, "")
                if error.code == "E_INVALID" and "out of range" in reason:
                    advice = _ADVICE_ON_DELAYS
                raise PublishError(
                    f"refused {parcel.rows} messages for {parcel.topic}: {reason}{advice}"
                ) from error
            return reason
        return None


@asynccontextmanager
async def open_nsqds(options: SinkOptions, first: int = 0) -> AsyncIterator[Nsqds]:
    """The nsqds that the options name, and those found; connected to when needed.

    An error of the body comes out as it is, not in a group.

    Args:
        options: addresses, retries, the client's options.
        first: which of them is the first in turn; tasks begin with different ones.

    Raises:
        PublishError: none is known.
    """
    addresses = await find_nsqds(options)
    start = first % len(addresses)
    chosen = (addresses[start:] + addresses[:start])[:_NSQDS_MAX]
    failure: Exception | None = None
    async with trio.open_nursery() as tasks:
        nsqds = [
            Nsqd(address, options.client, options.publish_timeout_s, tasks) for address in chosen
        ]
        try:
            yield Nsqds(nsqds, options.retries)
        except Exception as error:
            failure = error
        else:
            async with trio.open_nursery() as ending:
                for nsqd in nsqds:
                    ending.start_soon(nsqd.end, name=f"end of {nsqd.address}")
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def find_nsqds(options: SinkOptions) -> list[str]:
    """``host:port`` of each nsqd that was named or that an nsqlookupd knows, in a fixed order.

    Raises:
        PublishError: there is none.
    """
    found = dict.fromkeys(options.nsqd_tcp_addresses)
    failures: list[str] = []
    answers: dict[str, list[str]] = {}

    async def ask(url: str) -> None:
        try:
            answers[url] = await _nodes_of(url, options.client)
        except (httpget.GetError, DiscoveryError, ConfigError) as error:
            failures.append(f"{url}: {error}")
            log.warning("%s: %s", url, error)

    async with trio.open_nursery() as nursery:
        for address in options.lookupd_http_addresses:
            url = nodes_url(address)
            nursery.start_soon(ask, url, name=f"nodes of {url}")
    found |= dict.fromkeys(sorted({address for some in answers.values() for address in some}))
    if not found:
        raise PublishError("; ".join(failures) or "nsqlookupd knows no nsqd")
    return list(found)


async def _nodes_of(url: str, config: Config) -> list[str]:
    headers = {"Accept": "application/vnd.nsq; version=1.0"}
    if config.auth_secret and config.skip_lookupd_authorization:
        headers["Authorization"] = f"Bearer {config.auth_secret}"
    request_s = min(_LOOKUPD_S, config.lookupd_poll_timeout_s)
    context = config.ssl_context() if url.startswith("https:") else None
    answer = await httpget.get(
        url, headers, min(config.dial_timeout_s, request_s), request_s, ssl_context=context
    )
    return addresses_of(answer)


def nodes_url(address: str) -> str:
    """The URL that is asked, for ``host:port`` or ``http(s)://host:port[/path]``.

    Raises:
        ValueError: no port, or no URL at all.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ValueError(f"{address!r} is not host:port of an nsqlookupd, nor its URL")
    path = parts.path.rstrip("/").removesuffix("/lookup") + "/nodes"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
