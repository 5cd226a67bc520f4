"""Names of nsqadmin's tasks, for the debug pages."""

from __future__ import annotations

from typing import Final

from trionsq.web.task_names import COMMON, Names, always, namer

__all__ = ["NAMED", "task_name"]

NAMED: Final[Names] = {
    **COMMON,
    "admin.daemon.run_nsqadmin": always("nsqadmin"),
    "admin.watch.poller.Poller.run": always("poller"),
    "admin.watch.poller.Poller._end_in_time": always("poller's end"),
    "admin.watch.poller.Poller._ask": always("poll of a node"),
    "admin.watch.poller.Poller._ask_ages": always("poll of a node's ages"),
    "admin.watch.poller.Poller._ask_for_nodes": always("poll for nodes"),
    "admin.notify.Notifier.run": always("notifications"),
    "admin.pages.site.Site.compile_templates": always("templates"),
    "admin.cluster.queries._answers.<locals>.note": always("request to a node"),
    "admin.cluster.queries.Cluster.inactive_topics.<locals>.ask": always("request to a node"),
}

task_name = namer(NAMED)
