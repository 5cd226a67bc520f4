"""What can go wrong with a sink. Everything is a `SinkError`; the text is one line."""

from __future__ import annotations

__all__ = ["ColumnsError", "PublishError", "RowsError", "SinkError", "StageError"]


class SinkError(Exception):
    """Rows could not be published."""


class ColumnsError(SinkError, ValueError):
    """Columns that are missing, unknown or of a wrong type."""


class RowsError(SinkError, ValueError):
    """A row that can be no message: no body, a bad topic or delay, too large. Nothing retries it.

    Rows before it may have been published.
    """


class PublishError(SinkError):
    """nsqd could not be reached, or refused; the text names the addresses and the reasons."""


class StageError(SinkError):
    """The folder of staged files can't be used, or does not fit to the query."""
