"""The result of one poll: a row for each node, topic and channel, a total, and the problems.

A row of a topic or channel has the sums over the nodes that answered. Rates are messages per
second; None if they are not known, as before the second poll. ``rate_out`` counts the messages that
clients finished, ``rate_removed`` the others that left a channel: emptied, dropped, expired, given
up. An original nsqd does not tell them apart: all count as finished there. For a topic, a node and
the total they are the sums of the channels. A published snapshot never changes.

Rows refer to no other objects, so the garbage collector skips them: in a large cluster it would
hold up the event loop for 70 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from admin.watch.vitals import Vitals

__all__ = [
    "ChannelRow",
    "NodeRow",
    "Problem",
    "Restart",
    "Row",
    "Severity",
    "Snapshot",
    "TopicRow",
    "WatchEndedError",
]

Severity = Literal["critical", "warning", "notice"]


class Row(Struct, eq=False, gc=False):
    """The fields of all rows.

    Attributes:
        depth: messages waiting, ``backend_depth`` of them on disk. Of a topic: its own queue; of a
            node and in total: at topics and channels together.
        messages: published (a channel: taken from the topic) since each node's start.
        oldest_age_s: age of the oldest waiting message, in seconds; 0 if none waits; None: unknown.
        paused: on one node at least.
        nodes: number of nodes in the sums.
        missing_nodes: nodes that had it at their last answer and do not answer now. They are not
            in the sums.
        missing_messages: their messages at that answer: waiting, in flight and deferred.
    """

    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    requeues: int = 0
    timeouts: int = 0
    clients: int = 0
    paused: bool = False
    nodes: int = 0
    missing_nodes: int = 0
    missing_messages: int = 0
    oldest_age_s: float | None = None
    rate_in: float | None = None
    rate_out: float | None = None
    rate_requeue: float | None = None
    rate_timeout: float | None = None
    rate_removed: float | None = None

    @property
    def memory_depth(self) -> int:
        """Of the depth, messages in memory."""
        return self.depth - self.backend_depth


class ChannelRow(Row, eq=False, gc=False):
    """A channel.

    Attributes:
        unserved_node: the name of a node where its messages wait and no client is connected.
        unserved_nodes: the number of such nodes; ``unserved_depth``: messages that wait there.
    """

    topic: str = ""
    channel: str = ""
    unserved_node: str = ""
    unserved_nodes: int = 0
    unserved_depth: int = 0


class TopicRow(Row, eq=False, gc=False):
    """A topic. In flight, deferred, requeues, timeouts and clients are its channels' sums.

    Attributes:
        channels: number of channel names.
        channels_depth: messages waiting at its channels, in addition to ``depth``.
        nbytes: bytes of bodies published since each node's start.
    """

    topic: str = ""
    channels: int = 0
    channels_depth: int = 0
    nbytes: int = 0


class NodeRow(Row, eq=False, gc=False):
    """An nsqd.

    Attributes:
        node: ``broadcast_address:http_port``.
        up: whether it answered this poll. If not, ``error`` says why, and the values are those of
            its last answer, at ``answered_s``.
        tcp_port: where clients connect, 0 if unknown.
        health: as the node reports it: ``OK`` or ``NOK - ...``.
        start_time: in seconds since 1970.
        draining: it refuses publishes until it is empty.
        answered_s: when it last answered, in seconds since 1970; None: never.
        registered: whether nsqlookupd (or the options) still lists it.
        expected: whether --expect-nsqd names it.
        out_of_date: whether another node has a newer version.
    """

    node: str = ""
    hostname: str = ""
    tcp_port: int = 0
    version: str = ""
    up: bool = False
    error: str = ""
    health: str = ""
    start_time: int = 0
    draining: bool = False
    answered_s: float | None = None
    registered: bool = True
    expected: bool = False
    out_of_date: bool = False
    topics: int = 0
    channels: int = 0


class Restart(Struct, frozen=True):
    """A restart of an nsqd.

    Attributes:
        at_s: its start, in seconds since 1970, as it says.
        held: messages at its last answer before.
        missing: of these, those that are gone and were not consumed, as far as it can be known.
    """

    at_s: float
    held: int
    missing: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the cluster.

    Attributes:
        severity: critical: messages are lost, refused or stuck, or will be soon; warning: check it
            today; notice: good to know.
        what: one sentence.
        where: the node, the topic, or ``topic / channel``; "" for the cluster.
        link: path of the page that shows it, below the base path.
        kind: the rule that found it.
        weight: messages at stake; orders problems of equal severity.
        since_s: when it was found first, in seconds since 1970; None: not known.
    """

    severity: Severity
    what: str
    where: str
    link: str
    kind: str
    weight: float = 0.0
    since_s: float | None = None


@dataclass(slots=True, eq=False)
class Snapshot:
    """The result of a poll.

    Attributes:
        sequence: counts the polls, from 1.
        taken_s: when it was complete, in seconds since 1970.
        poll_s: how long it took, in seconds.
        total: sums over the nodes that answered; ``nodes`` is their number, ``missing_nodes`` the
            number of the others.
        warnings: errors of nsqlookupds (or listed nsqds) that were asked for nodes;
            ``all_failed``: none of them answered.
        latencies: of topics and channels (``""``: the topic), up to three quantiles, the highest
            first, each with the seconds from publish to FIN.
        restarts: the restart of each node that had one.
        vitals: what nodes say of themselves.
        problems: the worst first, one for each place.
    """

    sequence: int
    taken_s: float
    poll_s: float = 0.0
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    topics: dict[str, TopicRow] = field(default_factory=dict)
    channels: dict[tuple[str, str], ChannelRow] = field(default_factory=dict)
    total: Row = field(default_factory=Row)
    warnings: list[str] = field(default_factory=list)
    all_failed: bool = False
    latencies: dict[tuple[str, str], Sequence[tuple[float, float]]] = field(default_factory=dict)
    restarts: dict[str, Restart] = field(default_factory=dict)
    vitals: dict[str, Vitals] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class WatchEndedError(Exception):
    """The poller has ended; there will be no more snapshots."""
