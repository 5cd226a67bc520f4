"""A connection of the fast path: /pub, /mpub and /ping without the framework.

Every HTTP connection begins here. Input is split into requests; all recognised requests of one read
are handled at once, and their responses go out in one write. The first request that is not
recognised ends the fast path for the connection: everything from its first byte on is handed to the
framework, for good. So nothing is interpreted here in a way in which the framework's parser could
differ, and malformed requests are refused there.

Nothing is read while responses wait to be written or a topic has to make room, so what a connection
holds is bounded: one read, and one body of an allowed size. `FastPath.watch_connections` bounds the
time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

import trio

from trionsq.broker.chores import in_turns
from trionsq.broker.topic import PublishRefused, until_safe
from trionsq.core.round import Round
from trionsq.http.fast_path import FastPath, Wait
from trionsq.http.fast_requests import (
    MAX_HEAD_BYTES,
    PublishRequest,
    RequestHead,
    Target,
    is_unknown_start,
)
from trionsq.transports.polled import HANDLED, NOTHING, Step, last_turn, next_turn
from trionsq.transports.transport import MAX_FULL_READS, Transport
from trionsq.web.limits import PaceWatch
from trionsq.web.protocol import HttpError, parse_query
from trionsq.wire.bodies import ListBodies

__all__ = ["FastConnection"]

log = logging.getLogger("trionsq")

_MAX_READ_BYTES: Final = 64 * 1024
_NO_LIMIT_S: Final = float("inf")
_NOTHING_UNSENT: Final = memoryview(b"")


class FastConnection:
    """A connection as long as the fast path knows its requests: served by the broker's poller.

    Attributes:
        transport: the connection itself.
    """

    __slots__ = ("__weakref__", "_at", "_buffer", "_checks_hosts", "_closing",
                 "_ending", "_expired", "_expires_s", "_fast_path", "_hands_over",
                 "_need", "_out", "_pace", "_scope", "_unsafe", "_wait", "_wait_began",
                 "transport")  # fmt: skip

    def __init__(
        self, fast_path: FastPath, transport: Transport, *, checks_hosts: bool = False
    ) -> None:
        """``checks_hosts``: a Host header has to have a name of this machine."""
        self._checks_hosts = checks_hosts
        self._fast_path = fast_path
        self.transport = transport
        self._scope = trio.CancelScope()
        # Input that is not handled yet begins at `_at`; a bytearray while a body arrives.
        self._buffer: bytes | bytearray = b""
        self._at = 0
        # Bytes that the buffer needs for the request; 0 if any further byte may complete it.
        self._need = 0
        self._out: list[bytes] = []
        # What was published and is not safe yet: its round, and its place in `_out`.
        self._unsafe: list[tuple[Round, PublishRequest, int]] = []
        # How it ends: after a response, at a request for the framework, by a time limit, with nsqd.
        self._closing = self._hands_over = self._expired = self._ending = False
        self._wait = Wait.REQUEST
        self._wait_began = True
        self._expires_s = _NO_LIMIT_S
        # The pace of the body that is waited for.
        self._pace: PaceWatch | None = None

    def __repr__(self) -> str:
        return f"<FastConnection {self.transport.peer} waits for {self._wait.value}>"

    async def run(self) -> bytes | None:
        """Serve requests until the connection ends (None), or the framework has to take over.

        Returns the input that was read and not handled. The transport stays open.
        """
        connections = self._fast_path.connections
        connections.add(self)
        try:
            with self._scope:
                await self._fast_path.broker.context.poller.serve(self)
            if self._expired and self._wait is Wait.BODY:
                self._give_up_body()
            if self._closing:
                await self._linger()
        except OSError as error:
            log.debug("HTTP: connection lost: %s", error)
            return None
        finally:
            connections.discard(self)
        return bytes(self._buffer) if self._hands_over else None

    # Called from other tasks

    def check_wait(self, now_s: float) -> None:
        """Give up if the peer has kept the connection waiting for too long."""
        if self._wait_began:
            self._wait_began = False
            self._expires_s = now_s + self._fast_path.limits_s[self._wait]
        elif now_s >= self._expires_s:
            self._give_up_waiting()
        if self._wait is Wait.BODY:
            if self._pace is None:
                self._pace = PaceWatch(self._fast_path.body_pace, now_s, len(self._buffer))
            elif not self._pace.keeps_up(now_s, len(self._buffer)):
                self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        self._expired = True
        self._scope.cancel()

    def end_after_response(self) -> None:
        """End now if idle, else after the response."""
        self._ending = True
        if self._wait is Wait.REQUEST:
            self._scope.cancel()

    # The task of the connection, or the poller's

    def advance(self) -> Step:
        """Read and handle requests until that has to wait; see `trionsq.transports.poller`."""
        for _ in range(MAX_FULL_READS):
            data = self.transport.receive_nowait(_MAX_READ_BYTES)
            if data is None:
                return NOTHING
            if not data:
                # The framework knows how to answer an incomplete request.
                self._hands_over = bool(self._buffer)
                return last_turn()
            if (waiting := self._handle_data(data)) is not None:
                return waiting
            if len(data) < _MAX_READ_BYTES:
                return HANDLED
        return next_turn()

    def _handle_data(self, data: bytes) -> Awaitable[bool] | None:
        """Handle all complete requests, and write the responses, as far as that needs no wait."""
        if not self._buffer:
            self._buffer = data
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
            if len(self._buffer) < self._need:
                self._wait_began = True
                return None
            self._buffer = bytes(self._buffer)
        if (publish := self._handle_requests(self._buffer)) is not None:
            return self._handle_rest(publish)
        if self._unsafe:
            return self._end_requests()
        if self._out:
            data = self._pop_responses()
            if (sent := self.transport.send_nowait(data)) < len(data):
                return self._end_requests(memoryview(data)[sent:])
            self._wait_for(Wait.REQUEST)
        return None if self._wait_for_more() else last_turn()

    async def _handle_rest(self, publish: PublishRequest) -> bool:
        """Handle requests of which the first one has to wait for its topic."""
        waiting: PublishRequest | None = publish
        while waiting is not None:
            await self._write()
            self._wait_for(Wait.TOPIC)
            if waiting.prepared is not None:
                await waiting.prepared.wait()
            if await self._read_messages(waiting):
                await waiting.topic.wait_for_room(waiting.count)
                self._fast_path.responses.renew()
                self._publish(waiting)
            waiting = self._handle_requests(bytes(self._buffer))
        return await self._end_requests()

    async def _end_requests(self, unsent: memoryview = _NOTHING_UNSENT) -> bool:
        """Write what is left of the responses; return whether the connection goes on."""
        await self._send(unsent)
        await self._write()
        self._wait_for(Wait.REQUEST)
        return self._wait_for_more()

    def _wait_for_more(self) -> bool:
        """Note what is waited for; return whether the connection goes on."""
        if self._need:
            self._wait_for(Wait.BODY)
        elif self._ending:
            self._closing = True
        return not (self._closing or self._hands_over)

    def _wait_for(self, wait: Wait) -> None:
        self._wait = wait
        self._wait_began = True
        self._pace = None

    def _handle_requests(self, buffer: bytes) -> PublishRequest | None:
        """Handle the complete requests in the buffer.

        A request that has to wait for room in its topic is returned; call this again after it.
        """
        fast_path, at = self._fast_path, self._at
        fast_path.responses.renew()
        exiting = fast_path.broker.exiting
        publish: PublishRequest | None = None
        self._need = 0
        while not self._closing:
            end = buffer.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES) + 4
            if end < 4:
                self._hands_over = is_unknown_start(buffer, at)
                break
            raw = buffer[at:end]
            request = fast_path.requests.get(raw) or fast_path.recognise_request(raw)
            if request is None or (self._checks_hosts and not request.knows_host):
                self._hands_over = True
                break
            stop = end + request.length
            if stop > len(buffer):
                self._hands_over = exiting or request.refused
                self._need = 0 if self._hands_over else stop - at
                break
            body = buffer[end:stop]
            name = None if exiting else request.topic
            topic = None if name is None else fast_path.broker.topics.get(name)
            if topic is not None and publish is not None and publish.joins(topic):
                publish.run.append(body)
                publish.close = request.close
            else:
                if publish is not None and not self._publish_now(publish):
                    self._at = at
                    return publish
                publish = (
                    self._handle_request(request.head, body)
                    if topic is None
                    else PublishRequest(topic, None, [body], 0, request.close)
                )
            self._closing = request.close
            at = stop
        self._buffer = buffer[at:]
        self._at = 0
        return None if publish is None or self._publish_now(publish) else publish

    def _handle_request(self, head: RequestHead, body: bytes) -> PublishRequest | None:
        """Respond to a request, or return what it publishes."""
        fast_path = self._fast_path
        if head.target is Target.PING:
            self._out.append(fast_path.responses.ping(fast_path.broker.health, head.close))
            return None
        try:
            publish = fast_path.publish_request(head, body)
        except HttpError as error:
            log.debug("HTTP: %s - %s", head.target.value, error)
            self._out.append(fast_path.responses.refusal(error, head.close))
            return None
        if publish is None:
            self._out.append(fast_path.responses.ok(head.close))
        return publish

    def _publish_now(self, publish: PublishRequest) -> bool:
        """Publish and respond; False if that has to wait."""
        if (
            publish.prepared is not None
            or publish.steps is not None
            or publish.topic.should_wait(publish.count)
        ):
            return False
        self._publish(publish)
        return True

    async def _read_messages(self, publish: PublishRequest) -> bool:
        """Read the messages of a large body in turns; False if there is nothing to publish."""
        if publish.steps is None:
            return True
        responses = self._fast_path.responses
        try:
            publish.bodies = await in_turns(publish.steps)
        except HttpError as error:
            log.debug("HTTP: %s - %s", Target.MPUB.value, error)
            responses.renew()
            self._out.append(responses.refusal(error, publish.close))
            return False
        if publish.bodies is None:
            responses.renew()
            self._out.append(responses.ok(publish.close))
            return False
        return True

    def _publish(self, publish: PublishRequest) -> None:
        responses, topic, bodies = self._fast_path.responses, publish.topic, publish.bodies
        pending: Round | None = None
        if bodies is None:
            bodies = ListBodies(publish.run)
            if len(publish.run) == 1 and not publish.defer_ms and not topic.refusal:
                pending = topic.gathering.add_message(bodies)
        if pending is None:
            try:
                pending = topic.publish(bodies, publish.defer_ms)
            except PublishRefused as refused:
                self._out += self._refusals(publish, refused)
                return
        if pending is not None and not pending.is_safe:
            self._unsafe.append((pending, publish, len(self._out)))
        if len(publish.run) > 1:
            self._out += [responses.ok(False)] * (len(publish.run) - 1)
        self._out.append(responses.ok(publish.close))

    def _refusals(self, publish: PublishRequest, refused: PublishRefused) -> list[bytes]:
        """The responses to all requests of a publish that was refused."""
        responses = self._fast_path.responses
        command = "PUB" if publish.bodies is None else "MPUB"
        error = self._fast_path.rules.refusal(publish.topic, command, refused)
        more, last = responses.refusal(error, False), responses.refusal(error, publish.close)
        return [*[more] * (len(publish.run) - 1), last]

    async def _until_safe(self) -> None:
        """Wait for all rounds of what was published, and refuse what is not stored."""
        self._wait_for(Wait.TOPIC)
        for pending, publish, place in self._unsafe:
            try:
                await until_safe(pending)
            except PublishRefused as refused:
                self._fast_path.responses.renew()
                refusals = self._refusals(publish, refused)
                self._out[place : place + len(refusals)] = refusals
        self._unsafe.clear()

    def _pop_responses(self) -> bytes:
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        return data

    async def _write(self) -> None:
        if self._unsafe:
            await self._until_safe()
        if self._out:
            await self._send(memoryview(self._pop_responses()))

    async def _send(self, data: memoryview) -> None:
        while data:
            data = data[self.transport.send_nowait(data) :]
            if data:
                self._wait_for(Wait.PEER)
                await self.transport.wait_writable()

    def _give_up_body(self) -> None:
        """Respond to a request whose body has stopped."""
        fast_path = self._fast_path
        log.info(
            "HTTP: [%s] - request body too slow, gave up after %d bytes",
            self.transport.peer,
            len(self._buffer),
        )
        raw = bytes(self._buffer[: self._buffer.index(b"\r\n\r\n") + 4])
        request = fast_path.requests.get(raw) or fast_path.recognise_request(raw)
        if (
            request is not None
            and request.head.target is Target.MPUB
            and not fast_path.broker.exiting
            and not fast_path.broker.drain.is_on
        ):
            fast_path.rules.topic(parse_query(request.head.query))
        fast_path.responses.renew()
        error = HttpError(500, "INTERNAL_ERROR")
        self.transport.send_nowait(fast_path.responses.refusal(error, close=False))
        self._closing = True

    async def _linger(self) -> None:
        """Read on for a while: a reset would discard the response to a peer that still sends."""
        transport = self.transport
        transport.end_sending()
        with trio.move_on_after(self._fast_path.linger_s):
            while (data := transport.receive_nowait(_MAX_READ_BYTES)) != b"":
                if data is None:
                    await transport.wait_readable()
                else:
                    await trio.lowlevel.checkpoint()
