"""/ping, /info and /stats. Spec: nsqd-http, sections 2 and 5."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.statistics import StatsFilter, info, statistics
from trionsq.http.stats_json import StatsJson
from trionsq.http.stats_text import StatsText
from trionsq.web.answers import json_document, json_pieces, plain, text_pieces
from trionsq.web.query import flag, query
from trionsq.web.turns import Pieces, SharedDocuments

__all__ = ["Statistics"]

# Documents of /stats that are made at once. Each costs a millisecond in a round of the event loop.
_AT_ONCE_MAX: Final = 2


class Statistics:
    """The endpoints that tell how nsqd does."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents: SharedDocuments[list[bytes]] = SharedDocuments(_AT_ONCE_MAX)

    async def ping(self) -> Response:
        """GET /ping: ``OK``, or 500 and what is wrong."""
        health = self._broker.health
        return plain(200 if health == "OK" else 500, health)

    async def info(self) -> Response:
        """GET /info."""
        return json_document(info(self._broker))

    async def stats(self) -> Response:
        """GET /stats, as JSON or as text."""
        values = query()
        asked = StatsFilter(
            topic=values.get(b"topic", b"").decode(errors="replace"),
            channel=values.get(b"channel", b"").decode(errors="replace"),
            clients=flag(values, b"include_clients", default=True),
            memory=flag(values, b"include_mem", default=True),
        )
        as_json = values.get(b"format") == b"json"
        made = await self._documents.get((as_json, asked), lambda: self._make(asked, as_json))
        return json_pieces(made) if as_json else text_pieces(made)

    async def _make(self, asked: StatsFilter, as_json: bool) -> list[bytes]:
        form = StatsJson() if as_json else StatsText(self._broker.clock.now_ns())
        document = Pieces()
        async with aclosing(statistics(self._broker, asked)) as rows:
            async for row in rows:
                document.add(form.row(row))
        document.add(form.end())
        return document.end()
