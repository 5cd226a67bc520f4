"""What one poll of the cluster found: a row for each node, topic and channel, and one of all.

A row of a topic or a channel has the sums over the nodes that answered. Rates are messages per
second; None where they are not known, which is before the second poll. ``rate_out`` is what left
a channel: finished, emptied or dropped; that of a topic, of a node and of all is the sum of its
channels'. Once published, nothing of a snapshot changes any more.

Rows hold no other objects, so the garbage collector need not look at them: in a large cluster it
would hold the event loop for 70 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

__all__ = ["ChannelRow", "NodeRow", "Problem", "Row", "Severity", "Snapshot", "TopicRow"]

Severity = Literal["critical", "warning", "notice"]


class Row(Struct, eq=False, gc=False):
    """What all rows have.

    Attributes:
        depth: messages waiting, those of ``backend_depth`` on disk. Of a topic: for its channels;
            of a node and of all: at topics and channels together.
        messages: published (a channel: taken from the topic) since each node's start.
        oldest_age_s: of the oldest message waiting, in seconds; 0 if none waits; None: not known.
        paused: on one node at least.
        nodes: how many nodes the row is the sum of.
        missing_nodes: nodes that had it at their last answer, and do not answer now. What they
            have is not in the row.
        missing_messages: what they held then: waiting, in flight and deferred.
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

    @property
    def memory_depth(self) -> int:
        """Of the depth, messages in memory."""
        return self.depth - self.backend_depth


class ChannelRow(Row, eq=False, gc=False):
    """A channel."""

    topic: str = ""
    channel: str = ""


class TopicRow(Row, eq=False, gc=False):
    """A topic. In flight, deferred, requeues, timeouts and clients are its channels' sums.

    Attributes:
        channels: how many there are, by name.
        channels_depth: what waits at its channels, in addition to ``depth``.
        nbytes: of bodies published since each node's start.
    """

    topic: str = ""
    channels: int = 0
    channels_depth: int = 0
    nbytes: int = 0


class NodeRow(Row, eq=False, gc=False):
    """An nsqd.

    Attributes:
        node: ``broadcast_address:http_port``.
        up: it answered this poll. If not, ``error`` says why, and the figures are those of its
            last answer, at ``answered_s``.
        tcp_port: where clients connect, 0 if it is not known.
        health: what it says of itself, as ``OK`` or ``NOK - ...``.
        start_time: in seconds since 1970.
        answered_s: when it last answered, in seconds since 1970; None: never.
        registered: nsqlookupd (or the options) still tells of it.
        out_of_date: a node with a newer version is there.
    """

    node: str = ""
    hostname: str = ""
    tcp_port: int = 0
    version: str = ""
    up: bool = False
    error: str = ""
    health: str = ""
    start_time: int = 0
    answered_s: float | None = None
    registered: bool = True
    out_of_date: bool = False
    topics: int = 0
    channels: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong.

    Attributes:
        severity: critical: messages are lost, refused or stuck, or will be soon; warning: somebody
            should look today; notice: good to know.
        what: one sentence.
        where: the node, the topic, or ``topic / channel``; "" for the cluster.
        link: path of the page that shows it, below the base path.
        kind: the rule that found it.
        weight: messages at stake; among equals the larger comes first.
    """

    severity: Severity
    what: str
    where: str
    link: str
    kind: str
    weight: float = 0.0


@dataclass(slots=True, eq=False)
class Snapshot:
    """What a poll found.

    Attributes:
        sequence: counts the polls, from 1.
        taken_s: when it was complete, in seconds since 1970.
        poll_s: how long it took, in seconds.
        total: of all nodes that answered; its ``nodes`` says how many, ``missing_nodes`` how many
            did not.
        warnings: what nsqlookupds (or listed nsqds) did not answer when asked for nodes.
        problems: what is wrong, the worst first.
    """

    sequence: int
    taken_s: float
    poll_s: float = 0.0
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    topics: dict[str, TopicRow] = field(default_factory=dict)
    channels: dict[tuple[str, str], ChannelRow] = field(default_factory=dict)
    total: Row = field(default_factory=Row)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
