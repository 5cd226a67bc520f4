"""What the endpoints of the JSON API share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quart import Response

from admin.answers import encoded, json_answer, json_response
from admin.cluster.queries import AllFailed
from admin.dashboard import Dashboard, Role
from admin.turns import computed
from trionsq.web.protocol import HttpError

__all__ = ["answer", "long_answer", "message", "require", "upstream"]


def require(dashboard: Dashboard, role: Role) -> None:
    """Raises HttpError FORBIDDEN unless the sender of the request has that role."""
    if not dashboard.access.allows(role):
        raise HttpError(403, "FORBIDDEN")


@contextmanager
def upstream() -> Iterator[None]:
    """Raises HttpError UPSTREAM_ERROR for what fails altogether inside."""
    try:
        yield
    except AllFailed as failure:
        raise HttpError(502, f"UPSTREAM_ERROR: {failure}") from None


def message(warnings: Iterable[str]) -> str:
    """What an answer says of single failures: "" if there are none."""
    text = "\n".join(warnings)
    return f"WARNING: {text}" if text else ""


async def long_answer(
    warnings: Iterable[str], rows: int, members: Callable[[], Mapping[str, Any]]
) -> Response:
    """As `answer`; ``members`` makes something of so many ``rows``, maybe in a thread."""
    told = message(warnings)
    return json_response(await computed(rows, lambda: encoded({**members(), "message": told})))


def answer(warnings: Iterable[str], **members: Any) -> Response:
    """A success: its members, then ``message``."""
    return json_answer({**members, "message": message(warnings)})
