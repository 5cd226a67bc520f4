"""The JSON API of NSQ 1.3. Spec: nsqadmin, sections 3 and 5."""

from __future__ import annotations

from collections.abc import Iterable

from admin.api.actions import Actions
from admin.api.config import Configuration
from admin.api.queries import Queries
from admin.dashboard import Dashboard
from admin.graphite import GraphiteEndpoints
from trionsq.web.app import Endpoint

__all__ = ["endpoints"]


def endpoints(dashboard: Dashboard) -> Iterable[Endpoint]:
    """/api, /config, and /render with --proxy-graphite."""
    queries, actions = Queries(dashboard), Actions(dashboard)
    graphite, configuration = GraphiteEndpoints(dashboard), Configuration(dashboard)
    endpoints: list[Endpoint] = [
        ("GET", "/api/topics", queries.topics),
        ("POST", "/api/topics", actions.create),
        ("GET", "/api/topics/<topic>", queries.topic),
        ("POST", "/api/topics/<topic>", actions.topic_action),
        ("DELETE", "/api/topics/<topic>", actions.delete_topic),
        ("GET", "/api/topics/<topic>/<channel>", queries.channel),
        ("POST", "/api/topics/<topic>/<channel>", actions.channel_action),
        ("DELETE", "/api/topics/<topic>/<channel>", actions.delete_channel),
        ("GET", "/api/nodes", queries.nodes),
        ("GET", "/api/nodes/<node>", queries.node),
        ("DELETE", "/api/nodes/<node>", actions.tombstone),
        ("GET", "/api/counter", queries.counter),
        ("GET", "/api/graphite", graphite.rate),
        ("GET", "/config/<opt>", configuration.get),
        ("PUT", "/config/<opt>", configuration.put),
    ]
    if dashboard.options.proxy_graphite:
        endpoints.append(("GET", "/render", graphite.render))
    return endpoints
