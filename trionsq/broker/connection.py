"""A client connection: a nursery with two sibling tasks, the ioloop and the message pump.

The ioloop reads commands, runs them and writes their replies. The message pump writes messages.
When either ends, for whatever reason, the other is cancelled, and the connection is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from trionsq.broker.client import Client
from trionsq.transports.transport import BrokenStreamError

__all__ = ["pump_messages", "serve"]

log = logging.getLogger("trionsq")


async def serve(client: Client) -> None:
    """Run a connection until it ends. An error ends the connection, never the broker."""
    log.info("TCP: new client(%s)", client.peer)
    try:
        async with trio.open_nursery() as nursery:
            both = nursery.cancel_scope
            client.attach(both)
            name = f"client {client.peer}"
            nursery.start_soon(_sibling, client, both, _read, name=f"{name} ioloop")
            nursery.start_soon(_sibling, client, both, pump_messages, name=f"{name} message_pump")
        await _sibling(client, both, Client.end_owed)
    except* Exception as errors:
        # It affects no other client.
        client.context.defects.note("client", f"client({client.peer})", errors)
    finally:
        client.release()
        log.info("client(%s) - closed", client.peer)


async def _sibling(
    client: Client, both: trio.CancelScope, task: Callable[[Client], Awaitable[None]]
) -> None:
    """Run a task of the connection; its end is that of ``both``."""
    try:
        await task(client)
    except BrokenStreamError as error:
        log.error("client(%s) - %s", client.peer, error)
    except OSError as error:
        log.debug("client(%s) - connection lost: %s", client.peer, error)
    finally:
        both.cancel()


async def _read(client: Client) -> None:
    try:
        await client.context.poller.serve(client)
    except BrokenStreamError:
        await client.settle()
        raise
    await client.settle()


async def pump_messages(client: Client) -> None:
    """Write messages until cancelled.

    Raises:
        OSError: the connection broke.
    """
    pump, output = client.pump, client.output
    while True:
        pump.write_deliveries(await pump.inbox.receive())
        if output.pending:
            await output.drain()
        if pump.subscription.blocked:
            client.unblock()
