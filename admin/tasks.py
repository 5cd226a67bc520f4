"""Names of nsqadmin's tasks, for the debug pages."""

from __future__ import annotations

from typing import Final

from trionsq.web.task_names import COMMON, Names, always, namer

__all__ = ["NAMED", "task_name"]

NAMED: Final[Names] = {
    **COMMON,
    "admin.daemon.run_nsqadmin": always("nsqadmin"),
    "admin.notify.Notifier.run": always("notifications"),
    "admin.cluster.queries._answers.<locals>.note": always("request to a node"),
    "admin.cluster.queries.Cluster.inactive_topics.<locals>.ask": always("request to a node"),
}

task_name = namer(NAMED)
