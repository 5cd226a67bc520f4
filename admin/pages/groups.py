"""Topics or channels of a common prefix as one row, with sums. Pure.

Names are cut behind the first ``.``, ``-``, ``_`` or ``:`` after the prefix that is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from admin.watch.snapshot import Row, TopicRow

__all__ = ["Group", "group_rows"]

_SEPARATOR: Final = re.compile(r"[._:-]")


@dataclass(slots=True)
class Group:
    """The sums of ``members`` rows whose names begin with ``prefix``; ``only``: the last of them.

    Rates are of the rows whose rates are known.
    """

    prefix: str
    members: int = 0
    only: str = ""
    depth: int = 0
    in_flight: int = 0
    messages: int = 0
    clients: int = 0
    paused: int = 0
    missing: int = 0
    rate_in: float | None = None
    rate_out: float | None = None


def group_rows(rows: Iterable[Row], prefix: str) -> list[Group]:
    """A group for each next part of the names that begin with ``prefix``."""
    groups: dict[str, Group] = {}
    for row in rows:
        name = str(getattr(row, "topic", ""))
        match = _SEPARATOR.search(name, len(prefix))
        key = name[: match.end()] if match else name
        group = groups.setdefault(key, Group(key))
        group.members += 1
        group.only = name
        group.depth += row.depth + (row.channels_depth if isinstance(row, TopicRow) else 0)
        group.in_flight += row.in_flight
        group.messages += row.messages
        group.clients += row.clients
        group.paused += row.paused
        group.missing += bool(row.missing_nodes)
        group.rate_in = _plus(group.rate_in, row.rate_in)
        group.rate_out = _plus(group.rate_out, row.rate_out)
    return list(groups.values())


def _plus(total: float | None, rate: float | None) -> float | None:
    return total if rate is None else rate if total is None else total + rate
