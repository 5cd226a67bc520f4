"""What running daemons answer is what their documents say."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import pytest
import trio
from quart import has_request_context, request

from admin.daemon import running_nsqadmin
from admin.options import NsqadminOptions
from lookupd.daemon import running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import HttpAnswer
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import Request
from tests.openapi.documents import DAEMONS, Operation, operations, validator
from tests.openapi.draw import Drawn, draw
from tests.soak import by_level, more_in_soak
from trionsq.testing import open_broker
from trionsq.web.protocol import Query, parse_query

SEED = 20261123
CASES = by_level(test=8, short=24, full=400)
# Pages take long: of their cases there are so many fewer.
FEWER = by_level(test=6, short=8, full=20)
SLOW: Final = {"debug", "pages"}
LIMIT_S = 60.0
TOPIC, CHANNEL = "orders", "billing"
# A stream without an end, and a page that takes a second at least and 30 for most faults.
LEFT_OUT: Final = {"events", "pprofProfile"}
# There is no Graphite, no page whose token a request could have, no message in flight, and perhaps
# no policy of the name.
WITHOUT_SUCCESS: Final = {
    *("graphiteRate", "render", "pprofSymbols"),
    *("addDeadLetter", "cancelDeferred", "requeueDeferred", "policy", "deletePolicy"),
    *("finishMessage", "requeueMessage", "downloadMessage", "drainPage", "deadLettersForm"),
}
# What else they need to succeed.
NAMES: Final = {"moveTopic": {"topic": "plain"}, "createChannel": {"channel": "new"}}
# By operation: why a right request may be refused with 400.
REFUSALS: Final = {
    "createTopic": ("EPHEMERAL_TOPIC_HAS_NO_LOG",),
    "moveTopic": ("EPHEMERAL_TOPIC_HAS_NO_LOG",),
    "changeTopicSettings": ("INVALID_DURABILITY",),
    "createChannel": ("EPHEMERAL_CHANNEL_HAS_NO_POSITION", "TOPIC_HAS_NO_LOG"),
    "seekChannel": ("EPHEMERAL_CHANNEL_HAS_NO_POSITION", "TOPIC_HAS_NO_LOG"),
    "peekTopic": ("OFFSET_TOO_FAR",),
    "readTopicLog": ("INVALID_ARG_AFTER", "TOPIC_HAS_NO_LOG"),
    "peekChannel": ("OFFSET_TOO_FAR",),
    "getOption": ("INVALID_OPTION",),
    "setOption": ("INVALID_OPTION", "INVALID_VALUE"),
}


@dataclass
class Live:
    """A running daemon.

    Attributes:
        address: host:port of HTTP.
        names: values of parameters that are there.
        restore: makes the topic and its channel again, which requests may have deleted.
    """

    address: str
    names: Mapping[str, str]
    restore: Callable[[], object]


@asynccontextmanager
async def live(daemon: str) -> AsyncIterator[Live]:
    """Run a daemon, and those that it needs."""
    names = {"topic": TOPIC, "channel": CHANNEL, "opt": "log_level", "asset": "base.css"}
    lookupd_options = NsqlookupdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    async with AsyncExitStack() as stack:
        lookupd = await stack.enter_async_context(running_nsqlookupd(lookupd_options))
        lookupds = (f"127.0.0.1:{lookupd.http_port}",)
        if daemon == "nsqlookupd":
            restore = partial(lookupd.registry.create_channel, TOPIC, CHANNEL)
            yield Live(lookupds[0], names, restore)
            return
        nsqd = await stack.enter_async_context(
            open_broker(
                broadcast_address="127.0.0.1",
                lookupd_tcp_address=(f"127.0.0.1:{lookupd.tcp_port}",),
                storage="log",
            )
        )

        def restore_nsqd() -> None:
            nsqd.broker.drain.cancel()
            nsqd.broker.topic(TOPIC, "log").channel(CHANNEL)
            nsqd.broker.topic("plain", "default")

        if daemon == "nsqd":
            yield Live(nsqd.http_address, names, restore_nsqd)
            return
        dashboard = await stack.enter_async_context(
            running_nsqadmin(
                NsqadminOptions(
                    http_address="127.0.0.1:0",
                    lookupd_http_address=lookupds,
                    graphite_url="http://127.0.0.1:1",
                    proxy_graphite=True,
                )
            )
        )

        def restore_all() -> None:
            restore_nsqd()
            lookupd.registry.create_channel(TOPIC, CHANNEL)
            dashboard.cluster.lookupd_addresses = lookupds

        names["node"] = nsqd.http_address
        yield Live(f"127.0.0.1:{dashboard.http_port}", names, restore_all)


class Asked:
    """Notes which parameters the endpoint of the current operation asks for.

    Attributes:
        names: by operationId.
        current: the operationId.
        port: of the daemon; others answer its requests.
    """

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}
        self.current = ""
        self.port = 0

    def parse(self, raw: bytes) -> Query:
        """Stands for `parse_query`."""
        if has_request_context():
            server = request.scope["server"]
            if server is not None and server[1] != self.port:
                return parse_query(raw)
        noted = self.names.setdefault(self.current, set())

        class Noting(dict[bytes, bytes]):
            def get(self, name: bytes, default: Any = None) -> Any:
                noted.add(name.decode())
                return super().get(name, default)

            def __contains__(self, name: object) -> bool:
                assert isinstance(name, bytes)
                noted.add(name.decode())
                return super().__contains__(name)

        return Noting(parse_query(raw))


@dataclass
class Findings:
    """What was sent and answered.

    Attributes:
        problems: what an answer has that the document has not.
        statuses: how often, by operationId and status.
    """

    problems: list[str] = field(default_factory=list)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)


async def send(address: str, operation: Operation, drawn: Drawn) -> HttpAnswer:
    host, _, port = address.rpartition(":")
    asking = Request(operation.method, drawn.target, drawn.headers, drawn.body)
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        with trio.fail_after(LIMIT_S):
            return await exchange_http(SocketConnection(stream), asking)


def problems(operation: Operation, drawn: Drawn, answer: HttpAnswer) -> Iterator[str]:
    """What the document does not say of an answer."""
    status = answer.status
    if drawn.is_odd_path and status in (301, 307, 404, 405):
        return
    response = operation.responses.get(status)
    if response is None:
        yield "this status is not documented"
        return
    if status < 400 and drawn.must_fail:
        yield "it is accepted"
    if status == 400 and not drawn.fault and "pages" not in operation.tags:
        code = json.loads(answer.body)["message"].partition(":")[0]
        if code not in REFUSALS.get(operation.name, ()):
            yield "a right request is refused"
    content = response.get("content", {})
    kind = answer.headers.get("content-type", "")
    if "*/*" in content or not (kind or answer.body):
        return
    if kind not in content:
        yield f"Content-Type {kind} is not documented"
        return
    schema = content[kind].get("schema", {})
    is_json = kind.startswith("application/json")
    value = json.loads(answer.body) if is_json else answer.body.decode(errors="replace")
    yield from (error.message for error in validator(operation.daemon, schema).iter_errors(value))


async def explore(daemon: str, cases: int, seed: int, asked: Asked) -> Findings:
    """Send that many requests to each operation of a daemon."""
    findings = Findings()
    async with live(daemon) as running:
        asked.port = int(running.address.rpartition(":")[2])
        for operation in operations(daemon):
            if operation.name in LEFT_OUT:
                continue
            random = Random(f"{seed} {operation.name}")
            asked.current = operation.name
            count = cases if SLOW.isdisjoint(operation.tags) else -(-cases // FEWER)
            names = {**running.names, **NAMES.get(operation.name, {})}
            required = [one.name for one in operation.parameters if one.is_required]
            missing = [name for name in required if name in operation.query_names]
            ask = partial(draw, random, operation, names)
            requests = [ask(is_whole=True), *(ask(is_whole=True, without=one) for one in missing)]
            for drawn in [*requests, *(ask() for _ in range(count))]:
                running.restore()
                answer = await send(running.address, operation, drawn)
                findings.statuses[operation.name, answer.status] += 1
                for problem in problems(operation, drawn, answer):
                    shown = f"{operation.method} {drawn.target} ({drawn.fault}) {drawn.body[:60]!r}"
                    body = answer.body[:200]
                    findings.problems.append(f"{shown} -> {answer.status} {body!r}: {problem}")
    return findings


@pytest.fixture
def log_level() -> Iterator[None]:
    """PUT /config/log_level changes the level for this process."""
    logger = logging.getLogger("trionsq")
    level = logger.level
    yield
    logger.setLevel(level)


@contextmanager
def noted_queries() -> Iterator[Asked]:
    """Every query of a request is noted."""
    asked = Asked()
    with pytest.MonkeyPatch.context() as patch:
        for module in ("web.request", "http.fast_path", "http.fast_connection"):
            patch.setattr(f"trionsq.{module}.parse_query", asked.parse)
        yield asked


@more_in_soak
@pytest.mark.usefixtures("log_level")
@pytest.mark.parametrize("daemon", DAEMONS)
async def test_answers_are_documented(daemon: str, caplog: pytest.LogCaptureFixture) -> None:
    """Right and wrong requests get a status, a type and a body of the document; wrong ones are
    refused and right ones are not; endpoints ask for the parameters of the document."""
    with noted_queries() as asked, caplog.at_level("ERROR", "trionsq"):
        findings = await explore(daemon, CASES, SEED, asked)
    print(*sorted(findings.statuses.items()), sep="\n")
    assert findings.problems == []
    # The short way of nsqd's server reads a topic before it knows the path.
    asked.names["ping"] = set()
    for operation in operations(daemon):
        if operation.name in LEFT_OUT or "pages" in operation.tags:
            continue
        names = asked.names.get(operation.name, set())
        assert names == operation.query_names, operation.name
        statuses = {status for name, status in findings.statuses if name == operation.name}
        assert min(statuses) < 400 or operation.name in WITHOUT_SUCCESS, (operation, statuses)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
