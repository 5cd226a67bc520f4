"""The failures that a test has planned for a simulated disk."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

__all__ = ["PlannedFault"]


class PlannedFault:
    """An error that a future operation will have."""

    def __init__(
        self, error_number: int, at: int, forever: bool, only: Collection[str], name: str
    ) -> None:
        self.error_number = error_number
        self._left = at
        self._forever = forever
        self._only = only
        self._name = name

    def meets(self, operation: str, names: tuple[str, ...]) -> bool:
        """Count the operation if it matches; return whether it has to fail."""
        if operation not in self._only or not any(fnmatchcase(name, self._name) for name in names):
            return False
        self._left -= 1
        return self._left == 0 or (self._forever and self._left < 0)
