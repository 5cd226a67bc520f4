"""The state that all parts of a dashboard share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import trio

from admin.access.guard import Access
from admin.cluster.queries import Cluster
from admin.notify import Notifier
from admin.operations import Operations
from admin.options import NsqadminOptions
from admin.upstream import Upstream
from admin.user_action import UserAction
from admin.watch.poller import Poller
from trionsq.histogram import Histogram

__all__ = ["Dashboard", "Role"]

Role = Literal["viewer", "operator", "admin"]


@dataclass
class Dashboard:
    """One nsqadmin, inside a trio run.

    Attributes:
        options: as started, `admin.options.validated`.
        upstream: requests to single nodes.
        cluster: requests to all nodes.
        poller: polls the statistics of all nodes, less often while no page is open.
        access: who may do what.
        observers: are called with each user action; they must not wait.
        operations: the user actions.
        tasks: name and function of each; they run as long as the dashboard.
        start_task: starts a further task; does nothing until the dashboard runs.
        stopping: set when the dashboard stops; event streams end then.
        http_port: where nsqadmin listens; -1: on a unix socket.
        loop_lag_s: lag of the event loop; None: the dashboard shares nsqd's loop.
    """

    options: NsqadminOptions
    upstream: Upstream
    access: Access
    cluster: Cluster = field(init=False)
    poller: Poller = field(init=False)
    operations: Operations = field(init=False)
    notify: Notifier | None = None
    observers: list[Callable[[UserAction], None]] = field(default_factory=list)
    tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = field(default_factory=list)
    start_task: Callable[[str, Callable[[], Awaitable[None]]], None] = lambda name, task: None
    stopping: trio.Event = field(default_factory=trio.Event)
    http_port: int = 0
    loop_lag_s: Histogram | None = None

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.upstream, self.options)
        self.poller = Poller(self.cluster, self.options, stopping=self.stopping)
        self.tasks.append(("nsqadmin poller", self.poller.run))
        self.observers.append(self.access.observe)
        self.observers.append(self.poller.marks.note_action)
        self.operations = Operations(self.cluster, self.access.user, self.observers)

    @property
    def base_path(self) -> str:
        """The prefix of every path: "" or ``/some/path``."""
        return "" if self.options.base_path == "/" else self.options.base_path

    def path(self, path: str) -> str:
        """The path of a page below the base path: ``/`` and a rest, quoted already."""
        return (self.base_path or "/") if path == "/" else self.base_path + path
