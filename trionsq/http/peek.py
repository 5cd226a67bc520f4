"""GET /topic/peek and /channel/peek: the next messages, without consuming them.

The original has no such endpoints. Memory is read in the event loop, within limits; disk queues are
read in a thread. Consumers are read, and messages encoded, some at a time.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Literal, NotRequired, Protocol, TypedDict

import trio
from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.client import Client
from trionsq.broker.topic import Topic
from trionsq.core.batch import Segment
from trionsq.core.channel import ChannelState
from trionsq.core.peek import BackendView, Page, Peeked, PeekStale, PeekTooFar, show_segments
from trionsq.core.queue import Store
from trionsq.core.subscription import Subscription
from trionsq.http.admin import Administration
from trionsq.storage.log.cursor import Cursor
from trionsq.web.protocol import HttpError, Query, json_bytes, valid_topic_name
from trionsq.web.request import query
from trionsq.web.responses import Pieces, json_pieces

__all__ = ["Peeking"]

State = Literal["queued", "in_flight", "deferred"]

_DEFAULT_LIMIT: Final = 10
_MAX_LIMIT: Final = 1000
# More messages than a disk queue can hold.
_MAX_OFFSET: Final = 2**40
_DEFAULT_PAGE_BYTES: Final = 1024 * 1024
_MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
# In-flight messages that can be skipped.
_MAX_SKIPPED: Final = 20_000
# Deferred messages that can be skipped: walking their heap in order costs 2 us for each.
_MAX_SKIPPED_DEFERRED: Final = 2_000
# Consumers go on meanwhile; if files are gone before they are read, peeking starts again.
_ATTEMPTS: Final = 5
# Bytes of bodies that are encoded, and consumers or clients that are read, before other tasks run.
_TURN_BYTES: Final = 256 * 1024
_TURN_CONSUMERS: Final = 1_000
_MAX_THREADS: Final = 2
_Decoder: Final = codecs.getincrementaldecoder("utf-8")
_STATES: Final[dict[bytes, State]] = {
    b"queued": "queued",
    b"in_flight": "in_flight",
    b"deferred": "deferred",
}
_ORDER: Final = {
    "queued": "memory, then disk; they are served in turn",
    "in_flight": "by client, then by deadline",
    "deferred": "by due time",
}
_LOG_ORDER: Final = "those that returned, then the others; they are served in turn"


@dataclass(frozen=True, slots=True)
class _Window:
    """The messages that the parameters select."""

    state: State
    offset: int
    limit: int
    max_bytes: int

    def page(self) -> Page:
        return Page(self.limit, self.max_bytes)


class Counts(TypedDict):
    """Messages by state; ``queued`` is memory and disk together. Topics lack the last two."""

    queued: int
    memory: int
    disk: int
    in_flight: NotRequired[int]
    deferred: NotRequired[int]


class ClientName(TypedDict):
    """A client, as /stats names it."""

    client_id: str
    hostname: str
    remote_address: str


class PeekedMessage(TypedDict):
    """A message; ``timestamp`` and ``due`` are in nanoseconds since the epoch.

    A deferred message has ``due``. A message in flight has ``client``, which is null if its
    connection has ended, and ``deadline_in_seconds``.
    """

    id: str
    timestamp: int
    attempts: int
    where: str
    body_size: int
    body_cut: bool
    body_encoding: str
    body: str
    due: NotRequired[int]
    due_in_seconds: NotRequired[float]
    client: NotRequired[ClientName | None]
    deadline_in_seconds: NotRequired[float]


class _Core(Protocol):
    """A topic or a channel of `trionsq.core`."""

    @property
    def store(self) -> Store: ...

    def peek(self) -> Iterator[Segment]: ...


def _number(values: Query, name: bytes, default: int, least: int, most: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if value.isdigit() and len(value) <= 18 and least <= int(value) <= most:
        return int(value)
    raise HttpError(400, f"INVALID_ARG_{name.decode().upper()}")


def _window(values: Query, states: Collection[State]) -> _Window:
    state = _STATES.get(values.get(b"state", b"queued"))
    if state is None or state not in states:
        raise HttpError(400, "INVALID_ARG_STATE")
    return _Window(
        state=state,
        offset=_number(values, b"offset", 0, 0, _MAX_OFFSET),
        limit=_number(values, b"limit", _DEFAULT_LIMIT, 1, _MAX_LIMIT),
        max_bytes=_number(values, b"max_bytes", _DEFAULT_PAGE_BYTES, 1, _MAX_PAGE_BYTES),
    )


class Peeking:
    """The two endpoints."""

    def __init__(self, broker: Broker, admin: Administration) -> None:
        self._clock = broker.clock
        self._admin = admin
        self._limiter = trio.CapacityLimiter(_MAX_THREADS)

    async def topic(self) -> Response:
        """GET /topic/peek: messages that wait at the topic, not at its channels."""
        topic = self._topic()
        window = _window(query(), ["queued"])
        messages, page = await self._peek_queued(lambda: self._topic().core, window)
        waiting = topic.core.depth
        disk = topic.core.store.backend.on_disk
        counts = Counts(queued=waiting, memory=waiting - disk, disk=disk)
        return await _response(
            {"topic": topic.name, **_common_fields(window, counts, page, topic.core.store)},
            messages,
        )

    async def channel(self) -> Response:
        """GET /channel/peek: waiting, in-flight or deferred messages of a channel."""
        channel = self._admin.existing_channel()
        window = _window(query(), _STATES.values())
        page = window.page()
        if window.state == "queued":
            find = self._admin.existing_channel
            messages, page = await self._peek_queued(lambda: find().core, window)
        elif window.state == "deferred":
            messages = await self._peek_deferred(channel, window.offset, page)
        else:
            messages = await self._peek_in_flight(channel, window.offset, page)
        core = channel.core
        waiting, disk = core.depth, core.store.backend.on_disk
        counts = Counts(
            queued=waiting,
            memory=waiting - disk,
            disk=disk,
            in_flight=core.in_flight_count,
            deferred=core.deferred_count,
        )
        head = {"topic": channel.topic.name, "channel": channel.name}
        return await _response(
            {**head, **_common_fields(window, counts, page, core.store)}, messages
        )

    def _topic(self) -> Topic:
        return self._admin.topic_named(valid_topic_name(query()))

    async def _peek_queued(
        self, find: Callable[[], _Core], window: _Window
    ) -> tuple[list[PeekedMessage], Page]:
        """``find`` is called for each attempt: the topic or channel may be gone meanwhile."""
        for _ in range(_ATTEMPTS):
            core = find()
            page = window.page()
            try:
                skip = show_segments(core.peek(), window.offset, page)
                await self._read_backend(core.store.backend.peek(), skip, page)
                break
            except PeekTooFar:
                raise HttpError(400, "OFFSET_TOO_FAR") from None
            except PeekStale as stale:
                page.trouble = str(stale)
        return await self._encode_page(page), page

    async def _encode_page(self, page: Page) -> list[PeekedMessage]:
        """Return the messages of a page."""
        now_ns = self._clock.now_ns()
        messages = []
        turns = _Turns()
        for message in page.messages:
            messages.append(_message(message, now_ns))
            await turns.count_bytes(len(message.body))
        return messages

    async def _read_backend(self, view: BackendView | None, skip: int, page: Page) -> None:
        if view is None:
            return
        if page.is_full:
            page.more = True
        else:
            await self._in_thread(partial(view.read, skip, page))

    async def _in_thread(self, read: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(read, limiter=self._limiter, abandon_on_cancel=True)

    async def _peek_deferred(
        self, channel: Channel, offset: int, page: Page
    ) -> list[PeekedMessage]:
        if offset > _MAX_SKIPPED_DEFERRED:
            raise HttpError(400, "OFFSET_TOO_FAR")
        set_back_ns = self._clock.set_back_ns()
        backend = channel.core.store.backend
        if isinstance(backend, Cursor):
            view = backend.peek_held(backend.held.next_ranges(offset, _MAX_LIMIT + 1))
            try:
                await self._in_thread(partial(view.read, set_back_ns, page))
            except PeekStale as stale:
                page.trouble = str(stale)
        for due_ns, segment in islice(channel.core.deferred, offset, None):
            if not page.offer_message(segment, segment.first, due_ns - set_back_ns):
                break
        return await self._encode_page(page)

    async def _peek_in_flight(
        self, channel: Channel, offset: int, page: Page
    ) -> list[PeekedMessage]:
        if offset > _MAX_SKIPPED:
            raise HttpError(400, "OFFSET_TOO_FAR")
        owners = await _offer_in_flight(channel.core, offset, page)
        clients = await _clients_of(channel, {consumer for consumer, _ in owners})
        now_s = self._clock.now_s()
        messages = await self._encode_page(page)
        for message, (consumer, deadline_s) in zip(messages, owners, strict=True):
            message["client"] = _client(clients.get(consumer))
            message["deadline_in_seconds"] = round(deadline_s - now_s, 3)
        return messages


class _Turns:
    """Counts encoded bytes, and lets other tasks run now and then."""

    __slots__ = ("_spent_bytes",)

    def __init__(self) -> None:
        self._spent_bytes = 0

    async def count_bytes(self, size_bytes: int) -> None:
        self._spent_bytes += size_bytes
        if self._spent_bytes >= _TURN_BYTES:
            self._spent_bytes = 0
            await trio.lowlevel.checkpoint()


async def _offer_in_flight(
    core: ChannelState, skip: int, page: Page
) -> list[tuple[Subscription, float]]:
    """Offer the in-flight messages after ``skip``; return consumer and deadline of each."""
    owners: list[tuple[Subscription, float]] = []
    for count, consumer in enumerate(list(core.in_flight.walk_holders()), 1):
        in_flight = consumer.in_flight
        if skip >= len(in_flight):
            skip -= len(in_flight)
        else:
            for id_, delivery in islice(in_flight.items(), skip, None):
                place = delivery.first + delivery.ids.index(id_)
                one = Segment(delivery.batch, place, place + 1, delivery.attempts)
                if not page.offer_message(one, place):
                    return owners
                owners.append((consumer, delivery.deadline_s))
            skip = 0
        if count % _TURN_CONSUMERS == 0:
            await trio.lowlevel.checkpoint()
    return owners


async def _clients_of(channel: Channel, consumers: set[Subscription]) -> dict[Subscription, Client]:
    clients = {}
    for count, client in enumerate(list(channel.clients), 1):
        if client.consumer in consumers:
            clients[client.consumer] = client
        if count % _TURN_CONSUMERS == 0:
            await trio.lowlevel.checkpoint()
    return clients


def _client(client: Client | None) -> ClientName | None:
    if client is None:
        return None
    return {
        "client_id": client.identity.client_id,
        "hostname": client.identity.hostname,
        "remote_address": client.peer,
    }


def _message(message: Peeked, now_ns: int) -> PeekedMessage:
    is_cut = len(message.body) < message.body_nbytes
    try:
        # Half a character at the end of a truncated body does not make it binary.
        encoding, body = "utf-8", _Decoder().decode(message.body, final=not is_cut)
    except UnicodeDecodeError:
        encoding, body = "base64", base64.b64encode(message.body).decode("ascii")
    document: PeekedMessage = {
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
        "where": "disk" if message.on_disk else "memory",
        "body_size": message.body_nbytes,
        "body_cut": is_cut,
        "body_encoding": encoding,
        "body": body,
    }
    if message.due_ns is not None:
        document["due"] = message.due_ns
        document["due_in_seconds"] = round((message.due_ns - now_ns) / 1e9, 3)
    return document


def _common_fields(window: _Window, counts: Counts, page: Page, store: Store) -> dict[str, object]:
    is_log = store.backend.has_published and window.state == "queued"
    return {
        "state": window.state,
        "order": _LOG_ORDER if is_log else _ORDER[window.state],
        "counts": counts,
        "offset": window.offset,
        "messages": [],
        "more": page.more,
        "trouble": page.trouble,
    }


async def _response(document: Mapping[str, object], messages: list[PeekedMessage]) -> Response:
    """Respond with ``document``, with ``messages`` in its empty list."""
    pieces, turns = Pieces(), _Turns()
    # No JSON string can contain this.
    begin, key, end = json_bytes(document).partition(b'"messages":[')
    pieces.add(begin + key)
    for place, message in enumerate(messages):
        part = json_bytes(message)
        pieces.add(b"," + part if place else part)
        await turns.count_bytes(len(part))
    pieces.add(end)
    return json_pieces(pieces.finish())
