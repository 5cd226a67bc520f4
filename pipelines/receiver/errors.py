"""What ends a receiver."""

from __future__ import annotations

__all__ = ["ReceiverError"]


class ReceiverError(Exception):
    """The receiver can't go on, or did not end; the cause is attached."""
