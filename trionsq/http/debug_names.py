"""Names of tasks that a user of the broker understands.

By the function that a task runs; a test sees to it that none of a running nsqd's is unknown.
"""

from __future__ import annotations

from typing import Final

from trionsq.web.task_names import COMMON, Locals, Names, always, namer, peer_of

__all__ = ["NAMED", "task_name"]


def _client(found: Locals) -> str:
    return f"client {found['self'].peer}"


def _sibling(found: Locals) -> str:
    return f"client {found['self'].peer} {found['task'].__name__.strip('_')}"


def _channel(found: Locals) -> str:
    return f"channel {found['self'].topic.name}:{found['self'].name}"


NAMED: Final[Names] = {
    **COMMON,
    "trionsq.local.nsqd_daemon.run_nsqd": always("nsqd"),
    "trionsq.local.nsqd_daemon._heed_signals": always("signals"),
    "trionsq.local.up.cluster.run_cluster": always("cluster"),
    "trionsq.local.up.cluster.Cluster._run_part": lambda found: str(found["member"].part.name),
    "trionsq.local.up.cluster._watch_signals": always("signals"),
    "trionsq.local.up.child.run_part": lambda found: str(found["kind"]),
    "trionsq.local.up.child._watch_parent": always("end of the parent"),
    "trionsq.local.up.child._watch_signals": always("signals"),
    # in the process of an nsqd, but no part of it
    "lookupd.daemon.Lookupd.serve_socket": (
        lambda found: f"nsqlookupd client {peer_of(found['accepted'])}"
    ),
    # nsqadmin's, beside it (--admin) or with it (trionsq up)
    "admin.pages.site.Site.compile_templates": always("nsqadmin's templates"),
    "admin.watch.poller.Poller.run": always("nsqadmin's poller"),
    "admin.watch.poller.Poller._end_in_time": always("nsqadmin's poller's end"),
    "admin.watch.poller.Poller._ask": always("nsqadmin's poll of a node"),
    "admin.watch.poller.Poller._ask_ages": always("nsqadmin's poll of a node's ages"),
    "admin.watch.poller.Poller._ask_for_nodes": always("nsqadmin's poll for nodes"),
    "admin.cluster.queries._answers.<locals>.note": always("nsqadmin's request to a node"),
    "admin.cluster.queries.Cluster.inactive_topics.<locals>.ask": (
        always("nsqadmin's request to a node")
    ),
    "trionsq.local.demo.produce": lambda found: f"demo producer for {found['address']}",
    "trionsq.local.demo.consume": always("demo consumer"),
    "trionsq.local.demo.report": always("demo report"),
    "trionsq.local.nsqd_daemon._run_broker": always("broker"),
    "trionsq.local.nsqd_daemon._serve_http": always("http server"),
    "trionsq.broker.broker.Broker.run": always("broker"),
    "trionsq.broker.background.ThreadBackground.run": always("disk jobs"),
    "trionsq.broker.background.ThreadBackground._run": always("disk job"),
    "trionsq.broker.metadata.MetadataKeeper.run": always("metadata"),
    "trionsq.broker.metadata.MetadataKeeper.run_id_reserve": always("message id reserve"),
    "trionsq.broker.checks.Checks.run": always("checks"),
    "trionsq.broker.chores.Chores.run": always("long work, in turns"),
    "trionsq.broker.timers.run_queue_scan": always("queue scan"),
    "trionsq.broker.timers.run_heartbeats": always("heartbeats"),
    "trionsq.broker.timers.run_disk_syncs": always("disk syncs"),
    "trionsq.broker.timers.run_disk_retries": always("disk retries"),
    "trionsq.broker.lookup.Lookups.run": always("nsqlookupds"),
    "trionsq.broker.lookup_peer.LookupPeer.run": lambda found: f"nsqlookupd {found['self'].shown}",
    "trionsq.broker.lookup_channels.ask_for_channels.<locals>.ask": (
        lambda found: f"question for channels to {found['info'].http_address}"
    ),
    "trionsq.broker.statsd.Statsd.run": always("statsd"),
    "trionsq.broker.topic.Topic.run": lambda found: f"topic {found['self'].name}",
    "trionsq.broker.channel.Channel.run": _channel,
    "trionsq.broker.client.Client.serve": _client,
    "trionsq.broker.client.Client._sibling": _sibling,
    "trionsq.broker.client.Client.close_at_end_of_input": (
        lambda found: f"client {found['self'].peer} is awaited while AUTH is asked for"
    ),
    "trionsq.http.short_way.ShortWay.watch": always("http time-outs"),
    "trionsq.http.serve.HttpServer.prepare": always("http server's start"),
}

task_name = namer(NAMED)
