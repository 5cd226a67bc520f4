"""The nodes of a cluster during one command: all are asked at once, within the limits of requests.

A node that fails is noted, and the others go on.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import trio

from admin.cluster.queries import url_of
from admin.cluster.shapes import Lookup, Named, NodeList, NodeStats, TopicStats
from admin.cluster.steps import Step
from admin.cluster.turns import node_stats
from admin.options import OptionsError
from admin.upstream import Upstream, UpstreamError
from trionsq.local.operate.flags import Call
from trionsq.local.operate.output import Report, printable, write_json, write_lines
from trionsq.logtext import first_error

__all__ = ["CommandError", "Session", "run"]

T = TypeVar("T")

# As shells report the end by SIGINT.
_INTERRUPTED: Final = 130


class CommandError(Exception):
    """The command ends with one line and an exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Session:
    """Asks nodes, and notes those that fail.

    Attributes:
        lookupds: host:port of nsqlookupds.
        as_json: the output is one JSON document.
        failures: what failed, by node.
    """

    def __init__(self, upstream: Upstream, call: Call) -> None:
        self.upstream = upstream
        self.lookupds = call.options.lookupd_http_address
        self.as_json = call.as_json
        self.failures: dict[str, str] = {}
        self._nsqds = call.options.nsqd_http_address

    @property
    def is_direct(self) -> bool:
        """Whether the flags name nsqds."""
        return bool(self._nsqds)

    async def nodes(self) -> list[str]:
        """host:port of the nsqds: those of the flags, else those that nsqlookupds know; sorted.

        Raises:
            CommandError: no nsqlookupd answers.
        """
        if self._nsqds:
            return sorted(self._nsqds)
        lists = await self._ask_lookupds("/nodes", NodeList)
        return sorted({one.node for known in lists for one in known.producers or ()})

    async def registered_topics(self) -> list[str]:
        """The topics that nsqlookupds know, maybe on no nsqd. Raises as `nodes`."""
        if self._nsqds:
            return []
        lists = await self._ask_lookupds("/topics", Named)
        return sorted({name for known in lists for name in known.topics or ()})

    async def is_registered(self, topic: str, channel: str) -> bool:
        """Whether an nsqlookupd knows the topic or, if it is named, the channel."""

        async def ask(address: str) -> bool:
            url = url_of(address, "/lookup", topic=topic)
            try:
                lookup = await self.upstream.get_json(url, Lookup)
            except UpstreamError as error:
                if error.status == 404:
                    return False
                raise
            return not channel or channel in (lookup.channels or ())

        return any((await self.each(self.lookupds, ask)).values())

    async def stats(self, nodes: Iterable[str], topic: str = "") -> dict[str, NodeStats]:
        """The statistics of nodes, without clients."""
        query = {"format": "json", "include_mem": "false", "include_clients": "false"}
        query |= {"topic": topic} if topic else {}

        async def ask(node: str) -> NodeStats:
            return await node_stats(
                node, await self.upstream.get_bytes(url_of(node, "/stats", **query))
            )

        return await self.each(nodes, ask)

    async def topic_stats(self, topic: str) -> dict[str, TopicStats]:
        """The statistics of a topic on each node that has it. Raises as `nodes`."""
        answers = await self.stats(await self.nodes(), topic)
        return {
            node: one
            for node, stats in answers.items()
            for one in stats.topics or ()
            if one.topic_name == topic
        }

    async def get(self, nodes: Iterable[str], path: str, **query: str) -> dict[str, dict[str, Any]]:
        """The JSON objects at a path of nodes."""

        async def ask(node: str) -> dict[str, Any]:
            return await self.upstream.get_json(url_of(node, path, **query), dict)

        return await self.each(nodes, ask)

    async def take(self, step: Step) -> dict[str, bytes]:
        """Send a step's POST to its nodes; what those answered that did it."""

        async def ask(node: str) -> bytes | None:
            try:
                return await self.upstream.post(url_of(node, step.path, **step.query))
            except UpstreamError as error:
                if step.if_there and error.status == 404:
                    return None
                raise

        answers = await self.each(step.addresses, ask)
        return {node: answer for node, answer in answers.items() if answer is not None}

    async def each(self, nodes: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """What ``ask`` returns for each node that does not fail, in the order of the nodes."""
        order = list(nodes)
        answers: dict[str, T] = {}

        async def note(node: str) -> None:
            try:
                answers[node] = await ask(node)
            except UpstreamError as error:
                self.failures[node] = str(error)

        async with trio.open_nursery() as nursery:
            for node in order:
                nursery.start_soon(note, node, name=f"request to {node}")
        return {node: answers[node] for node in order if node in answers}

    async def _ask_lookupds(self, path: str, kind: type[T]) -> list[T]:
        async def ask(address: str) -> T:
            return await self.upstream.get_json(url_of(address, path), kind)

        answers = await self.each(self.lookupds, ask)
        if not answers:
            raise CommandError("no nsqlookupd answered")
        return list(answers.values())


def run(call: Call, work: Callable[[Session], Awaitable[Report]]) -> int:
    """Do *work* with the nodes of a call, print its report and what failed; the exit code."""
    code = _INTERRUPTED
    try:
        code = trio.run(_run, call, work)
    except* OptionsError as group:  # a file of TLS
        print(f"trionsq: {first_error(group)}", file=sys.stderr)
        code = 2
    except* KeyboardInterrupt:
        print("trionsq: interrupted; a change may have reached some nodes", file=sys.stderr)
    return code


async def _run(call: Call, work: Callable[[Session], Awaitable[Report]]) -> int:
    async with Upstream(call.options) as upstream:
        session = Session(upstream, call)
        try:
            report = await work(session)
        except CommandError as error:
            report = Report({}, [], error.code)
            failures = [*sorted(session.failures.items()), ("", str(error))]
        else:
            failures = sorted(session.failures.items())
    for node, text in failures:
        print(f"trionsq: {node + ': ' if node else ''}{printable(text)}", file=sys.stderr)
    if call.as_json:
        errors = [{"node": node or None, "error": text} for node, text in failures]
        write_json({**report.document, "errors": errors})
    else:
        write_lines(report.lines)
    return report.code or (1 if failures else 0)
