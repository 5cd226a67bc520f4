"""Publishes with keys over connections that break, to an nsqd that is killed. Real processes.

``python -m tests.daemon.repeats`` prints the figures of 100,000 publishes of each kind.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import trio

from tests.processes import NsqdProcess, free_address, running_nsqd
from trionsq.client import Config, Consumer, Producer
from trionsq.hostport import parse_address
from trionsq.httpget import get, post

__all__ = ["KINDS", "Account", "main", "publish_through_kills"]

TASKS = 20
FLAGS = ["--storage=log", "--durability=always"]
_RETRY_S = 0.02
_STORED_BEFORE = 'nsqd_idempotent_publishes_total{result="repeated"}'

Publish = Callable[[int], Awaitable[None]]


@dataclass(slots=True)
class Account:
    """What became of the publishes.

    Attributes:
        answered: publishes that had an OK at last.
        sent: how often one reached nsqd, or may have.
        stored_before: repeats that nsqd recognized; those of the last moment before a kill are
            not among them.
        found: how often each body was there at the end.
    """

    answered: int = 0
    sent: int = 0
    stored_before: int = 0
    found: Counter[bytes] = field(default_factory=Counter)


class BreakingProxy:
    """Takes connections to nsqd, and breaks each in place of an answer.

    Attributes:
        sent: publishes that went through, repeats included.
    """

    def __init__(self, nsqd_address: str, answers: int, random: Random) -> None:
        """``answers``: between two that get lost, about."""
        self.sent = 0
        self._nsqd = parse_address(nsqd_address)
        self._answers = answers
        self._random = random

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its address."""
        async with trio.open_nursery() as nursery:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, self._serve, [listener])
            yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
            nursery.cancel_scope.cancel()

    async def _serve(self, client: trio.SocketStream) -> None:
        try:
            async with (
                client,
                await trio.open_tcp_stream(*self._nsqd) as nsqd,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._forward, client, nsqd)
                await self._answer(nsqd, client)
                nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # nsqd is not there, or was killed

    async def _forward(self, client: trio.SocketStream, nsqd: trio.SocketStream) -> None:
        tail = b""
        async for data in client:
            text = tail + data
            self.sent += text.count(b"PUB t ") + text.count(b"/pub?topic=t ")
            tail = bytes(data[-5:])
            await nsqd.send_all(data)

    async def _answer(self, nsqd: trio.SocketStream, client: trio.SocketStream) -> None:
        left = self._random.randrange(1, 2 * self._answers)
        async for data in nsqd:
            left -= data.count(b"OK")
            if left <= 0:
                return
            await client.send_all(data)


class Progress:
    """How many publishes were answered, and who waits for how many."""

    def __init__(self) -> None:
        self.done = self._wanted = 0
        self._reached = trio.Event()

    def note(self) -> None:
        self.done += 1
        if self.done == self._wanted:
            self._reached.set()

    async def wait(self, count: int) -> None:
        if self.done < count:
            self._wanted, self._reached = count, trio.Event()
            await self._reached.wait()


@asynccontextmanager
async def _by_producer(address: str) -> AsyncIterator[Callable[[], Publish]]:
    """One producer of the library for all tasks."""
    async with Producer(address, idempotent=True, retry_s=200) as producer:
        yield lambda: lambda number: producer.publish("t", b"%d" % number)


class _PlainClient:
    """One who knows the protocol and nothing else, and repeats what it has no answer to."""

    def __init__(self, address: str) -> None:
        self._address = parse_address(address)
        self._stream: trio.SocketStream | None = None
        self._unread = b""

    async def publish(self, number: int) -> None:
        """Until it is answered."""
        while True:
            try:
                if self._stream is None:
                    self._stream, self._unread = await trio.open_tcp_stream(*self._address), b""
                    await self._greet()
                await self._attempt(number)
                return
            except (OSError, trio.BrokenResourceError):
                await self.close()
                await trio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
            self._stream = None

    async def _greet(self) -> None: ...

    async def _attempt(self, number: int) -> None:
        raise NotImplementedError

    async def _send(self, data: bytes) -> None:
        assert self._stream is not None
        await self._stream.send_all(data)

    async def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            await self._receive()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    async def _receive(self) -> None:
        assert self._stream is not None
        more = await self._stream.receive_some(65536)
        if not more:
            raise OSError("the connection ended")
        self._unread += more


class _TcpClient(_PlainClient):
    """PUB, MPUB and DPUB; a repeat names the epoch of the first attempt."""

    _epoch = ""
    # The number of the last attempt, and the epoch in which it was made.
    _first = -1, ""

    async def _greet(self) -> None:
        wishes = json.dumps({"feature_negotiation": True, "idempotent_publish": True}).encode()
        await self._send(b"  V2IDENTIFY\n" + _sized(wishes))
        self._epoch = json.loads(await self._frame())["idempotency_epoch"]

    async def _attempt(self, number: int) -> None:
        epoch = ""
        if self._first[0] == number:
            epoch = f" {self._first[1]}"
        else:
            self._first = number, self._epoch
        await self._send(_command(number, epoch))
        answer = await self._frame()
        assert answer == b"OK", answer

    async def _frame(self) -> bytes:
        """The data of the next frame but heartbeats."""
        while True:
            (size,) = struct.unpack(">i", await self._exactly(4))
            data = (await self._exactly(size))[4:]
            if data != b"_heartbeat_":
                return data
            await self._send(b"NOP\n")


class _HttpClient(_PlainClient):
    """POST /pub with the header Idempotency-Key."""

    async def _attempt(self, number: int) -> None:
        body = b"%d" % number
        head = f"POST /pub?topic=t HTTP/1.1\r\nHost: nsqd\r\nContent-Length: {len(body)}\r\n"
        head += f'Idempotency-Key: "key-{number}"\r\n\r\n'
        await self._send(head.encode() + body)
        while b"\r\n\r\n" not in self._unread:
            await self._receive()
        at = self._unread.index(b"\r\n\r\n")
        lines = (await self._exactly(at + 4)).decode().lower().splitlines()
        (size,) = [int(line[15:]) for line in lines if line.startswith("content-length:")]
        status, answer = lines[0].split()[1], await self._exactly(size)
        if status.startswith("5"):
            raise OSError(answer.decode())  # a request that came too slowly
        assert (status, answer) == ("200", b"OK"), answer


def _command(number: int, epoch: str) -> bytes:
    body = b"%d" % number
    match number % 3:
        case 0:
            return f"PUB t key-{number}{epoch}\n".encode() + _sized(body)
        case 1:
            messages = struct.pack(">i", 1) + _sized(body)
            return f"MPUB t key-{number}{epoch}\n".encode() + _sized(messages)
        case _:
            return f"DPUB t 1 key-{number}{epoch}\n".encode() + _sized(body)


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@asynccontextmanager
async def _by_plain(kind: type[_PlainClient], address: str) -> AsyncIterator[Callable[[], Publish]]:
    """A client for each task, which keeps its connection."""
    clients: list[_PlainClient] = []

    def new_client() -> Publish:
        clients.append(kind(address))
        return clients[-1].publish

    try:
        yield new_client
    finally:
        for client in clients:
            await client.close()


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to publish.

    Attributes:
        listener: flag of nsqd for the address that is published to.
        open: makes what a task publishes with.
        answers: between two that get lost. With a connection, what else it waits for gets lost.
    """

    listener: str
    open: Callable[[str], object]
    answers: int


KINDS = {
    "Producer": Kind("tcp-address", _by_producer, 500),
    "TCP": Kind("tcp-address", partial(_by_plain, _TcpClient), 100),
    "HTTP": Kind("http-address", partial(_by_plain, _HttpClient), 100),
}


async def publish_through_kills(name: str, count: int, kills: int, folder: Path) -> Account:
    """Publish so many messages with keys, kill nsqd so often meanwhile, and read them all."""
    kind, random, account = KINDS[name], Random(7), Account()
    addresses = {flag: free_address() for flag in ("tcp-address", "http-address")}
    flags = [*FLAGS, *(f"--{flag}={address}" for flag, address in addresses.items())]
    proxy = BreakingProxy(addresses[kind.listener], kind.answers, random)
    progress, numbers = Progress(), iter(range(count))

    async def publish_some(publish: Publish) -> None:
        for number in numbers:
            await publish(number)
            progress.note()

    async with (
        proxy.listening() as address,
        trio.open_nursery() as nursery,
        kind.open(address) as publisher,  # type: ignore[attr-defined]
    ):
        for life in range(kills):
            async with running_nsqd(folder, flags) as nsqd:
                if not life:
                    for path in ("topic/create?topic=t", "channel/create?topic=t&channel=c"):
                        url = f"http://{nsqd.http_address}/{path}"
                        assert (await post(url, b"", request_timeout_s=60.0)).status == 200
                    for _ in range(TASKS):
                        nursery.start_soon(publish_some, publisher())
                most = count * (life + 1) // (kills + 1)
                await progress.wait(most - random.randrange(count // (kills + 1) // 2))
                account.stored_before += await _stored_before(nsqd)
                os.kill(nsqd.process.pid, 9)
                await nsqd.process.wait()
        async with running_nsqd(folder, flags) as nsqd:
            await progress.wait(count)
            account.stored_before += await _stored_before(nsqd)
            account.answered, account.sent = progress.done, proxy.sent
            await _read_all(nsqd, count, account.found)
    return account


async def _stored_before(nsqd: NsqdProcess) -> int:
    page = await get(f"http://{nsqd.http_address}/metrics", request_timeout_s=60.0)
    for line in page.body.decode().splitlines():
        if line.startswith(_STORED_BEFORE):
            return int(float(line.split()[-1]))
    raise AssertionError("nsqd does not count repeats")


async def _read_all(nsqd: NsqdProcess, count: int, found: Counter[bytes]) -> None:
    config = Config(max_in_flight=2500)
    async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], config=config) as messages:
        with trio.move_on_after(120) as waiting:
            async for message in messages:
                found[message.body] += 1
                message.finish()
                if len(found) == count:
                    # Whatever is there twice comes before an orderly end, or has come.
                    waiting.deadline = min(waiting.deadline, trio.current_time() + 0.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each kind; 1 if a message was not stored, or twice."""
    parser = argparse.ArgumentParser(prog="python -m tests.daemon.repeats", description=__doc__)
    parser.add_argument("--only", choices=KINDS, help="one kind of publishers")
    parser.add_argument("--count", type=int, default=100_000, help="messages of each kind")
    parser.add_argument("--kills", type=int, default=20, help="kill -9 of nsqd")
    options = parser.parse_args(arguments)
    logging.getLogger("trionsq").setLevel(logging.ERROR)  # each break is a warning
    is_good = True
    for name in [options.only] if options.only else KINDS:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="repeats-") as folder:
            run = partial(publish_through_kills, name, options.count, options.kills, Path(folder))
            account = trio.run(run)
        again = sum(number > 1 for number in account.found.values())
        missing = options.count - len(account.found)
        is_good &= not again and not missing
        print(
            f"{name}: {account.answered:,} publishes, {options.kills} kills, "
            f"{account.sent - options.count:,} sent again "
            f"({100 * (account.sent / options.count - 1):.1f} %), at least "
            f"{account.stored_before:,} of them stored before; missing {missing}, "
            f"stored twice {again}; {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
