"""The HTTP API: lookups of topics, lists of topics and nodes, actions of operators.

Spec: nsqlookupd, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from quart import Response
from quart_trio import QuartTrio

from lookupd.metrics import metrics_page
from lookupd.options import NsqlookupdOptions
from lookupd.registry import Entry, Producer, Registry, RegistryFullError
from lookupd.turns import PRODUCER_COST, Turns, sweep
from trionsq import NSQ_VERSION
from trionsq.daemon.acl import AclUser, Authenticator
from trionsq.daemon.looplag import LOOP_LAG_BOUNDS_S
from trionsq.histogram import Histogram
from trionsq.web.access import HttpAccess
from trionsq.web.app import Endpoint, create_app
from trionsq.web.diagnostics import Health, Pprof, guarded
from trionsq.web.gate import Gate
from trionsq.web.protocol import HttpError, Query, json_bytes, valid_argument
from trionsq.web.request import query
from trionsq.web.responses import empty, encoded_document, json_document, plain

__all__ = ["lookupd_app"]

# Consumers look topics up; what they then read is decided by nsqd.
_FOR_ANY_USER: Final = frozenset({"/info", "/lookup", "/topics", "/channels", "/nodes", "/metrics"})

# The original's "never", in nanoseconds since 1970.
_NEVER_NS: Final = -6795364578871345152


def lookupd_app(
    registry: Registry,
    options: NsqlookupdOptions,
    now_ns: Callable[[], int],
    loop_lag_s: Histogram | None = None,
    gate: Gate | None = None,
    users: Authenticator | None = None,
) -> QuartTrio:
    """The HTTP API of ``registry``; ``now_ns`` is the clock that its times are of.

    ``loop_lag_s`` is for /metrics; ``gate`` refuses requests and has metrics, too; ``users`` say
    who may do what, None: all may.
    """
    gate = Gate() if gate is None else gate
    metrics = metrics_page(registry, now_ns, loop_lag_s or Histogram(LOOP_LAG_BOUNDS_S), gate)
    # nsqlookupd needs no disk and no peer: it is ready whenever it answers.
    health = Health(lambda: None)
    endpoints = [*_endpoints(_Directory(registry, now_ns), options), metrics.endpoint]
    access = None if users is None else HttpAccess(users, _may_use)
    return create_app(
        [*endpoints, *health.endpoints()],
        sites=gate.sites,
        authorize=lambda path: None if access is None else access.check(path),
    )


def _may_use(user: AclUser, _method: str, path: str, values: Query) -> bool:
    """See `trionsq.web.access.Rule`."""
    if path in _FOR_ANY_USER:
        return True
    topic = values.get(b"topic", b"").decode(errors="replace")
    return user.may_administer(topic if path.startswith(("/topic/", "/channel/")) else "")


def _endpoints(directory: _Directory, options: NsqlookupdOptions) -> Iterable[Endpoint]:
    yield from [
        ("GET", "/ping", directory.ping),
        ("GET", "/info", directory.info),
        ("GET", "/debug", directory.debug),
        ("GET", "/lookup", directory.lookup),
        ("GET", "/topics", directory.topics),
        ("GET", "/channels", directory.channels),
        ("GET", "/nodes", directory.nodes),
        ("POST", "/topic/create", directory.create_topic),
        ("POST", "/topic/delete", directory.delete_topic),
        ("POST", "/topic/tombstone", directory.tombstone),
        ("POST", "/channel/create", directory.create_channel),
        ("POST", "/channel/delete", directory.delete_channel),
    ]
    for page in Pprof("/debug/pprof").endpoints():
        yield guarded(page, lambda: options.debug_from)


class _Directory:
    """The endpoints, except the debug pages of the process."""

    def __init__(self, registry: Registry, now_ns: Callable[[], int]) -> None:
        self._registry = registry
        self._now_ns = now_ns

    async def ping(self) -> Response:
        """GET /ping."""
        return plain(200, "OK")

    async def info(self) -> Response:
        """GET /info."""
        return json_document({"version": NSQ_VERSION})

    async def topics(self) -> Response:
        """GET /topics."""
        topics = await Turns().json_array(self._registry.topics())
        return encoded_document(b'{"topics":%b}' % topics)

    async def channels(self) -> Response:
        """GET /channels: empty if the topic does not exist."""
        topic = _given(query(), b"topic")
        channels = await Turns().json_array(self._registry.channels(topic))
        return encoded_document(b'{"channels":%b}' % channels)

    async def lookup(self) -> Response:
        """GET /lookup: the producers of a topic, for consumers."""
        topic, turns = _given(query(), b"topic"), Turns()
        if not self._registry.has_topic(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        channels = await turns.json_array(self._registry.channels(topic))
        listed = self._registry.lookup(topic, self._now_ns())
        producers = await turns.json_array(map(_shown_if, listed), PRODUCER_COST)
        return encoded_document(b'{"channels":%b,"producers":%b}' % (channels, producers))

    async def nodes(self) -> Response:
        """GET /nodes."""
        turns, now_ns = Turns(), self._now_ns()
        nodes = list[bytes]()
        for producer in self._registry.active_producers(now_ns):
            await turns.touch(PRODUCER_COST)
            if producer is None:
                continue
            names, hidden = list[str](), list[bool]()
            for place in self._registry.topics_of(producer, now_ns):
                await turns.touch()
                if place is not None:
                    names.append(place[0])
                    hidden.append(place[1])
            document = json_bytes(_shown(producer))[:-1]
            both = await turns.json_array(hidden), await turns.json_array(names)
            nodes.append(document + b',"tombstones":%b,"topics":%b}' % both)
        return encoded_document(b'{"producers":[%b]}' % b",".join(nodes))

    async def debug(self) -> Response:
        """GET /debug: the database, inactive producers included."""
        turns = Turns()
        members = [b"{"]
        key, entries = "", list[dict[str, Any]]()

        async def end_of_key() -> None:
            if entries:
                producers = await turns.json_array(entries, PRODUCER_COST)
                # The comma is part of the piece, so that joining copies each byte only once.
                comma = b"," if len(members) > 1 else b""
                members.append(comma + json_bytes(key) + b":" + producers)
                entries.clear()

        for item in self._registry.everything():
            await turns.touch()
            if item is not None:
                if item[0] != key:
                    await end_of_key()
                    key = item[0]
                entries.append(_dumped(item[1]))
        await end_of_key()
        return encoded_document(b"".join([*members, b"}"]))

    async def create_topic(self) -> Response:
        """POST /topic/create."""
        with _room_for_names():
            self._registry.create_topic(valid_argument(query(), b"topic"))
        return empty()

    async def delete_topic(self) -> Response:
        """POST /topic/delete, with its channels; no error if it does not exist."""
        self._registry.delete_topic(_given(query(), b"topic"))
        await sweep(self._registry)
        return empty()

    async def create_channel(self) -> Response:
        """POST /channel/create, and its topic."""
        values = query()
        topic = valid_argument(values, b"topic")
        channel = valid_argument(values, b"channel")
        with _room_for_names():
            self._registry.create_channel(topic, channel)
        return empty()

    async def delete_channel(self) -> Response:
        """POST /channel/delete."""
        values = query()
        topic = valid_argument(values, b"topic")
        if not self._registry.delete_channel(topic, valid_argument(values, b"channel")):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        await sweep(self._registry)
        return empty()

    async def tombstone(self) -> Response:
        """POST /topic/tombstone: hide a node from lookups of a topic; no error if there is none."""
        values = query()
        topic, node, turns = _given(values, b"topic"), _given(values, b"node"), Turns()
        for _ in self._registry.tombstone(topic, node, self._now_ns()):
            await turns.touch()
        return empty()


@contextmanager
def _room_for_names() -> Iterator[None]:
    try:
        yield
    except RegistryFullError:
        raise HttpError(507, "TOO_MANY_NAMES") from None


def _given(values: Query, name: bytes) -> str:
    """A parameter without further checks. Raises HttpError MISSING_ARG_ and its name."""
    value = values.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.decode().upper()}")
    return value.decode(errors="replace")


def _shown(producer: Producer) -> dict[str, Any]:
    announced = producer.announced
    return {
        "remote_address": producer.remote_address,
        "hostname": announced.hostname,
        "broadcast_address": announced.broadcast_address,
        "tcp_port": announced.tcp_port,
        "http_port": announced.http_port,
        "version": announced.version,
    }


def _shown_if(producer: Producer | None) -> dict[str, Any] | None:
    return None if producer is None else _shown(producer)


def _dumped(entry: Entry) -> dict[str, Any]:
    producer, since_ns = entry.producer, entry.tombstoned_at_ns
    announced = producer.announced
    return {
        "broadcast_address": announced.broadcast_address,
        "hostname": announced.hostname,
        "http_port": announced.http_port,
        "id": producer.remote_address,
        "last_update": producer.last_update_ns,
        "tcp_port": announced.tcp_port,
        "tombstoned": since_ns is not None,
        "tombstoned_at": _NEVER_NS if since_ns is None else since_ns,
        "version": announced.version,
    }
