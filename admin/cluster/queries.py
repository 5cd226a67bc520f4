"""Questions to the cluster: all nodes are asked at once, and their answers become one.

Nodes come from nsqlookupds (--lookupd-http-address) or from the options (--nsqd-http-address). A
node without an answer causes a warning; only if no node answers is there an error. Spec: nsqadmin,
sections 1 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

import trio

from admin.cluster.shapes import Info, Lookup, Named, NodeList, NodeStats, Producer, version_key
from admin.cluster.turns import node_stats
from admin.options import NsqadminOptions
from admin.upstream import Upstream, UpstreamError

__all__ = [
    "HUNG_S",
    "INACTIVE_S",
    "LATE_S",
    "SILENT_S",
    "AllFailed",
    "Cluster",
    "QueryResult",
    "url_of",
]

T = TypeVar("T")

SILENT_S: Final = 1.0
"""Timeout for nodes that did not answer recently, while a page waits."""
LATE_S: Final = 2.0
"""Wait of a page for missing answers, after the last answer."""
HUNG_S: Final = 1.0
"""Timeout for nsqlookupds where the poller knows the nodes anyway."""
INACTIVE_S: Final = 15.0
"""Time limit of `Cluster.inactive_topics`, which asks for the channels of many topics."""


class AllFailed(Exception):
    """Nobody answered; ``str()`` is as NSQ 1.3 words it.

    Attributes:
        errors: one for each address.
    """

    def __init__(self, whom: str, errors: Sequence[UpstreamError]) -> None:
        super().__init__(f"failed to query any {whom}: " + "\n".join(map(str, errors)))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[T]):
    """The answers as one value, and the errors of those that failed."""

    value: T
    warnings: list[str]


def url_of(address: str, path: str, **query: str) -> str:
    """``http://address/path?query``."""
    return f"http://{address}{path}" + (f"?{urlencode(query)}" if query else "")


class Cluster:
    """Asks all nodes of a cluster.

    Attributes:
        lookupd_addresses: host:port of nsqlookupds; /config may change them.
        nsqd_addresses: host:port of nsqds, if there is no nsqlookupd.
    """

    def __init__(self, upstream: Upstream, options: NsqadminOptions) -> None:
        self.upstream = upstream
        self.lookupd_addresses: tuple[str, ...] = options.lookupd_http_address
        self.nsqd_addresses: tuple[str, ...] = options.nsqd_http_address

    @property
    def is_direct(self) -> bool:
        """Whether nodes come from the options, without nsqlookupd."""
        return bool(self.nsqd_addresses)

    async def topics(
        self, *, late_s: float = LATE_S, first_s: float = math.inf
    ) -> QueryResult[list[str]]:
        """All topics, sorted; ``late_s`` and ``first_s`` as in `producers`.

        Raises:
            AllFailed: nobody answered.
        """
        if self.is_direct:
            result = await self._direct(late_s=late_s, first_s=first_s)
            return QueryResult(
                _union(_topics_of(stats) for _, stats in result.value), result.warnings
            )
        answers = await self._query_lookupds("/topics", Named, late_s, first_s)
        return QueryResult(
            _union(names.topics or () for _, names in answers.value), answers.warnings
        )

    async def inactive_topics(
        self, *, late_s: float = LATE_S, first_s: float = math.inf
    ) -> QueryResult[dict[str, list[str]]]:
        """Topics registered in nsqlookupds without a producer, with their channels; sorted.

        ``late_s`` and ``first_s`` as in `producers`; an nsqlookupd that is left out may know a
        producer.

        Raises:
            AllFailed: nobody answered.
        """
        if self.is_direct:
            return QueryResult({}, [])
        topics = await self.topics(late_s=late_s, first_s=first_s)
        nodes = await self.nodes(late_s=late_s, first_s=first_s)
        active = set[str]().union(*map(_visible_topics, nodes.value))
        names = [name for name in topics.value if name not in active]
        warnings = [*topics.warnings, *nodes.warnings]
        channels: dict[str, list[str]] = {}

        async def ask(name: str) -> None:
            try:
                result = await self._query_lookupds("/channels", Named, topic=name)
            except AllFailed as failure:
                warnings.extend(map(str, failure.errors))
                return
            warnings.extend(result.warnings)
            channels[name] = _union(named.channels or () for _, named in result.value)

        with trio.move_on_after(INACTIVE_S):
            await _each(names, ask)
        if len(channels) < len(names) and not warnings:
            warnings.append(f"not all channels are known within {INACTIVE_S:g} s")
        known = {name: channels.get(name, []) for name in names}
        return QueryResult(known, list(dict.fromkeys(warnings)))

    async def nodes(
        self, *, late_s: float = LATE_S, first_s: float = math.inf
    ) -> QueryResult[list[Producer]]:
        """All nsqds, sorted by host name and address, with ``out_of_date`` set.

        ``late_s`` and ``first_s`` as in `producers`.

        Raises:
            AllFailed: nobody answered.
        """
        if self.is_direct:
            direct = await self._direct(late_s=late_s, first_s=first_s)
            result = QueryResult([producer for producer, _ in direct.value], direct.warnings)
        else:
            answers = await self._query_lookupds("/nodes", NodeList, late_s, first_s)
            lists = [(address, nodes.producers or []) for address, nodes in answers.value]
            result = QueryResult(_joined(lists), answers.warnings)
        _mark_out_of_date(result.value)
        result.value.sort(key=lambda node: (node.hostname, node.broadcast_address, node.http_port))
        return result

    async def producers(
        self, topic: str, *, late_s: float = LATE_S, first_s: float = math.inf
    ) -> QueryResult[list[Producer]]:
        """The nsqds that have a topic; maybe none.

        Args:
            topic: its name.
            late_s: seconds after the last answer until missing ones are left out, with a warning;
                without a limit, as long as a request may take.
            first_s: seconds to wait for the first answer.

        Raises:
            AllFailed: nobody answered; also if no nsqlookupd knows the topic.
        """
        if self.is_direct:
            direct = await self._direct(topic, late_s, first_s)
            having = [producer for producer, stats in direct.value if topic in _topics_of(stats)]
            return QueryResult(having, direct.warnings)
        answers = await self._query_lookupds("/lookup", Lookup, late_s, first_s, topic=topic)
        lists = [(address, lookup.producers or []) for address, lookup in answers.value]
        return QueryResult(_joined(lists), answers.warnings)

    async def stats(
        self,
        producers: Sequence[Producer],
        *,
        topic: str = "",
        channel: str = "",
        clients: bool = False,
        late_s: float = LATE_S,
    ) -> QueryResult[dict[str, NodeStats | UpstreamError]]:
        """The statistics of nsqds, or the error of each, by ``Producer.node``.

        Args:
            producers: the nodes.
            topic: only this topic.
            channel: only this channel of ``topic``.
            clients: whether to include consumers.
            late_s: as in `producers`.

        Raises:
            AllFailed: no node answered, or there are no nodes.
        """
        result = await self.each_stats(
            producers, topic=topic, channel=channel, clients=clients, late_s=late_s
        )
        errors = [each for each in result.values() if isinstance(each, UpstreamError)]
        if len(errors) == len(result):
            raise AllFailed("nsqd", errors)
        return QueryResult(result, list(map(str, errors)))

    async def each_stats(
        self,
        producers: Sequence[Producer],
        *,
        topic: str = "",
        channel: str = "",
        clients: bool = False,
        late_s: float = LATE_S,
        first_s: float = math.inf,
        silent: Collection[str] = (),
    ) -> dict[str, NodeStats | UpstreamError]:
        """As `stats`, but raises nothing; nodes in ``silent`` get at most `SILENT_S`."""
        query = {"format": "json", "include_mem": "false"}
        query["include_clients"] = "true" if clients else "false"
        query |= {"topic": topic} if topic else {}
        query |= {"channel": channel} if channel else {}

        async def ask(producer: Producer) -> NodeStats:
            url = url_of(producer.node, "/stats", **query)
            limit_s = SILENT_S if producer.node in silent else None
            body = await self.upstream.get_bytes(url, timeout_s=limit_s)
            return await node_stats(producer.node, body)

        return await _answers({node.node: node for node in producers}, ask, late_s, first_s)

    async def info(self, node: str) -> Info:
        """The /info of the nsqd at host:port. Raises UpstreamError."""
        return await self.upstream.get_json(url_of(node, "/info"), Info)

    async def _query_lookupds(
        self,
        path: str,
        kind: type[T],
        late_s: float = LATE_S,
        first_s: float = math.inf,
        **query: str,
    ) -> QueryResult[list[tuple[str, T]]]:
        async def ask(address: str) -> T:
            return await self.upstream.get_json(url_of(address, path, **query), kind)

        addresses = {address: address for address in self.lookupd_addresses}
        return _without_errors("nsqlookupd", await _answers(addresses, ask, late_s, first_s))

    async def _direct(
        self, topic: str = "", late_s: float = LATE_S, first_s: float = math.inf
    ) -> QueryResult[list[tuple[Producer, NodeStats]]]:
        """The nsqds of the options, with the statistics of all topics or one."""
        query = {"format": "json", "include_mem": "false", "include_clients": "false"}
        query |= {"topic": topic} if topic else {}

        async def ask(address: str) -> tuple[Producer, NodeStats]:
            info = await self.info(address)
            body = await self.upstream.get_bytes(url_of(address, "/stats", **query))
            stats = await node_stats(address, body)
            return _direct_producer(info, stats), stats

        addresses = {address: address for address in self.nsqd_addresses}
        answers = _without_errors("nsqd", await _answers(addresses, ask, late_s, first_s))
        return QueryResult([pair for _, pair in answers.value], answers.warnings)


async def _each(items: Iterable[T], function: Callable[[T], Awaitable[None]]) -> None:
    """Call ``function`` for all items at once; `Upstream` limits the requests."""
    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(function, item, name=f"nsqadmin request about {item}")


K = TypeVar("K")


async def _answers(
    targets: Mapping[str, K],
    ask: Callable[[K], Awaitable[T]],
    late_s: float,
    first_s: float = math.inf,
) -> dict[str, T | UpstreamError]:
    """The answer or error of each, in the order of ``asked``.

    Waits ``first_s`` for the first answer, then ``late_s`` after each answer for the next one. An
    error response is an answer, too.
    """
    result: dict[str, T | UpstreamError] = {}
    began_s = trio.current_time()

    async def note(name: str) -> None:
        try:
            result[name] = await ask(targets[name])
        except UpstreamError as error:
            result[name] = error
            if error.status is None:
                return
        nursery.cancel_scope.deadline = trio.current_time() + late_s

    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = began_s + first_s
        for name in targets:
            nursery.start_soon(note, name, name=f"nsqadmin request to {name}")
    waited_s = trio.current_time() - began_s
    for name in targets:
        if name not in result:
            result[name] = UpstreamError(name, f"{name}: no answer within {waited_s:.1f} s")
    return {name: result[name] for name in targets}


def _without_errors(
    whom: str, answers: Mapping[str, T | UpstreamError]
) -> QueryResult[list[tuple[str, T]]]:
    good, errors = list[tuple[str, T]](), list[UpstreamError]()
    for name, answer in answers.items():
        if isinstance(answer, UpstreamError):
            errors.append(answer)
        else:
            good.append((name, answer))
    if not good:
        raise AllFailed(whom, errors)
    return QueryResult(good, list(map(str, errors)))


def _union(lists: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for names in lists for name in names})


def _topics_of(stats: NodeStats) -> list[str]:
    return [topic.topic_name for topic in stats.topics or ()]


def _visible_topics(node: Producer) -> list[str]:
    """The topics of a node that are not tombstoned."""
    topics, hidden = node.topics or [], node.tombstones or []
    return [*compress(topics, map(not_, hidden)), *topics[len(hidden) :]]


def _joined(lists: Iterable[tuple[str, Sequence[Producer]]]) -> list[Producer]:
    """Each node once, with its address as each nsqlookupd knows it."""
    nodes: dict[str, Producer] = {}
    for lookupd, producers in lists:
        for producer in producers:
            node = nodes.setdefault(producer.tcp_node, producer)
            if node is producer:
                node.remote_addresses, node.out_of_date = [], False
            assert node.remote_addresses is not None
            node.remote_addresses.append(f"{lookupd}/{producer.remote_address}")
    return list(nodes.values())


def _direct_producer(info: Info, stats: NodeStats) -> Producer:
    topics = sorted(_topics_of(stats))
    return Producer(
        hostname=info.hostname,
        broadcast_address=info.broadcast_address,
        tcp_port=info.tcp_port,
        http_port=info.http_port,
        version=info.version,
        topics=topics,
        tombstones=[False] * len(topics),
    )


def _mark_out_of_date(nodes: Iterable[Producer]) -> None:
    keys = {id(node): version_key(node.version) for node in nodes}
    newest = max(keys.values(), default=())
    for node in nodes:
        node.out_of_date = keys[id(node)] < newest
