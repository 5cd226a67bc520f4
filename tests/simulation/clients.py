"""The programs of a day that publish and consume, and enter in the ledger what they know."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import trio

from tests.promises.ledger import Delivery, Ledger, Sent
from tests.promises.window import Window
from tests.simulation.daemons import HTTP_PORT, LOOKUPD_HTTP_PORT, TCP_PORT, dial_stream_of
from tests.simulation.plan import MOODY, ConsumerPlan, ProducerPlan
from trionsq import httpget
from trionsq.client import (
    Batch,
    ClientError,
    Config,
    ConnectError,
    Consumer,
    Message,
    Producer,
    ProtocolError,
)
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.simulation import Machine, Network, World
from trionsq.transports.transport import Transport
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, MessageFrame
from trionsq.wire.states import MAGIC_V2

__all__ = ["ClientNode", "ConsumerNode", "ProducerNode"]

_PUBLISH_S = 20.0
# Longer than --output-buffer-timeout, the latency of a link, and a step of nsqd together.
_OUTPUT_S = 0.6
NO_MESSAGE = b"0" * 16
"""An id that no message has."""
# The same if there is no fault.
_AT_ONCE_S = 4.0


def _compression(kind: str) -> dict[str, Any]:
    return {kind: True} if kind else {}


class ClientNode:
    """A program and its machine.

    Attributes:
        machine: its machine.
        dials: connections to nsqds that it began to make.
    """

    def __init__(self, world: World, network: Network, name: str, ledger: Ledger) -> None:
        self.machine = Machine(world, name)
        self.dials = 0
        self.world = world
        self.ledger = ledger
        self._network = network

    def boot(self) -> None:
        """Start it."""
        self.machine.boot(self._main)

    async def _main(self) -> None:
        process = self.machine.process
        assert process is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            await process.wait_signal()
            nursery.cancel_scope.cancel()

    async def _run(self) -> None:
        raise NotImplementedError

    async def dial(self, host: str, port: int, _local: str) -> Transport:
        """What the client library connects by."""
        process = self.machine.process
        assert process is not None
        self.dials += 1
        return (await self._network.connect(process, host, port)).transport


class ProducerNode(ClientNode):
    """Publishes messages, each once; one that fails may have arrived.

    Attributes:
        can_always_connect: no fault keeps it from one of its nsqds.
        is_undisturbed: no fault affects it or its nsqds.
    """

    can_always_connect = is_undisturbed = False

    def __init__(self, world: World, network: Network, plan: ProducerPlan, ledger: Ledger) -> None:
        super().__init__(world, network, plan.name, ledger)
        self._plan = plan
        self._left = plan.count

    @property
    def is_done(self) -> bool:
        """Whether it has sent all that it had to."""
        return not self._left

    async def _run(self) -> None:
        plan, random = self._plan, self.world.random
        addresses = [f"{name}:{TCP_PORT}" for name in plan.nsqds]
        config = Config(
            read_timeout_s=10.0, heartbeat_interval_s=5.0, **_compression(plan.compression)
        )
        async with Producer(*addresses, config=config, dial=self.dial) as producer:
            while self._left:
                self._left -= 1
                kind = random.choice(plan.kinds)
                try:
                    with trio.fail_after(_AT_ONCE_S if self.is_undisturbed else _PUBLISH_S):
                        await self._publish(producer, kind)
                except (ClientError, ProtocolError, httpget.GetError, trio.TooSlowError) as error:
                    self.ledger.uncertain += 1
                    is_connect_error = isinstance(error, ConnectError)
                    if self.is_undisturbed or (is_connect_error and self.can_always_connect):
                        self.ledger.violate(f"{plan.name}: {error!r}")
                    await trio.sleep(0.3)
                if plan.gap_s:
                    await trio.sleep(random.uniform(0, plan.gap_s))
        await trio.sleep_forever()

    def _new(self, delay_s: float = 0.0) -> tuple[bytes, Sent]:
        size = self.world.random.randint(1, self._plan.body_bytes)
        body = self.ledger.new_body(self._plan.topic, size)
        sent = self.ledger.sent[body] = Sent(self._plan.topic, self.world.now_s, delay_s)
        return body, sent

    def _acknowledge(self, sent: Sent, address: str) -> None:
        sent.nsqd, sent.acked_s = address.partition(":")[0], self.world.now_s
        self.world.note("ack", sent.topic, sent.nsqd)

    async def _publish(self, producer: Producer, kind: str) -> None:
        topic, random = self._plan.topic, self.world.random
        if kind == "PUB":
            body, sent = self._new()
            await producer.publish(topic, body)
            self._acknowledge(sent, producer.nsqd_address)
        elif kind == "DPUB":
            delay_s = random.choice((0.05, 0.5, 3.0))
            body, sent = self._new(delay_s)
            await producer.publish_deferred(topic, body, delay_s)
            self._acknowledge(sent, producer.nsqd_address)
        elif kind == "MPUB":
            pairs = [self._new() for _ in range(random.choice((2, 7)))]
            await producer.publish_many(topic, [body for body, _ in pairs])
            for _, sent in pairs:
                self._acknowledge(sent, producer.nsqd_address)
        elif kind == "pipelined":
            await self._publish_pipelined(producer)
        else:
            await self._publish_by_http()

    async def _publish_pipelined(self, producer: Producer) -> None:
        replies = []
        for _ in range(self.world.random.choice((3, 10))):
            body, sent = self._new()
            reply = await producer.begin_publish(self._plan.topic, body)
            replies.append((reply, sent, producer.nsqd_address))
        for reply, sent, address in replies:
            await reply.wait()
            self._acknowledge(sent, address)

    async def _publish_by_http(self) -> None:
        process = self.machine.process
        assert process is not None
        nsqd = self._plan.nsqds[0]
        body, sent = self._new()
        answer = await httpget.post(
            f"http://{nsqd}:{HTTP_PORT}/pub?topic={self._plan.topic}",
            body,
            dial=dial_stream_of(self._network, process),
        )
        if answer.status == 200:
            self._acknowledge(sent, nsqd)


class ConsumerNode(ClientNode):
    """Consumes, mostly finishes, and checks what must hold for each message.

    Attributes:
        plan: of it.
        is_disturbed: whether a link between two machines was cut or slow in a time: `Losses`.
        is_in_time: no fault delays what it and nsqds tell each other.
    """

    is_in_time = False

    is_disturbed: Callable[..., bool]

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ConsumerPlan,
        ledger: Ledger,
        lookupds: list[str],
        msg_timeout_s: float,
    ) -> None:
        super().__init__(world, network, plan.name, ledger)
        self.plan = plan
        self._lookupds = lookupds
        self._msg_timeout_s = msg_timeout_s
        self._quiet = False
        self._consumer: Consumer | None = None

    def behave(self) -> None:
        """From now on finish every message at once."""
        self._quiet = True

    async def _run(self) -> None:
        while True:
            try:
                if self.plan.kind == "raw":
                    await self._run_raw()
                else:
                    await self._run_library()
            except* ClientError:
                # Refused at the start: a supervisor would start the program again.
                await trio.sleep(0.5)

    def _received(self, nsqd: str, message_id: bytes, attempts: int, body: bytes) -> Delivery:
        plan = self.plan
        self.world.note("message", plan.name, message_id.hex(), attempts)
        if self._consumer is not None and self.is_in_time:
            in_flight = self._consumer.stats().in_flight
            if in_flight > plan.max_in_flight:
                self.ledger.violate(f"{plan.name}: {in_flight} in flight, too many")
        delivery = Delivery(self.world.now_s, nsqd, message_id, attempts, plan.name)
        self.ledger.deliver(plan.topic, plan.channel, body, delivery)
        return delivery

    def _habit(self) -> str:
        if self._quiet:
            return "FIN"
        dice = self.world.random.random()
        for habit, probability in self.plan.habits.items():
            dice -= probability
            if dice < 0:
                self.world.counts[f"consumer: {habit}"] += 1
                return habit
        return "FIN"

    # With our library

    async def _run_library(self) -> None:
        plan = self.plan
        process = self.machine.process
        assert process is not None
        dial_stream = dial_stream_of(self._network, process)

        async def get(
            url: str,
            headers: Mapping[str, str],
            connect_timeout_s: float,
            request_timeout_s: float,
            *,
            ssl_context: ssl.SSLContext | None,
        ) -> httpget.Answer:
            return await httpget.get(
                url, headers, connect_timeout_s, request_timeout_s, dial=dial_stream
            )

        config = Config(
            max_in_flight=plan.max_in_flight,
            max_attempts=0,
            max_backoff_duration_s=2.0,
            lookupd_poll_interval_s=5.0,
            heartbeat_interval_s=5.0,
            read_timeout_s=10.0,
            default_requeue_delay_s=0.2,
            **_compression(plan.compression),
        )
        async with Consumer(
            plan.topic,
            plan.channel,
            nsqd_tcp_addresses=[f"{name}:{TCP_PORT}" for name in plan.nsqds],
            lookupd_http_addresses=()
            if plan.nsqds
            else [f"{name}:{LOOKUPD_HTTP_PORT}" for name in self._lookupds],
            config=config,
            drain_timeout_s=2.0,
            dial=self.dial,
            get=get,
            random=self.world.random,
        ) as consumer:
            self._consumer = consumer
            if plan.kind == "handler":
                await consumer.run(self._answer, concurrency=3)
            elif plan.kind == "batches":
                async for batch in consumer.batches():
                    await self._answer_batch(batch)
            else:
                async for message in consumer:
                    await self._answer(message)

    async def _answer_batch(self, batch: Batch) -> None:
        """Finish all that have no other habit by one call."""
        nsqd = batch.nsqd_address.partition(":")[0]
        entries = [
            self._received(nsqd, message.id, message.attempts, message.body) for message in batch
        ]
        match self._habit():
            case "requeue" | "requeue later":
                if batch.requeue(0.0, backoff=False):
                    for delivery in entries:
                        delivery.answer, delivery.requeue_s = "REQ", self.world.now_s
                return
            case "ignore":
                return
            case "touch" | "slow":
                await trio.sleep(self.world.random.uniform(0.4, 0.8) * self._msg_timeout_s)
                if batch.touch():
                    for delivery in entries:
                        delivery.touched_s = self.world.now_s
                await trio.sleep(self.world.random.uniform(0.4, 0.8) * self._msg_timeout_s)
        if batch.finish():
            for delivery in entries:
                delivery.answer, delivery.answered_s = "FIN", self.world.now_s

    async def _answer(self, message: Message) -> None:
        nsqd = message.nsqd_address.partition(":")[0]
        delivery = self._received(nsqd, message.id, message.attempts, message.body)
        match self._habit():
            case "requeue":
                delivery.requeue_s = self.world.now_s
                if message.requeue(0, backoff=False):
                    delivery.answer = "REQ"
            case "requeue later":
                delay_s = self.world.random.choice((0.05, 1.0))
                delivery.requeue_s, delivery.delay_s = self.world.now_s, delay_s
                if message.requeue(delay_s, backoff=self.world.random.random() < 0.3):
                    delivery.answer = "REQ"
            case "touch":
                await trio.sleep(self.world.random.uniform(0.4, 0.8) * self._msg_timeout_s)
                if message.touch():
                    delivery.touched_s = self.world.now_s
                await trio.sleep(self.world.random.uniform(0.4, 0.8) * self._msg_timeout_s)
                self._finish(message, delivery)
            case "ignore":
                # A message is finished when its handler returns.
                delivery.answer = "FIN" if self.plan.kind == "handler" else "ignored"
            case "slow":
                await trio.sleep(self.world.random.uniform(0, 1.5 * self._msg_timeout_s))
                self._finish(message, delivery)
            case _:
                self._finish(message, delivery)

    def _finish(self, message: Message, delivery: Delivery) -> None:
        if message.finish():
            delivery.answer, delivery.answered_s = "FIN", self.world.now_s

    # By hand

    async def _run_raw(self) -> None:
        while True:
            end = None
            with suppress(OSError, trio.BrokenResourceError, UnexpectedFrame, trio.TooSlowError):
                process = self.machine.process
                assert process is not None
                self.dials += 1
                with trio.fail_after(5):
                    end = await self._network.connect(process, self.plan.nsqds[0], TCP_PORT)
                await _RawConnection(self, Conversation(end.stream)).run()
            if end is not None:
                end.stream.close()
            await trio.sleep(0.3)


class _RawConnection:
    """One connection by hand, which checks that nsqd keeps to its RDY."""

    def __init__(self, owner: ConsumerNode, talk: Conversation) -> None:
        self._owner = owner
        self._plan = owner.plan
        self._world = owner.world
        self._talk = talk
        self._began_s = owner.world.now_s
        self._window = Window(0.5 * owner._msg_timeout_s)

    async def run(self) -> None:
        """Subscribe and consume, until the connection is lost."""
        talk, plan = self._talk, self._plan
        with trio.fail_after(10):
            await talk.say(MAGIC_V2, commands.identify({"heartbeat_interval": 5000}))
            await talk.frame()
            await talk.subscribe(plan.topic, plan.channel)
        await self._set_ready(plan.max_in_flight)
        while True:
            with trio.fail_after(15) as limit:
                frame = None
                while frame is None:
                    seen = talk.heartbeats
                    with trio.move_on_after(5.5):
                        frame = await talk.frame()
                    if talk.heartbeats != seen:
                        limit.deadline = trio.current_time() + 15
            if isinstance(frame, MessageFrame):
                self._check(frame)
                if not await self._answer(frame):
                    return
            elif isinstance(frame, ErrorFrame) and NO_MESSAGE.decode() in str(frame.as_error()):
                # Messages that nsqd sent before may still wait in its output buffer.
                self._world.after(_OUTPUT_S, self._window.confirm_ready)
            elif isinstance(frame, ErrorFrame) and not frame.code.endswith("_FAILED"):
                self._owner.ledger.violate(f"{plan.name}: unexpected {frame}")

    async def _set_ready(self, ready: int) -> None:
        self._window.set_ready(ready)
        # The answer to the second command says that nsqd has read the first.
        await self._talk.say(commands.ready(ready), commands.touch(NO_MESSAGE))

    def _check(self, frame: MessageFrame) -> None:
        now_s = self._world.now_s
        if self._window.receive(frame.message_id, now_s):
            links = self._plan.name, self._plan.nsqds[0]
            # If the socket is full, the answer to a command overtakes messages that wait for it.
            is_wide = self._owner._network.capacity_bytes >= 65536
            # An operator who empties the channel ends what is in flight.
            is_safe = is_wide and self._plan.channel != MOODY
            if is_safe and not self._owner.is_disturbed(self._began_s, now_s, *links):
                self._owner.ledger.violate(
                    f"{self._plan.name}: {len(self._window)} in flight, RDY {self._window.bound}"
                )

    async def _answer(self, frame: MessageFrame) -> bool:
        """Answer a message; whether the connection goes on."""
        owner, talk, plan = self._owner, self._talk, self._plan
        random, message_id = self._world.random, frame.message_id
        delivery = owner._received(plan.nsqds[0], message_id, frame.attempts, frame.body)
        match owner._habit():
            case "requeue":
                delivery.answer, delivery.requeue_s = "REQ", self._world.now_s
                self._window.answer(message_id)
                await talk.say(commands.requeue(message_id, 0))
            case "requeue later":
                delay_s = random.choice((0.05, 1.0))
                delivery.answer, delivery.requeue_s = "REQ", self._world.now_s
                delivery.delay_s = delay_s
                self._window.answer(message_id)
                await talk.say(commands.requeue(message_id, round(delay_s * 1000)))
            case "touch":
                delivery.touched_s = self._world.now_s
                await talk.say(commands.touch(message_id))
                await self._finish(delivery)
            case "ignore":
                delivery.answer = "ignored"
            case "slow":
                await trio.sleep(random.uniform(0, 1.5 * owner._msg_timeout_s))
                await self._finish(delivery)
            case "RDY":
                await self._finish(delivery)
                await self._set_ready(random.choice((1, plan.max_in_flight)))
            case "leave":
                return False
            case "CLS":
                await self._finish(delivery)
                with trio.fail_after(10):
                    await talk.say(b"CLS\n")
                    await talk.end()
                return False
            case "half close":
                await self._finish(delivery)
                talk.stream.end_sending()
                with trio.fail_after(30):
                    await talk.end()
                return False
            case _:
                await self._finish(delivery)
        return True

    async def _finish(self, delivery: Delivery) -> None:
        delivery.answer, delivery.answered_s = "FIN", self._world.now_s
        self._window.answer(delivery.message_id)
        await self._talk.say(commands.finish(delivery.message_id))
