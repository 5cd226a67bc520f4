"""Publishes deferred messages, waits until they fall due, and says how late they came."""

from __future__ import annotations

import time
from typing import Any, Final

import trio

from trionsq.wire import commands
from trionsq.wire.client import ClientDecoder, ErrorFrame, MessageFrame, Response
from trionsq.wire.frames import HEARTBEAT_DATA

__all__ = ["DeferredError", "run_deferred"]

TOPIC: Final = "bench"
CHANNEL: Final = "bench0"
DUE_A_SECOND: Final = 20_000
BODY_BYTES: Final = 200
_AT_ONCE: Final = 100
# Few: what waits for its fsync is handed on, and its delay begins, later than its timestamp says.
_WINDOW: Final = 2_000
_MEASURED_S: Final = 5
_RECEIVE_BYTES: Final = 1 << 20


class DeferredError(Exception):
    """A publish was refused, or a message came early."""


class _Connection:
    """A connection to nsqd that answers heartbeats."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = ClientDecoder()
        self.send = stream.send_all

    async def frames(self) -> list[MessageFrame | Response]:
        """What came next, without heartbeats; raises DeferredError for an error frame."""
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        if not data:
            raise DeferredError("nsqd closed the connection")
        self._decoder.feed(bytes(data))
        found: list[MessageFrame | Response] = []
        for frame in self._decoder.pop_frames():
            if isinstance(frame, ErrorFrame):
                raise DeferredError(str(frame))
            if frame == Response(HEARTBEAT_DATA):
                await self.send(commands.nop())
            else:
                found.append(frame)
        return found


def run_deferred(server: Any, messages: int, lead_s: float) -> dict[str, Any]:
    """Publish so many messages that fall due from ``lead_s`` on, and consume those of five seconds.

    ``server`` is a `benchmarks.servers.Server`. Raises DeferredError.
    """
    return trio.run(_run, server, messages, lead_s)


async def _run(server: Any, messages: int, lead_s: float) -> dict[str, Any]:
    port = server.tcp_port
    async with (
        await trio.open_tcp_stream("127.0.0.1", port) as published,
        await trio.open_tcp_stream("127.0.0.1", port) as consumed,
    ):
        publisher, consumer = _Connection(published), _Connection(consumed)
        await publisher.send(commands.MAGIC_V2)
        await consumer.send(commands.MAGIC_V2 + commands.subscribe(TOPIC, CHANNEL))
        return await _measure(server, publisher, consumer, messages, lead_s)


async def _measure(
    server: Any, publisher: _Connection, consumer: _Connection, messages: int, lead_s: float
) -> dict[str, Any]:
    before = server.resident_bytes()
    await consumer.frames()
    began_ns = time.monotonic_ns()
    first_ns = began_ns + int(lead_s * 1e9)
    with trio.move_on_after(lead_s) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_heartbeats, consumer)
            await _publish(publisher, messages, first_ns)
            nursery.cancel_scope.cancel()
    if scope.cancelled_caught:
        raise DeferredError(f"{messages} messages took more than {lead_s:.0f} s to publish")
    published_s = (time.monotonic_ns() - began_ns) / 1e9
    resident, cpu_s = server.resident_bytes(), server.cpu_s()
    waited_ns, own_cpu_s = time.monotonic_ns(), time.process_time()
    late_ns = await _consume(consumer, min(messages, DUE_A_SECOND * _MEASURED_S))
    late_ns.sort()
    count = len(late_ns)
    return {
        "messages": count,
        "timed_messages": messages,
        "timed_seconds": published_s,
        "seconds": (time.monotonic_ns() - waited_ns) / 1e9,
        "cpu_seconds": server.cpu_s() - cpu_s,
        "generator_cpu_seconds": time.process_time() - own_cpu_s,
        "resident_before": before,
        "resident_after": resident,
        "late_us": {
            "p50": late_ns[count // 2] / 1e3,
            "p99": late_ns[count * 99 // 100] / 1e3,
            "max": late_ns[-1] / 1e3,
        },
    }


async def _answer_heartbeats(connection: _Connection) -> None:
    """Keep a consumer that gets nothing yet; publishing may take longer than nsqd has patience."""
    while True:
        await connection.frames()


async def _publish(connection: _Connection, messages: int, first_ns: int) -> None:
    """DPUB them in order of their due times, up to a window without an answer."""
    padding = bytes(BODY_BYTES - 8)
    sent = answered = 0
    while answered < messages:
        while sent < messages and sent - answered < _WINDOW:
            now_ns = time.monotonic_ns()
            lines = []
            for number in range(sent, min(messages, sent + _AT_ONCE)):
                delay_ms = (first_ns + number * 1_000_000_000 // DUE_A_SECOND - now_ns) // 1_000_000
                body = delay_ms.to_bytes(8) + padding
                lines.append(commands.publish_deferred(TOPIC, delay_ms, body))
            sent += len(lines)
            await connection.send(b"".join(lines))
        answered += len(await connection.frames())


async def _consume(connection: _Connection, wanted: int) -> list[int]:
    """Finish messages as they come, and return by how many nanoseconds each was late.

    A delay begins when nsqd has the message, which is then its timestamp.
    """
    late_ns: list[int] = []
    await connection.send(commands.ready(2500))
    while len(late_ns) < wanted:
        lines = []
        for frame in await connection.frames():
            if isinstance(frame, MessageFrame):
                due_ns = frame.timestamp_ns + int.from_bytes(frame.body[:8]) * 1_000_000
                late_ns.append(time.time_ns() - due_ns)
                lines.append(commands.finish(frame.message_id))
        await connection.send(b"".join(lines))
    if min(late_ns) < -1_000_000:
        raise DeferredError(f"a message came {-min(late_ns) / 1e6:.1f} ms early")
    return late_ns
