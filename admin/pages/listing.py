"""Tables: search, sort and paging by query parameters.

``q`` is the search text (see `search`), ``sort`` names a column (with ``-`` in
front: descending), ``page`` counts from 1, ``size`` is the number of rows. Invalid values are
ignored, because a link may be old. Spec: nsqadmin, section 6 (channel).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from admin.pages.search import BadSearchError, make_matcher

__all__ = ["SIZES", "SIZE_DEFAULT", "Column", "Listing", "make_listing"]

Row = TypeVar("Row")

SIZES: Final = (25, 50, 100, 250)
SIZE_DEFAULT: Final = 50
_MAX_Q_LENGTH: Final = 200


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column, sorted by ``key``: None comes last. Without a key it can't be sorted."""

    name: str
    title: str
    key: Callable[[Row], Any] | None
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """One page of rows, with the state of its controls.

    ``found`` of ``total`` rows match the search; ``first`` to ``last`` of them are on the page.
    ``matching`` are all that match, in order. ``problem`` says what is wrong with the search.
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
    matching: Sequence[Row] = ()
    sizes: Sequence[int] = SIZES
    problem: str = ""

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.found else 0

    @property
    def last(self) -> int:
        return min(self.page * self.size, self.found)

    @property
    def near(self) -> Sequence[int | None]:
        """The page numbers to choose from; None marks a gap."""
        candidates = {1, self.pages, *range(self.page - 2, self.page + 3)}
        numbers: list[int | None] = []
        for number in sorted(candidates & set(range(1, self.pages + 1))):
            if numbers and numbers[-1] is not None and number > numbers[-1] + 1:
                numbers.append(None)
            numbers.append(number)
        return numbers

    def link(self, **changes: str | int) -> str:
        """The path of this listing with changed parameters, on page 1 unless ``page`` is one."""
        values: dict[str, str | int] = {**self.extra, "q": self.q, "sort": self.sort}
        values |= {"page": self.page, "size": self.size}
        if changes and "page" not in changes:
            values["page"] = 1
        values |= changes
        defaults: dict[str, str | int] = {"q": "", "page": 1, "size": SIZE_DEFAULT}
        parameters = {
            name: value for name, value in values.items() if value != defaults.get(name, "")
        }
        return f"{self.path}?{urlencode(parameters)}" if parameters else self.path

    def sort_link(self, column: Column[Row]) -> str:
        """The link that sorts by a column, or reverses it. Numbers start with the highest."""
        down = f"-{column.name}"
        if self.sort in (column.name, down):
            return self.link(sort=column.name if self.sort == down else down)
        return self.link(sort=down if column.is_number else column.name)

    def aria_sort(self, column: Column[Row]) -> str:
        """The value of ``aria-sort``."""
        if self.sort == column.name:
            return "ascending"
        return "descending" if self.sort == f"-{column.name}" else "none"


def make_listing(
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    query: Mapping[str, str],
    *,
    path: str,
    text: Callable[[Row], str] | None,
    sort: str,
    extra: Mapping[str, str] | None = None,
    total: int | None = None,
    sizes: Sequence[int] = SIZES,
) -> Listing[Row]:
    """The page of rows for ``query``.

    Args:
        rows: all rows.
        columns: the columns.
        query: the query parameters of the request.
        path: of the page, for links.
        text: the text of a row for the search; None: ``rows`` are those that match.
        sort: the default order.
        extra: further parameters that links keep.
        total: rows before the search, if ``text`` is None.
        sizes: numbers of rows to choose from; fewer for tables whose rows take long.
    """
    q = query.get("q", "").strip()[:_MAX_Q_LENGTH]
    problem = ""
    try:
        found = make_matcher(q)
        matching = [row for row in rows if not (q and text) or found(text(row))]
    except BadSearchError as error:
        matching, problem = [], str(error)
    by_name = {column.name: column.key for column in columns if column.key is not None}
    order = query.get("sort", sort)
    if order.removeprefix("-") not in by_name:
        order = sort
    matching = _sorted(matching, by_name[order.removeprefix("-")], down=order.startswith("-"))
    size = _number(query.get("size", ""), SIZE_DEFAULT)
    size = size if size in sizes else SIZE_DEFAULT
    pages = max(-(-len(matching) // size), 1)
    page = min(max(_number(query.get("page", ""), 1), 1), pages)
    return Listing(
        rows=matching[(page - 1) * size : page * size],
        columns=columns,
        path=path,
        q=q,
        sort=order,
        page=page,
        pages=pages,
        size=size,
        total=len(rows) if total is None else total,
        found=len(matching),
        extra={name: value for name, value in (extra or {}).items() if value},
        matching=matching,
        sizes=sizes,
        problem=problem,
    )


def _sorted(rows: list[Row], key: Callable[[Row], Any], *, down: bool) -> list[Row]:
    known = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return sorted(known, key=key, reverse=down) + unknown


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
