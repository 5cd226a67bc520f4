"""How much the tests do: `make test` in minutes, `make soak` for nights and releases.

``TRIONSQ_SOAK`` says which: unset for `make test`, ``short`` for `make soak SHORT=1`, ``full`` for
`make soak`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypeVar

import pytest

from tests.engines import ON_LOG, is_left_out

__all__ = [
    "LEVEL",
    "VARIABLE",
    "Level",
    "belongs",
    "by_level",
    "in_short_soak",
    "in_soak",
    "more_in_soak",
    "smoke",
    "swept",
]

T = TypeVar("T")
Level = Literal["test", "short", "full"]

VARIABLE: Final = "TRIONSQ_SOAK"


def _level() -> Level:
    match os.environ.get(VARIABLE, ""):
        case "":
            return "test"
        case "short" | "full" as level:
            return level
        case other:
            raise pytest.UsageError(f"{VARIABLE}={other}: it may be short or full")


LEVEL: Final = _level()

in_soak: Final = pytest.mark.soak(lowest="full")
"""For a test that runs in the full soak only."""
in_short_soak: Final = pytest.mark.soak(lowest="short")
"""For a test that runs in both soaks, and not in `make test`."""
more_in_soak: Final = pytest.mark.soak(lowest="test")
"""For a test that runs everywhere, and does more in a soak: see `by_level`."""


def by_level(*, test: T, short: T, full: T) -> T:
    """A count for this run: of `make test`, of the short soak or of the full one."""
    return {"test": test, "short": short, "full": full}[LEVEL]


def swept(count: int, one_in: int = 5) -> range:
    """The numbers of those of ``count`` places, from 1, that a sweep tries in this run: one in so
    many in `make test`, but no more than about 25; 10 at most in the short soak, others if there
    are many; every one in the full one."""
    step = by_level(test=max(one_in, count // 25), short=max(1, -(-count // 10)), full=1)
    return range(by_level(test=1, short=(step + 1) // 2, full=1), count + 1, step)


def belongs(item: pytest.Item) -> bool:
    """Whether the test is part of this run. A soak has only the tests that are marked for it; but a
    run on logs is a choice of files, of which it has all."""
    mark = item.get_closest_marker("soak")
    if is_left_out(item.nodeid):
        return False
    if mark is None:
        return LEVEL == "test" or ON_LOG
    levels = ("test", "short", "full")
    return levels.index(mark.kwargs["lowest"]) <= levels.index(LEVEL)


def smoke(
    named: Mapping[str, T], *chosen: str, in_short: Collection[str] | None = None
) -> list[Any]:
    """Parameters by name: those ``chosen`` belong to `make test`, the others to both soaks, or, if
    some are named for the short one, all else to the full one alone."""
    assert {*chosen, *(in_short or ())} <= named.keys(), (chosen, in_short)

    def marks(name: str) -> Collection[pytest.MarkDecorator]:
        if name in chosen:
            return ()
        return (in_short_soak if in_short is None or name in in_short else in_soak,)

    return [pytest.param(value, id=name, marks=marks(name)) for name, value in named.items()]
