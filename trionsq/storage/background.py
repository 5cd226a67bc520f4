"""Work that may block for long and must not hold up the broker: fsync, renames, removals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Background"]


class Background(Protocol):
    """Runs jobs elsewhere, and tells here when they are done."""

    def submit(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Run ``job``, as a rule in a thread; then call ``done`` with its OSError, if any.

        ``done`` is called in the thread of the broker, once. Both calls come from there, too.
        """

    async def wait_idle(self) -> None:
        """Wait until all that was submitted is done."""
