"""The document of /stats, read, from a broker without HTTP."""

from __future__ import annotations

import json
from typing import Any

from trionsq.broker.broker import Broker
from trionsq.broker.statistics import StatsFilter, statistics
from trionsq.http.stats import StatsJson

__all__ = ["document_of"]


async def document_of(broker: Broker, asked: StatsFilter | None = None) -> dict[str, Any]:
    """The document as JSON has it."""
    form = StatsJson()
    rows = [form.row(row) async for row in statistics(broker, asked or StatsFilter())]
    document: dict[str, Any] = json.loads(b"".join([*rows, form.end_document()]))
    return document
