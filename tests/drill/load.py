"""Publishers and consumers at full speed, until nsqd cuts them off.

The faults they meet: their connection ends at any byte, amid commands and answers; messages
are left in flight (``hold_share``) and deferred beyond the stop (DPUB, HTTP ``defer``, REQ).
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

import trio

from tests.drill.account import Account
from tests.drill.connection import ConnectionEndedError, HttpConnection, NsqConnection
from tests.drill.plan import ConsumerPlan, PublisherPlan
from tests.processes import NsqdProcess
from tests.promises.ledger import Delivery
from tests.promises.window import Window
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, MessageFrame, Response

PIPELINED_MESSAGES = 50
MPUB_MESSAGES_MAX = 60
PADDING_BYTES_MAX = 300
DELAYS_SHORT_MS = (1, 150)
DEFERRED_SHARE = 0.2
"""Of what an HTTP publisher publishes one by one, if no other; a DPUB publisher defers all."""

NOBODYS_ID = b"0" * 16
"""FIN of it is refused, in its turn: then all that was sent before it has been taken."""


class Round(NamedTuple):
    """What a publisher sends at once; each batch of bodies gets one OK."""

    data: bytes
    batches: list[list[bytes]]


class Delays:
    """Draws delays, in milliseconds: short ones, and ones that end after the restart."""

    def __init__(self, rng: Random, stop_at_s: float, starts_s: float) -> None:
        """``starts_s``: what the starts after the stop will take."""
        self._rng = rng
        self._stop_at_s = stop_at_s
        self._beyond_s = 0.8 * starts_s, 2 * starts_s + 1

    def draw_ms(self) -> int:
        """A delay from now on."""
        if self._rng.random() < 0.5:
            return self._rng.randint(*DELAYS_SHORT_MS)
        left_s = max(0.0, self._stop_at_s - trio.current_time())
        return int((left_s + self._rng.uniform(*self._beyond_s)) * 1000)


class Gate:
    """While it is closed no client sends anything."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()

    def close(self) -> None:
        """From now on clients keep still; what they sent is answered."""
        self._opened = trio.Event()

    def open(self) -> None:
        """They go on."""
        self._opened.set()

    async def go_through(self) -> None:
        """Wait until it is open."""
        await self._opened.wait()


class Publisher:
    """One publisher; its bodies are unique in the run and say whose and which they are."""

    def __init__(
        self,
        plan: PublisherPlan,
        rng: Random,
        delays: Delays,
        account: Account,
        gate: Gate,
        *,
        deferred_share: float = DEFERRED_SHARE,
    ) -> None:
        """``deferred_share``: of what it publishes one by one by HTTP."""
        self._plan = plan
        self._rng = rng
        self._delays = delays
        self._account = account
        self._gate = gate
        self._deferred_share = deferred_share
        self._sequence = 0

    async def run(self, nsqd: NsqdProcess) -> None:
        """Publish until the connection ends."""
        try:
            if self._plan.kind.startswith("http"):
                await self._run_http(nsqd.http_address)
            else:
                await self._run_tcp(nsqd.tcp_address)
        except ConnectionEndedError:
            self._account.counts["publishers_cut_off"] += 1

    async def _run_tcp(self, address: str) -> None:
        async with await NsqConnection.open(address) as connection:
            while True:
                await self._gate.go_through()
                data, batches = self._next_round()
                await connection.send(data)
                unanswered = deque(batches)
                while unanswered:
                    for frame in await connection.frames():
                        self._answered(unanswered.popleft(), frame == Response(b"OK"))

    async def _run_http(self, address: str) -> None:
        async with await HttpConnection.open(address) as connection:
            while True:
                await self._gate.go_through()
                path, bodies = self._next_request()
                status, _ = await connection.request("POST", path, b"\n".join(bodies))
                self._answered(bodies, status == 200)

    def _answered(self, bodies: list[bytes], is_ok: bool) -> None:
        if is_ok:
            self._account.acknowledge(bodies)
        else:
            self._account.counts["refused"] += len(bodies)

    def _next_round(self) -> Round:
        topic = self._plan.topic
        match self._plan.kind:
            case "dpub":
                delay_ms = self._delays.draw_ms()
                (body,) = bodies = self._bodies(1, delay_ms)
                return Round(commands.publish_deferred(topic, delay_ms, body), [bodies])
            case "mpub":
                bodies = self._bodies(self._rng.randint(1, MPUB_MESSAGES_MAX))
                return Round(commands.publish_many(topic, bodies), [bodies])
            case "pipelined":
                bodies = self._bodies(PIPELINED_MESSAGES)
            case _:
                bodies = self._bodies(1)
        data = b"".join(commands.publish(topic, body) for body in bodies)
        return Round(data, [[body] for body in bodies])

    def _next_request(self) -> tuple[str, list[bytes]]:
        if self._plan.kind == "http_mpub":
            bodies = self._bodies(self._rng.randint(1, MPUB_MESSAGES_MAX))
            return f"/mpub?topic={self._plan.topic}", bodies
        delay_ms = self._delays.draw_ms() if self._rng.random() < self._deferred_share else 0
        defer = f"&defer={delay_ms}" if delay_ms else ""
        return f"/pub?topic={self._plan.topic}{defer}", self._bodies(1, delay_ms)

    def _bodies(self, count: int, delay_ms: int = 0) -> list[bytes]:
        name = self._plan.name.encode()
        padding = b"." * self._rng.randint(0, PADDING_BYTES_MAX)
        first = self._sequence
        self._sequence += count
        bodies = [b"%b %d %b" % (name, number, padding) for number in range(first, first + count)]
        self._account.sending(self._plan.topic, bodies, delay_ms / 1000)
        return bodies


class Consumer:
    """One consumer: finishes most of what it gets, keeps some in flight, requeues some."""

    def __init__(
        self,
        plan: ConsumerPlan,
        rng: Random,
        delays: Delays,
        account: Account,
        gate: Gate,
        msg_timeout_s: float,
    ) -> None:
        self._plan = plan
        self._rng = rng
        self._delays = delays
        self._account = account
        self._gate = gate
        self._channel = (plan.topic, plan.channel)
        self._timeout_s = msg_timeout_s
        # This process may be late itself, and so may nsqd.
        self._prompt_s = 0.25 * msg_timeout_s
        self._window = Window(forget_s=self._prompt_s)
        self._sure_s = 0.5 * msg_timeout_s
        # When nsqd sent messages at the earliest, when answers went, and those of one go by id:
        # their fate is open.
        self._unsure: deque[tuple[float, float, dict[bytes, Delivery]]] = deque()

    async def run(
        self, nsqd: NsqdProcess, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Consume until the connection ends; started when subscribed."""
        try:
            async with await NsqConnection.open(nsqd.tcp_address) as connection:
                plan = self._plan
                self._window.set_ready(plan.ready_count)
                await connection.subscribe(plan.topic, plan.channel, plan.ready_count)
                task_status.started()
                while True:
                    await self._handle_next(connection)
        except ConnectionEndedError:
            self._account.counts["consumers_cut_off"] += 1
            for _, sent_s, _ in self._unsure:
                self._note_turnaround(sent_s)

    async def _handle_next(self, connection: NsqConnection) -> None:
        taken: dict[bytes, Delivery] = {}
        lines: list[bytes] = []
        deliveries: list[Delivery] = []
        for frame in await connection.frames():
            if isinstance(frame, MessageFrame):
                deliveries += self._receive(frame)
            elif isinstance(frame, ErrorFrame):
                self._answered(frame)
        await self._gate.go_through()
        for delivery in deliveries:
            lines += self._decide(delivery, taken)
        if lines:
            self._unsure.append((connection.sent_after_s, self._account.clock(), taken))
            await connection.send(b"".join([*lines, commands.finish(NOBODYS_ID)]))

    def _receive(self, frame: MessageFrame) -> list[Delivery]:
        """The delivery; none if it is not worth an answer."""
        account, plan = self._account, self._plan
        delivery = account.receive(self._channel, frame, plan.name)
        if delivery is None:
            return []
        if any(frame.message_id in answers for *_, answers in self._unsure):
            # It timed out before nsqd read the answer, which may be for this delivery now.
            return [delivery]
        if self._window.receive(frame.message_id, delivery.at_s):
            in_flight = len(self._window)
            what = f"{plan.name}: {in_flight} in flight, RDY {plan.ready_count}"
            account.note_overfull(delivery.at_s, what)
        return [delivery]

    def _note_turnaround(self, sent_s: float) -> None:
        """Answers were sent then, and nsqd's word on them is here now, or never will be."""
        now_s = self._account.clock()
        if now_s - sent_s > self._prompt_s:
            self._account.note_disturbance(sent_s, now_s + self._timeout_s)

    def _decide(self, delivery: Delivery, taken: dict[bytes, Delivery]) -> list[bytes]:
        plan, drawn, message_id = self._plan, self._rng.random(), delivery.message_id
        if drawn < plan.hold_share and len(self._window) <= max(1, plan.ready_count // 2):
            self._account.counts["held"] += 1
            return []
        self._window.answer(message_id)
        taken[message_id] = delivery
        if drawn > 1 - plan.requeue_share:
            delay_ms = self._delays.draw_ms() if self._rng.random() < 0.8 else 0
            delivery.answer, delivery.delay_s = "REQ", delay_ms / 1000
            delivery.requeue_s = self._account.clock()
            self._account.counts["requeued"] += 1
            return [commands.requeue(message_id, delay_ms)]
        delivery.answer = "FIN"
        return [commands.finish(message_id)]

    def _answered(self, refusal: ErrorFrame) -> None:
        """An answer came to the oldest commands whose fate is open."""
        words = refusal.text.split(b" ")
        message_id = words[1] if len(words) > 1 else b""
        if message_id == NOBODYS_ID:
            now_s = self._account.clock()
            messages_s, sent_s, answered = self._unsure.popleft()
            self._note_turnaround(sent_s)
            # Later nsqd may have answered for the next attempt, which is on its way.
            if now_s - messages_s < self._sure_s:
                for delivery in answered.values():
                    delivery.taken_s = now_s
            return
        self._account.counts["refused_fin_or_req"] += 1
        # A message that timed out may have come twice in one go: the other answer was taken.
        refused = self._unsure[0][-1].pop(message_id, None)
        if refused is not None:
            refused.answer = "refused"
