"""Search, sort and paging of long tables, by query parameters. Pure.

``q`` is looked for (all of its words, whatever their case), ``sort`` names a column (``-`` in
front: descending), ``page`` counts from 1, ``size`` is the number of rows. What makes no sense is
passed over, since a link may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

__all__ = ["SIZES", "Column", "Listing", "listed", "matches"]

Row = TypeVar("Row")

SIZES: Final = (25, 50, 100, 250)
_SIZE_DEFAULT: Final = 50
_Q_LENGTH_MAX: Final = 200


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column; ``key`` may give None, which comes last. Without a key it can't be sorted by."""

    name: str
    title: str
    key: Callable[[Row], Any] | None
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """One page of rows, and all that its controls need.

    ``found`` of ``total`` rows match the search; ``first`` to ``last`` of them are shown.
    """

    rows: Sequence[Row]
    columns: Sequence[Column[Row]]
    path: str
    q: str
    sort: str
    page: int
    pages: int
    size: int
    total: int
    found: int
    extra: Mapping[str, str]

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.found else 0

    @property
    def last(self) -> int:
        return min(self.page * self.size, self.found)

    @property
    def near(self) -> Sequence[int | None]:
        """The numbers of the pages to choose from; None where some are left out."""
        wanted = {1, self.pages, *range(self.page - 2, self.page + 3)}
        numbers: list[int | None] = []
        for number in sorted(wanted & set(range(1, self.pages + 1))):
            if numbers and numbers[-1] is not None and number > numbers[-1] + 1:
                numbers.append(None)
            numbers.append(number)
        return numbers

    def link(self, **changes: str | int) -> str:
        """The address of this listing with other parameters; a new order begins at page 1."""
        values: dict[str, str | int] = {**self.extra, "q": self.q, "sort": self.sort}
        values |= {"page": self.page, "size": self.size}
        if changes and "page" not in changes:
            values["page"] = 1
        values |= changes
        defaults: dict[str, str | int] = {"q": "", "page": 1, "size": _SIZE_DEFAULT}
        told = {name: value for name, value in values.items() if value != defaults.get(name, "")}
        return f"{self.path}?{urlencode(told)}" if told else self.path

    def sort_link(self, column: Column[Row]) -> str:
        """Sorted by a column; if it is, the other way round. Numbers begin with the highest."""
        down = f"-{column.name}"
        if self.sort in (column.name, down):
            return self.link(sort=column.name if self.sort == down else down)
        return self.link(sort=down if column.is_number else column.name)

    def aria_sort(self, column: Column[Row]) -> str:
        """The value of ``aria-sort``."""
        if self.sort == column.name:
            return "ascending"
        return "descending" if self.sort == f"-{column.name}" else "none"


def listed(
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    query: Mapping[str, str],
    *,
    path: str,
    text: Callable[[Row], str],
    sort: str,
    extra: Mapping[str, str] | None = None,
) -> Listing[Row]:
    """The rows that ``query`` asks for.

    Args:
        rows: all of them.
        columns: what can be sorted by.
        query: the parameters of the request.
        path: of the page, for links.
        text: what the search looks at.
        sort: the order if none is asked for.
        extra: further parameters that links keep.
    """
    q = query.get("q", "").strip()[:_Q_LENGTH_MAX]
    found = [row for row in rows if matches(q, text(row))] if q else list(rows)
    by_name = {column.name: column.key for column in columns if column.key is not None}
    asked = query.get("sort", sort)
    if asked.removeprefix("-") not in by_name:
        asked = sort
    found = _sorted(found, by_name[asked.removeprefix("-")], down=asked.startswith("-"))
    size = _number(query.get("size", ""), _SIZE_DEFAULT)
    size = size if size in SIZES else _SIZE_DEFAULT
    pages = max(-(-len(found) // size), 1)
    page = min(max(_number(query.get("page", ""), 1), 1), pages)
    return Listing(
        rows=found[(page - 1) * size : page * size],
        columns=columns,
        path=path,
        q=q,
        sort=asked,
        page=page,
        pages=pages,
        size=size,
        total=len(rows),
        found=len(found),
        extra={name: value for name, value in (extra or {}).items() if value},
    )


def matches(q: str, text: str) -> bool:
    """Whether all words of ``q`` are in ``text``, whatever their case."""
    lowered = text.lower()
    return all(word in lowered for word in q.lower().split())


def _sorted(rows: list[Row], key: Callable[[Row], Any], *, down: bool) -> list[Row]:
    known = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return sorted(known, key=key, reverse=down) + unknown


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
