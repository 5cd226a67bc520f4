"""The short way: /pub, /mpub and /ping without the framework.

A connection begins here. What it reads is cut into requests; those that `head` recognises are
acted on at once, all that one read brought, and their answers go out in one write. The first
request that is not recognised ends this: all that was read from its first byte on is handed back,
for the framework, and the connection does not return. So nothing is interpreted here in a way in
which the framework's parser could differ, and whatever is broken is refused there.

Nothing is read while answers wait to be written or a topic has to make room, so what a connection
holds is bounded: one read, and one body of a size that is allowed. Time is bounded by `Watch`.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from trionsq.broker.topic import PublishRefused
from trionsq.http.head import HEAD_NBYTES_MAX, Head, Target, is_strange_start
from trionsq.http.rules import in_turns
from trionsq.http.short_way import Publish, ShortWay, Wait
from trionsq.transports.transport import Transport
from trionsq.web.errors import HttpError
from trionsq.web.pace import PaceWatch
from trionsq.web.parameters import parse_query
from trionsq.wire.bodies import ListBodies

__all__ = ["ShortConnection"]

log = logging.getLogger("trionsq")

_READ_NBYTES_MAX: Final = 64 * 1024
# As in `trionsq.broker.client`: full reads before other tasks get their turn; reads after which
# it is tried whether asking again is cheaper than waiting.
_READS_MAX: Final = 4
_READS_BEFORE_ASKING: Final = 16
_NO_LIMIT_S: Final = float("inf")


class ShortConnection:
    """A connection as long as it asks only for what the short way has."""

    __slots__ = (
        "__weakref__",
        "_at",
        "_buffer",
        "_checks_hosts",
        "_closing",
        "_ending",
        "_expired",
        "_expires_s",
        "_need",
        "_out",
        "_pace",
        "_scope",
        "_strange",
        "_transport",
        "_wait",
        "_wait_began",
        "_way",
    )

    def __init__(self, way: ShortWay, transport: Transport, *, checks_hosts: bool = False) -> None:
        """``checks_hosts``: whether a name in a Host header has to be this machine's."""
        self._checks_hosts = checks_hosts
        self._way = way
        self._transport = transport
        self._scope = trio.CancelScope()
        # What was read and not acted on yet begins at `_at`; a bytearray while a body gathers.
        self._buffer: bytes | bytearray = b""
        self._at = 0
        # So much of the buffer is worth a look; 0 if any more byte may be.
        self._need = 0
        self._out: list[bytes] = []
        # How it ends: after an answer, with a request for the framework, by the watch, at the end.
        self._closing = self._strange = self._expired = self._ending = False
        self._wait = Wait.REQUEST
        self._wait_began = True
        self._expires_s = _NO_LIMIT_S
        # Of the body that is waited for, once it was looked at.
        self._pace: PaceWatch | None = None

    def __repr__(self) -> str:
        return f"<ShortConnection {self._transport.peer} waits for {self._wait.value}>"

    async def run(self) -> bytes | None:
        """The connection's life here. None: it is over; otherwise the framework goes on.

        What is returned was read, but not acted on. The transport is not closed.
        """
        connections = self._way.connections
        connections.add(self)
        try:
            with self._scope:
                await self._converse()
            if self._expired and self._wait is Wait.BODY:
                self._give_up_body()
            if self._closing:
                await self._linger()
        except OSError as error:
            log.debug("HTTP: connection lost: %s", error)
            return None
        finally:
            connections.discard(self)
        return bytes(self._buffer) if self._strange else None

    # What others ask of it

    def look(self, now_s: float) -> None:
        """Give up waiting if it has lasted too long."""
        if self._wait_began:
            self._wait_began = False
            self._expires_s = now_s + self._way.limits_s[self._wait]
        elif now_s >= self._expires_s:
            self._give_up_waiting()
        if self._wait is Wait.BODY:
            if self._pace is None:
                self._pace = PaceWatch(self._way.body_pace, now_s, len(self._buffer))
            elif not self._pace.keeps_up(now_s, len(self._buffer)):
                self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        self._expired = True
        self._scope.cancel()

    def end(self) -> None:
        """End now if idle, else after the answer."""
        self._ending = True
        if self._wait is Wait.REQUEST:
            self._scope.cancel()

    # Its task

    async def _converse(self) -> None:
        transport = self._transport
        reads = 0
        ask_again = False
        await transport.wait_readable()
        while True:
            data = transport.receive_nowait(_READ_NBYTES_MAX)
            if data is None:
                ask_again = False
                await transport.wait_readable()
                continue
            if not data:
                # What has begun may still be answered; the framework knows how.
                self._strange = bool(self._buffer)
                return
            await self._take(data)
            if self._closing or self._strange:
                return
            reads += 1
            if len(data) == _READ_NBYTES_MAX:
                if reads % _READS_MAX == 0:
                    await trio.lowlevel.checkpoint()
            elif ask_again or reads % _READS_BEFORE_ASKING == 0:
                ask_again = True
                await trio.lowlevel.checkpoint()
            else:
                await transport.wait_readable()

    async def _take(self, data: bytes) -> None:
        """Act on all that is there now, and write the answers."""
        if not self._buffer:
            self._buffer = data
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
            if len(self._buffer) < self._need:
                self._wait_began = True
                return
            self._buffer = bytes(self._buffer)
        while (publish := self._act(self._buffer)) is not None:
            await self._write()
            self._wait_for(Wait.TOPIC)
            if publish.prepared is not None:
                await publish.prepared.wait()
            if await self._read_messages(publish):
                await publish.topic.wait_for_room(publish.count)
                self._way.answers.renew()
                self._publish(publish)
        if self._out:
            await self._write()
            self._wait_for(Wait.REQUEST)
        if self._need:
            self._wait_for(Wait.BODY)
        elif self._ending:
            self._closing = True

    def _wait_for(self, what: Wait) -> None:
        self._wait = what
        self._wait_began = True
        self._pace = None

    def _act(self, buffer: bytes) -> Publish | None:
        """Act on the requests that are there.

        What is returned has to wait for room in its topic; afterwards this goes on.
        """
        way, at = self._way, self._at
        way.answers.renew()
        exiting = way.broker.exiting
        publish: Publish | None = None
        self._need = 0
        while not self._closing:
            end = buffer.find(b"\r\n\r\n", at, at + HEAD_NBYTES_MAX) + 4
            if end < 4:
                self._strange = is_strange_start(buffer, at)
                break
            raw = buffer[at:end]
            request = way.requests.get(raw) or way.recognise(raw)
            if request is None or (self._checks_hosts and not request.knows_host):
                self._strange = True
                break
            stop = end + request.length
            if stop > len(buffer):
                self._strange = exiting or request.refused
                self._need = 0 if self._strange else stop - at
                break
            body = buffer[end:stop]
            name = None if exiting else request.topic
            topic = None if name is None else way.broker.topics.get(name)
            if topic is not None and publish is not None and publish.joins(topic):
                publish.run.append(body)
                publish.close = request.close
            else:
                if publish is not None and not self._publish_now(publish):
                    self._at = at
                    return publish
                publish = (
                    self._other(request.head, body)
                    if topic is None
                    else Publish(topic, None, [body], 0, request.close)
                )
            self._closing = request.close
            at = stop
        self._buffer = buffer[at:]
        self._at = 0
        return None if publish is None or self._publish_now(publish) else publish

    def _other(self, head: Head, body: bytes) -> Publish | None:
        """Answer a request, or say what it publishes."""
        way = self._way
        if head.target is Target.PING:
            self._out.append(way.answers.ping(way.broker.health, head.close))
            return None
        try:
            publish = way.prepare(head, body)
        except HttpError as error:
            log.debug("HTTP: %s - %s", head.target.value, error)
            self._out.append(way.answers.refusal(error, head.close))
            return None
        if publish is None:
            self._out.append(way.answers.ok(head.close))
        return publish

    def _publish_now(self, publish: Publish) -> bool:
        """Publish, and answer; False if that has to wait."""
        if (
            publish.prepared is not None
            or publish.steps is not None
            or publish.topic.should_wait(publish.count)
        ):
            return False
        self._publish(publish)
        return True

    async def _read_messages(self, publish: Publish) -> bool:
        """Read the messages of a large body in turns; False if that answers the request."""
        if publish.steps is None:
            return True
        answers = self._way.answers
        try:
            publish.bodies = await in_turns(publish.steps)
        except HttpError as error:
            log.debug("HTTP: %s - %s", Target.MPUB.value, error)
            answers.renew()
            self._out.append(answers.refusal(error, publish.close))
            return False
        if publish.bodies is None:
            answers.renew()
            self._out.append(answers.ok(publish.close))
            return False
        return True

    def _publish(self, publish: Publish) -> None:
        answers, bodies = self._way.answers, publish.bodies
        try:
            publish.topic.publish(
                ListBodies(publish.run) if bodies is None else bodies, publish.defer_ms
            )
        except PublishRefused as refused:
            command = "PUB" if bodies is None else "MPUB"
            error = self._way.rules.refusal(publish.topic, command, refused)
            more, last = answers.refusal(error, False), answers.refusal(error, publish.close)
        else:
            more, last = answers.ok(False), answers.ok(publish.close)
        if len(publish.run) > 1:
            self._out += [more] * (len(publish.run) - 1)
        self._out.append(last)

    async def _write(self) -> None:
        if not self._out:
            return
        transport = self._transport
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        sent = transport.send_nowait(data)
        if sent == len(data):
            return
        view = memoryview(data)[sent:]
        while view:
            self._wait_for(Wait.PEER)
            await transport.wait_writable()
            view = view[transport.send_nowait(view) :]

    def _give_up_body(self) -> None:
        """The answer to a request whose body does not come on."""
        way = self._way
        log.info(
            "HTTP: [%s] - gave up a body that does not come on, after %d bytes",
            self._transport.peer,
            len(self._buffer),
        )
        raw = bytes(self._buffer[: self._buffer.index(b"\r\n\r\n") + 4])
        request = way.requests.get(raw) or way.recognise(raw)
        if request is not None and request.head.target is Target.MPUB and not way.broker.exiting:
            way.rules.topic(parse_query(request.head.query))
        way.answers.renew()
        error = HttpError(500, "INTERNAL_ERROR")
        self._transport.send_nowait(way.answers.refusal(error, close=False))
        self._closing = True

    async def _linger(self) -> None:
        """Read on for a while: a reset would take the answer away from a peer that still sends."""
        transport = self._transport
        transport.end_sending()
        with trio.move_on_after(self._way.linger_s):
            while (data := transport.receive_nowait(_READ_NBYTES_MAX)) != b"":
                if data is None:
                    await transport.wait_readable()
                else:
                    await trio.lowlevel.checkpoint()
