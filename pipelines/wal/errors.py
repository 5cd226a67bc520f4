"""What can go wrong with the log. Everything is a `WalError`; the text says what to do."""

from __future__ import annotations

__all__ = ["WalDamagedError", "WalError", "WalFullError", "WalLockedError", "WalRangeError"]


class WalError(Exception):
    """The log can't be used, or a write failed."""


class WalLockedError(WalError):
    """Another process has the log."""


class WalDamagedError(WalError):
    """A file is damaged or missing. Nothing was changed; a person has to decide."""


class WalFullError(WalError):
    """No room: ``wal.maxBytes``, or the disk. What was to be written is not in the log."""


class WalRangeError(WalError):
    """Positions that the log has no more, or not yet."""
