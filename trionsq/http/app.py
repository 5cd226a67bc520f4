"""The application: which path does what, and what is refused on the way down.

Spec: nsqd-http, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable

from quart import Response
from quart_trio import QuartTrio

from trionsq.broker.broker import Broker
from trionsq.http.admin import Administration
from trionsq.http.config import Configuration
from trionsq.http.debug import Debugging
from trionsq.http.metrics import metrics_page
from trionsq.http.peek import Peeking
from trionsq.http.publish import Publishing
from trionsq.http.stats import Statistics
from trionsq.web import app
from trionsq.web.answers import tls_required
from trionsq.web.app import Endpoint
from trionsq.web.errors import HttpError
from trionsq.web.gate import Gate
from trionsq.web.health import OPEN_PATHS, Health

__all__ = ["create_app"]


def create_app(broker: Broker, *, is_open: bool = True, gate: Gate | None = None) -> QuartTrio:
    """The HTTP API of ``broker``.

    Args:
        broker: is asked.
        is_open: answer; otherwise tell that it is to be asked by HTTPS.
        gate: refuses requests, and is shown at /metrics.
    """
    gate = Gate() if gate is None else gate

    def check(method: str) -> None:
        if broker.exiting and method != "GET":
            raise HttpError(503, "EXITING")

    def ask_by_https(path: str) -> Response | None:
        if is_open or path in OPEN_PATHS:
            return None
        return tls_required(broker.ports.https)

    nbytes_max = max(broker.options.max_msg_size, broker.options.max_body_size)
    return app.create_app(
        _endpoints(broker, gate),
        body_nbytes_max=nbytes_max,
        check=check,
        before=ask_by_https,
        sites=gate.sites,
    )


def _endpoints(broker: Broker, gate: Gate) -> Iterable[Endpoint]:
    statistics, publishing = Statistics(broker), Publishing(broker)
    admin, configuration = Administration(broker), Configuration(broker)
    peeking = Peeking(broker, admin)
    return [
        ("GET", "/ping", statistics.ping),
        ("GET", "/info", statistics.info),
        ("GET", "/stats", statistics.stats),
        metrics_page(broker, gate).endpoint,
        *Health(lambda: broker.unready).endpoints(),
        ("POST", "/pub", publishing.pub),
        ("POST", "/mpub", publishing.mpub),
        # Older documented names.
        ("POST", "/put", publishing.pub),
        ("POST", "/mput", publishing.mpub),
        ("POST", "/topic/create", admin.create_topic),
        ("POST", "/topic/delete", admin.delete_topic),
        ("POST", "/topic/empty", admin.empty_topic),
        ("POST", "/topic/pause", admin.pause_topic),
        ("POST", "/topic/unpause", admin.unpause_topic),
        ("GET", "/topic/peek", peeking.topic),
        ("GET", "/channel/peek", peeking.channel),
        ("POST", "/channel/create", admin.create_channel),
        ("POST", "/channel/delete", admin.delete_channel),
        ("POST", "/channel/empty", admin.empty_channel),
        ("POST", "/channel/pause", admin.pause_channel),
        ("POST", "/channel/unpause", admin.unpause_channel),
        ("GET", "/config/<opt>", configuration.get),
        ("PUT", "/config/<opt>", configuration.put),
        *Debugging(broker).endpoints(),
    ]
