"""The HTTP API: who has a topic, which topics and nodes there are, and what operators may do.

Spec: nsqlookupd, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from quart import Response
from quart_trio import QuartTrio

from lookupd.metrics import metrics_page
from lookupd.options import NsqlookupdOptions
from lookupd.producer import Producer
from lookupd.registry import Entry, Registry
from lookupd.tasks import task_name
from trionsq import NSQ_VERSION
from trionsq.histogram import Histogram
from trionsq.looplag import LOOP_LAG_BOUNDS_S
from trionsq.web.answers import empty, json_document, plain
from trionsq.web.app import Endpoint, create_app
from trionsq.web.errors import HttpError
from trionsq.web.gate import Gate
from trionsq.web.guard import guarded
from trionsq.web.health import Health
from trionsq.web.pprof import Pprof
from trionsq.web.query import Query, query, valid_argument

__all__ = ["lookupd_app"]

# The original's "never", in nanoseconds since 1970.
_NEVER_NS: Final = -6795364578871345152


def lookupd_app(
    registry: Registry,
    options: NsqlookupdOptions,
    now_ns: Callable[[], int],
    loop_lag_s: Histogram | None = None,
    gate: Gate | None = None,
) -> QuartTrio:
    """The HTTP API of ``registry``; ``now_ns`` is the clock that its times are of.

    ``loop_lag_s`` is for /metrics; ``gate`` refuses requests, and is shown there too.
    """
    gate = Gate() if gate is None else gate
    metrics = metrics_page(registry, now_ns, loop_lag_s or Histogram(LOOP_LAG_BOUNDS_S), gate)
    # It waits for nothing and needs no disk: it is ready as long as it answers.
    health = Health(lambda: None)
    endpoints = [*_endpoints(_Directory(registry, now_ns), options), metrics.endpoint]
    return create_app([*endpoints, *health.endpoints()], sites=gate.sites)


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
    for page in Pprof(task_name, "/debug/pprof").endpoints():
        yield guarded(page, lambda: options.debug_from)


class _Directory:
    """The endpoints, but for the debug pages of the process."""

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
        return json_document({"topics": self._registry.topics()})

    async def channels(self) -> Response:
        """GET /channels: none if there is no such topic."""
        return json_document({"channels": self._registry.channels(_given(query(), b"topic"))})

    async def lookup(self) -> Response:
        """GET /lookup: where a consumer finds a topic."""
        topic = _given(query(), b"topic")
        if not self._registry.has_topic(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        producers = self._registry.lookup(topic, self._now_ns())
        return json_document(
            {
                "channels": self._registry.channels(topic),
                "producers": [_shown(producer) for producer in producers],
            }
        )

    async def nodes(self) -> Response:
        """GET /nodes."""
        shown = [
            {
                **_shown(node.producer),
                "tombstones": list(node.topics.values()),
                "topics": list(node.topics),
            }
            for node in self._registry.nodes(self._now_ns())
        ]
        return json_document({"producers": shown})

    async def debug(self) -> Response:
        """GET /debug: the database, inactive producers included."""
        return json_document(
            {key: [_dumped(entry) for entry in held] for key, held in self._registry.everything()}
        )

    async def create_topic(self) -> Response:
        """POST /topic/create."""
        self._registry.create_topic(valid_argument(query(), b"topic"))
        return empty()

    async def delete_topic(self) -> Response:
        """POST /topic/delete, with its channels; also if there is none."""
        self._registry.delete_topic(_given(query(), b"topic"))
        return empty()

    async def create_channel(self) -> Response:
        """POST /channel/create, and its topic."""
        values = query()
        topic = valid_argument(values, b"topic")
        self._registry.create_channel(topic, valid_argument(values, b"channel"))
        return empty()

    async def delete_channel(self) -> Response:
        """POST /channel/delete."""
        values = query()
        topic = valid_argument(values, b"topic")
        if not self._registry.delete_channel(topic, valid_argument(values, b"channel")):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return empty()

    async def tombstone(self) -> Response:
        """POST /topic/tombstone: hide a node from the lookups of a topic; also if nobody is it."""
        values = query()
        topic = _given(values, b"topic")
        self._registry.tombstone(topic, _given(values, b"node"), self._now_ns())
        return empty()


def _given(values: Query, name: bytes) -> str:
    """A parameter that is not looked at any closer. Raises HttpError MISSING_ARG_ and its name."""
    given = values.get(name)
    if given is None:
        raise HttpError(400, f"MISSING_ARG_{name.decode().upper()}")
    return given.decode(errors="replace")


def _shown(producer: Producer) -> dict[str, Any]:
    said = producer.announced
    return {
        "remote_address": producer.remote_address,
        "hostname": said.hostname,
        "broadcast_address": said.broadcast_address,
        "tcp_port": said.tcp_port,
        "http_port": said.http_port,
        "version": said.version,
    }


def _dumped(entry: Entry) -> dict[str, Any]:
    producer, since_ns = entry.producer, entry.tombstoned_at_ns
    said = producer.announced
    return {
        "broadcast_address": said.broadcast_address,
        "hostname": said.hostname,
        "http_port": said.http_port,
        "id": producer.remote_address,
        "last_update": producer.last_update_ns,
        "tcp_port": said.tcp_port,
        "tombstoned": since_ns is not None,
        "tombstoned_at": _NEVER_NS if since_ns is None else since_ns,
        "version": said.version,
    }
