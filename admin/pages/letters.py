"""Dead letters: what channels gave up, why, and the way back or away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from quart import Response

from admin.access.cross_site import form
from admin.cluster.queries import url_of
from admin.cluster.shapes import Count
from admin.pages.bodies import DisplayedBody, display_body
from admin.pages.node_requests import ask_nodes, each_node, node_names
from admin.pages.site import Site, arguments
from admin.pages.wording import plural
from trionsq.web.app import Endpoint
from trionsq.web.protocol import HttpError

__all__ = ["LetterPages"]

_LIMIT: Final = 50
_MAX_BODY: Final = 4096
_MAX_RATE: Final = 10_000
_FILTERS: Final = ("topic", "channel", "reason", "older_than")


class Letter(Struct):
    """A letter as nsqd shows it; see docs/dead-letters.md."""

    id: str = ""
    topic: str = ""
    channel: str = ""
    message_id: str = ""
    dead_letter_topic: str = ""
    reason: str = ""
    attempts: Count = 0
    first_time: str = ""
    last_time: str = ""
    age_in_seconds: float = 0.0
    client: str = ""
    state: str = ""
    body_size: Count = 0
    body_cut: bool = False
    body_encoding: str = ""
    body: str = ""
    # The node that has it; ours.
    node: str = ""

    @property
    def shown(self) -> DisplayedBody:
        """The body for a reader."""
        fields = {name: getattr(self, name) for name in ("body", "body_size", "body_cut")}
        return display_body({**fields, "body_encoding": self.body_encoding})


class LettersOfNode(Struct):
    """The answer to /deadletter."""

    count: Count = 0
    next: Count | None = None
    deadletters: list[Letter] | None = None


class _Done(Struct):
    count: Count = 0


class LetterPages:
    """GET /deadletters, GET /deadletters/:verb and POST /do/letters."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._upstream = site.dashboard.upstream

    def endpoints(self) -> Iterable[Endpoint]:
        """The paths."""
        return [
            ("GET", "/deadletters", self.letters),
            ("GET", "/deadletters/<verb>", self.confirm),
            ("POST", "/do/letters", self.act),
        ]

    async def letters(self) -> Response:
        """GET /deadletters: filters ``topic``, ``channel``, ``reason``, ``older_than``.

        With ``node`` those of one node, from ``after`` on; otherwise the oldest of each node.
        """
        query = arguments()
        nodes = await self._nodes()
        chosen = query.get("node", "")
        asked = [chosen] if chosen in nodes else nodes
        wanted = {name: query[name].strip() for name in _FILTERS if query.get(name, "").strip()}
        after = query.get("after", "")
        more = {"after": after} if chosen in nodes and after.isascii() and after.isdigit() else {}
        answers = await ask_nodes(
            self._site,
            asked,
            "/deadletter",
            LettersOfNode,
            limit=str(_LIMIT),
            max_body=str(_MAX_BODY),
            **wanted,
            **more,
        )
        rows = list[Letter]()
        for node, answer in answers.values.items():
            for letter in answer.deadletters or ():
                letter.node = node
                rows.append(letter)
        rows.sort(key=lambda letter: -letter.age_in_seconds)
        values = answers.values
        return self._site.page(
            "letters.html",
            "Dead letters",
            "deadletters",
            nodes=nodes,
            node=chosen if chosen in nodes else "",
            wanted={name: query.get(name, "") for name in _FILTERS},
            filters=wanted,
            letters=rows,
            total=sum(answer.count for answer in values.values()),
            counts={node: answer.count for node, answer in values.items()},
            nexts={node: answer.next for node, answer in values.items() if answer.next is not None},
            lacking=answers.lacking,
            warnings=answers.warnings,
            error="" if values or not asked else "No node could list its dead letters.",
        )

    async def confirm(self, verb: str) -> Response:
        """GET /deadletters/replay and /deadletters/discard: how many it is about."""
        if verb not in ("replay", "discard"):
            raise HttpError(404, "NOT_FOUND")
        return await self._confirm(verb, arguments())

    async def _confirm(self, verb: str, query: Mapping[str, str], error: str = "") -> Response:
        self._check(verb, query)
        nodes, wanted = await self._wanted(query)
        answers = await ask_nodes(
            self._site, nodes, "/deadletter", LettersOfNode, limit="1", max_body="0", **wanted
        )
        count = sum(answer.count for answer in answers.values.values())
        where = " / ".join(filter(None, (wanted.get("topic"), wanted.get("channel"))))
        return self._site.page(
            "letters_confirm.html",
            verb.capitalize(),
            "deadletters",
            verb=verb,
            count=count,
            where=where or "one message",
            fields={**wanted, "node": query.get("node", "")},
            filters={name: wanted[name] for name in _FILTERS[2:] if name in wanted},
            phrase=f"discard {count}",
            back=self._site.url(
                "deadletters", **{name: wanted[name] for name in _FILTERS if name in wanted}
            ),
            warnings=answers.warnings,
            error=error,
        )

    def _check(self, verb: str, query: Mapping[str, str]) -> None:
        if verb == "discard" and not self._site.may("admin"):
            raise HttpError(403, "FORBIDDEN")
        if not query.get("id") and not query.get("topic"):
            raise HttpError(400, "MISSING_ARG_TOPIC")
        if verb == "replay" and not query.get("id") and not query.get("channel"):
            raise HttpError(400, "MISSING_ARG_CHANNEL")

    async def act(self) -> Response:
        """POST /do/letters: ``verb`` is replay or discard (admin; ``typed``), and the filters.

        ``rate``: letters per second of a replay, of each node.
        """
        fields: dict[str, Any] = dict(await form())
        verb = fields.get("verb", "")
        if verb not in ("replay", "discard"):
            raise HttpError(400, "INVALID_ACTION")
        self._check(verb, fields)
        count = fields.get("count", "")
        if verb == "discard" and fields.get("typed", "").strip() != f"discard {count}":
            self._site.dashboard.access.record_action("discard_dead_letters", note="not confirmed")
            return await self._confirm(verb, fields, "The typed text does not match.")
        nodes, wanted = await self._wanted(fields)
        rate = fields.get("rate", "")
        if verb == "replay" and rate.isascii() and rate.isdigit() and 0 < len(rate) < 7:
            wanted["rate"] = str(min(max(int(rate), 1), _MAX_RATE))

        async def ask(node: str) -> int:
            url = url_of(node, f"/deadletter/{verb}", **wanted)
            return _count(await self._upstream.post(url))

        answers = await each_node(nodes, ask)
        total = sum(answers.values.values())
        # A node that has none of them, or no such channel, has nothing to do.
        problems = [text for text in answers.warnings if "_NOT_FOUND" not in text or not total]
        self._site.dashboard.access.record_action(
            f"{verb}_dead_letters",
            topic=wanted.get("topic", ""),
            channel=wanted.get("channel", ""),
            node=fields.get("node", ""),
            note="; ".join([plural(total, "letter"), wanted.get("id", ""), *problems]).strip("; "),
        )
        back = {name: wanted[name] for name in _FILTERS if name in wanted and "id" not in wanted}
        path = self._site.url("deadletters", **back)
        if not total and problems:
            return self._site.done(path, ["Nothing was done.", *problems], "bad")
        text = (
            f"{plural(total, 'message')} on the way back to the channel, with attempt 1."
            if verb == "replay"
            else f"Discarded {plural(total, 'message')}."
        )
        return self._site.done(path, [text, *problems], "warn" if problems else "good")

    async def _nodes(self) -> list[str]:
        await self._site.dashboard.poller.current()
        return node_names(self._site)

    async def _wanted(self, query: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """The nodes, and the parameters of the request to each."""
        nodes = await self._nodes()
        if query.get("node") in nodes:
            nodes = [query["node"]]
        names = (*_FILTERS, "id")
        return nodes, {name: query[name].strip() for name in names if query.get(name, "").strip()}


def _count(answer: bytes) -> int:
    try:
        return msgspec.json.decode(answer, type=_Done).count
    except msgspec.DecodeError:
        return 0
