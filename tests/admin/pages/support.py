"""A dashboard in this process, in front of nodes that are only JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio
from quart import Response
from quart_trio import QuartTrio

from admin.access.guard import Access
from admin.access.modes import Mode
from admin.access.users import FixedUsers
from admin.app import create_admin_app
from admin.dashboard import Dashboard
from admin.options import NsqadminOptions, validated
from admin.upstream import Upstream, UpstreamError

LOOKUPD = "lookupd:4161"
HANGS_S = 5.0


def channel(name: str, **figures: Any) -> dict[str, Any]:
    """A channel of /stats."""
    return {"channel_name": name, **figures}


def topic(name: str, *channels: Mapping[str, Any], **figures: Any) -> dict[str, Any]:
    """A topic of /stats."""
    return {"topic_name": name, "channels": list(channels), **figures}


@dataclass
class Nodes:
    """The cluster: topics by node; ``None`` instead of topics: that node does not answer.

    Attributes:
        inactive: topics that only nsqlookupd knows, with their channels.
        original: nodes without /topic/peek.
        messages: what peeking shows.
        posted: what nodes were told, in order: URL and body.
        down: nsqlookupd does not answer.
        hangs: nsqlookupd takes requests, and answers after `HANGS_S`.
        restarted: nsqlookupd knows nothing so far.
        settings: what nodes say at /topic/settings; None: they have no such path.
        documents: what nodes answer to other paths; a number: the status of a refusal.
        refused: the status of each POST to a node.
        sent: what nodes were told by PUT and DELETE: method, URL and body.
    """

    topics: dict[str, list[dict[str, Any]] | None]
    inactive: dict[str, list[str]] = field(default_factory=dict)
    original: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    posted: list[tuple[str, bytes]] = field(default_factory=list)
    gets: list[str] = field(default_factory=list)
    down: bool = False
    hangs: bool = False
    restarted: bool = False
    settings: dict[str, Any] | None = None
    documents: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[str, str, bytes]] = field(default_factory=list)

    def answer(self, method: str, url: str, body: bytes) -> bytes:
        """What a node answers. Raises UpstreamError."""
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if method == "POST":
            self.posted.append((url, body))
        elif method != "GET":
            self.sent.append((method, url, body))
        else:
            self.gets.append(url)
        if parts.netloc == LOOKUPD:
            return self._lookupd(parts.netloc, parts.path, query)
        topics = self.topics.get(parts.netloc)
        if topics is None:
            raise UpstreamError(parts.netloc, f"Get {url}: connection refused")
        if parts.path in self.documents:
            return self._document(parts.netloc, parts.path)
        if method == "POST" and (status := self.refused.get(parts.netloc)):
            raise UpstreamError(parts.netloc, f"got response {status} X", status)
        if method != "GET":
            return b""
        if parts.path.endswith("/peek"):
            return self._peek(parts.netloc, query)
        if parts.path == "/topic/settings" and self.settings is not None:
            return self._settings(parts.netloc, self.settings, query)
        if parts.path == "/stats":
            wanted = query.get("topic")
            shown = [each for each in topics if wanted in (None, each["topic_name"])]
            document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": shown}
            return json.dumps(document).encode()
        raise UpstreamError(parts.netloc, "got response 404 Not Found", 404)

    def _lookupd(self, node: str, path: str, query: Mapping[str, str]) -> bytes:
        if self.down:
            raise UpstreamError(node, f"Get {node}: connection refused")
        known = {} if self.restarted else self.topics
        producers = [_producer(name, topics or []) for name, topics in known.items()]
        if path == "/nodes":
            return json.dumps({"producers": producers}).encode()
        if path == "/topics":
            names = {name for each in producers for name in each["topics"]} | set(self.inactive)
            return json.dumps({"topics": sorted(names)}).encode()
        if path == "/channels":
            return json.dumps({"channels": self.inactive.get(query["topic"], [])}).encode()
        if path == "/lookup":
            having = [each for each in producers if query["topic"] in each["topics"]]
            if not having and query["topic"] not in self.inactive:
                text = 'got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
                raise UpstreamError(node, text, 404)
            return json.dumps({"channels": [], "producers": having}).encode()
        return b""

    def _document(self, node: str, path: str) -> bytes:
        document = self.documents[path]
        if isinstance(document, int):
            raise UpstreamError(node, f"got response {document} X", document)
        return document if isinstance(document, bytes) else json.dumps(document).encode()

    def _settings(self, node: str, document: Mapping[str, Any], query: Mapping[str, str]) -> bytes:
        if "topic" not in query:
            return json.dumps(document).encode()
        for row in document["topics"]:
            if row["topic"] == query["topic"]:
                return json.dumps(row).encode()
        raise UpstreamError(node, 'got response 404 Not Found "TOPIC_NOT_FOUND"', 404)

    def _peek(self, node: str, query: Mapping[str, str]) -> bytes:
        if self.original:
            raise UpstreamError(node, 'got response 404 Not Found "NOT_FOUND"', 404)
        if "topic" not in query:
            raise UpstreamError(node, "got response 400 MISSING_ARG_TOPIC", 400)
        start, size = int(query.get("offset", "0")), int(query.get("limit", "10"))
        shown = self.messages[start : start + size]
        more = start + size < len(self.messages)
        counts = {"queued": len(self.messages), "memory": len(self.messages), "disk": 0}
        document = {"messages": shown, "counts": counts, "order": "as they come"}
        return json.dumps({**document, "more": more, "trouble": None}).encode()


def _producer(node: str, topics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    host, _, port = node.rpartition(":")
    names = [each["topic_name"] for each in topics]
    return {
        "remote_address": f"{host}:50000",
        "hostname": f"name-of-{host}",
        "broadcast_address": host,
        "tcp_port": int(port) - 1,
        "http_port": int(port),
        "version": "1.3.0",
        "topics": names,
        "tombstones": [False] * len(names),
    }


class _FakeUpstream(Upstream):
    """No request leaves this process."""

    def __init__(self, options: NsqadminOptions, nodes: Nodes) -> None:
        super().__init__(options)
        self._nodes = nodes

    async def _request(
        self, method: str, url: str, timeout_s: float | None, body: bytes | None = None
    ) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._nodes.hangs and urlsplit(url).netloc == LOOKUPD:
            await trio.sleep(HANGS_S)
            raise UpstreamError(LOOKUPD, f"{LOOKUPD}: no answer within {HANGS_S:g} s")
        return self._nodes.answer(method, url, body or b"")


@dataclass
class Pages:
    """What a browser talks to; cookies are kept."""

    dashboard: Dashboard
    app: QuartTrio
    nodes: Nodes
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Response:
        """The answer to GET."""
        return await self._request("GET", path, headers=headers)

    async def page(self, path: str, **headers: str) -> str:
        """A page, which must be there."""
        answer = await self.get(path, **headers)
        assert answer.status_code == 200, path
        return str(await answer.get_data(as_text=True))

    async def send(self, path: str, **fields: str) -> Response:
        """The answer to a form, sent as its page does."""
        token = await self.token()
        return await self._request("POST", path, form={"csrf_token": token, **fields})

    async def token(self) -> str:
        """The token of a page's forms."""
        found = parsed(await self.page("/lookup"))
        return next(a["value"] for t, a in found.tags if a.get("name") == "csrf_token")

    async def _request(self, method: str, path: str, **more: Any) -> Response:
        headers = dict(more.pop("headers", {}))
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {"client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 4171)}
        client = self.app.test_client(use_cookies=False)
        answer: Response = await client.open(
            path, method=method, headers=headers, scope_base=scope, **more
        )
        for line in answer.headers.getlist("Set-Cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
            if not value:
                del self.cookies[name]
        return answer


@asynccontextmanager
async def pages(nodes: Nodes, mode: Mode = Mode.NONE, **options: Any) -> AsyncIterator[Pages]:
    """The pages of a dashboard of those nodes, whose poller runs."""
    given = validated(NsqadminOptions(lookupd_http_address=(LOOKUPD,), **options))
    access = Access(given, mode, FixedUsers(), trio.current_time)
    dashboard = Dashboard(given, _FakeUpstream(given, nodes), access)
    async with trio.open_nursery() as nursery:
        for name, task in dashboard.tasks:
            nursery.start_soon(task, name=name)
        yield Pages(dashboard, create_admin_app(dashboard), nodes)
        nursery.cancel_scope.cancel()


class Parsed(HTMLParser):
    """The tags of a page, and the text that is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Parsed:
    """``page`` taken apart."""
    parser = Parsed()
    parser.feed(page)
    parser.close()
    return parser
