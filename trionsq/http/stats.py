"""/ping, /info and /stats. Spec: nsqd-http, sections 2 and 5."""

from __future__ import annotations

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.statistics import StatsFilter, info, statistics
from trionsq.http.stats_text import stats_text
from trionsq.web.answers import json_document, plain, text
from trionsq.web.query import flag, query

__all__ = ["Statistics"]


class Statistics:
    """The endpoints that tell how nsqd does."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

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
        document = statistics(self._broker, asked)
        if values.get(b"format") == b"json":
            return json_document(document)
        return text(stats_text(document, self._broker.clock.now_ns()))
