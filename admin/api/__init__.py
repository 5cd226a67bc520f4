"""The JSON API of NSQ 1.3. Spec: nsqadmin, sections 3 and 5."""

from __future__ import annotations

from collections.abc import Iterable

from admin.api.config import Configuration
from admin.api.doing import Doing
from admin.api.graphite import Graphite
from admin.api.looking import Looking
from admin.dashboard import Dashboard
from trionsq.web.app import Endpoint

__all__ = ["endpoints"]


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """/ping, /api, /config, and /render where it is wanted."""
    looking, doing = Looking(dashboard), Doing(dashboard)
    graphite, configuration = Graphite(dashboard), Configuration(dashboard)
    endpoints: list[Endpoint] = [
        ("GET", "/ping", looking.ping),
        ("GET", "/api/topics", looking.topics),
        ("POST", "/api/topics", doing.create),
        ("GET", "/api/topics/<topic>", looking.topic),
        ("POST", "/api/topics/<topic>", doing.topic_action),
        ("DELETE", "/api/topics/<topic>", doing.delete_topic),
        ("GET", "/api/topics/<topic>/<channel>", looking.channel),
        ("POST", "/api/topics/<topic>/<channel>", doing.channel_action),
        ("DELETE", "/api/topics/<topic>/<channel>", doing.delete_channel),
        ("GET", "/api/nodes", looking.nodes),
        ("GET", "/api/nodes/<node>", looking.node),
        ("DELETE", "/api/nodes/<node>", doing.tombstone),
        ("GET", "/api/counter", looking.counter),
        ("GET", "/api/graphite", graphite.rate),
        ("GET", "/config/<opt>", configuration.get),
        ("PUT", "/config/<opt>", configuration.put),
    ]
    if dashboard.options.proxy_graphite:
        endpoints.append(("GET", "/render", graphite.render))
    return endpoints
