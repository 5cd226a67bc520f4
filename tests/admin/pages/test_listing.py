"""Search, sort and paging."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from admin.pages.listing import SIZES, Column, Listing, make_listing
from admin.pages.search import BadSearchError, make_matcher

Row = tuple[str, int | None]
COLUMNS: list[Column[Row]] = [
    Column("name", "Name", lambda row: row[0], is_number=False),
    Column("count", "Count", lambda row: row[1]),
    Column("tags", "Tags", None),
]
ROWS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.integers())), max_size=120)
QUERY = st.dictionaries(
    st.sampled_from(["q", "sort", "page", "size"]),
    st.one_of(st.text(max_size=8), st.sampled_from(["-count", "name", "tags", "2", "25"])),
)


def listing(rows: list[Row], query: dict[str, str], **extra: str) -> Listing[Row]:
    """A listing of rows."""
    return make_listing(
        rows, COLUMNS, query, path="/p", text=lambda row: row[0], sort="name", extra=extra
    )


@given(ROWS, QUERY)
def test_whatever_is_asked_for_is_a_page(rows: list[Row], query: dict[str, str]) -> None:
    """Nonsense in a link is passed over; the pages together are what was found."""
    first = listing(rows, query)
    assert first.size in SIZES
    assert 1 <= first.page <= first.pages
    everything = [
        row
        for page in range(1, first.pages + 1)
        for row in listing(rows, {**query, "page": str(page)}).rows
    ]
    try:
        found = make_matcher(query.get("q", ""))
    except BadSearchError:
        assert first.problem
        assert not everything
        return
    wanted = [row for row in rows if found(row[0])]
    assert sorted(everything, key=repr) == sorted(wanted, key=repr)
    assert first.found == len(wanted)


@given(ROWS, QUERY)
def test_links_lead_where_they_say(rows: list[Row], query: dict[str, str]) -> None:
    """A link's parameters give that page, in that order, of that search."""
    here = listing(rows, query, show="x")
    there = here.link(page=here.pages)
    found = listing(rows, dict(parse_qsl(urlsplit(there).query, keep_blank_values=True)), show="x")
    assert (found.q, found.sort, found.size) == (here.q, here.sort, here.size)
    assert found.page == here.pages
    assert "show=x" in there


def test_a_number_is_sorted_from_the_highest_and_unknown_last() -> None:
    """A click on a column of numbers shows the worst; again, and it is turned round."""
    rows: list[Row] = [("a", 1), ("b", None), ("c", 3)]
    plain = listing(rows, {})
    assert plain.sort_link(COLUMNS[1]) == "/p?sort=-count"
    down = listing(rows, {"sort": "-count"})
    assert [row[0] for row in down.rows] == ["c", "a", "b"]
    assert down.aria_sort(COLUMNS[1]) == "descending"
    up = listing(rows, {"sort": "count"})
    assert [row[0] for row in up.rows] == ["a", "c", "b"]
    assert down.sort_link(COLUMNS[1]) == "/p?sort=count"


def test_the_pages_to_choose_from_are_few() -> None:
    """First, last and those around."""
    rows: list[Row] = [(str(n), n) for n in range(1000)]
    assert listing(rows, {"page": "10"}).near == [1, None, 8, 9, 10, 11, 12, None, 20]
    assert listing(rows[:60], {}).near == [1, 2]
