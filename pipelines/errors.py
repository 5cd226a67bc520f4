"""The exceptions of all packages here. Each text says what to do, in one line unless stated."""

from __future__ import annotations

__all__ = [
    "ColumnsError",
    "DataLossError",
    "FolderError",
    "JavaError",
    "NsqdAwayError",
    "OptionsError",
    "PublishError",
    "ReceiverError",
    "ReceiverKilledError",
    "RowsError",
    "SetupError",
    "SinkError",
    "StageError",
    "StoreError",
    "TopicLogError",
    "UsageError",
    "WalDamagedError",
    "WalError",
    "WalFencedError",
    "WalFullError",
    "WalLockedError",
    "WalMissingError",
    "WalRangeError",
]

# Before anything runs


class OptionsError(ValueError):
    """Options are unknown, invalid or missing: a line for each, then the valid options."""


class UsageError(Exception):
    """Flags of a job that contradict each other. The job prints its usage and exits with 2."""


class FolderError(Exception):
    """A folder of a job can't be used."""


class StoreError(Exception):
    """The store or disk of a table failed; a later attempt may succeed."""


class SetupError(Exception):
    """Spark can't start on this machine, or its workers do not match the driver."""


class JavaError(Exception):
    """There is no Java that Spark can use."""


# The log


class WalError(Exception):
    """The log can't be used, or a write failed."""


class WalLockedError(WalError):
    """Another process holds the log's lock."""


class WalMissingError(WalError):
    """There is no log at this place."""


class WalFencedError(WalError):
    """Another process has taken the log over: this one writes no more to it."""


class WalDamagedError(WalError):
    """A file is damaged or missing. Nothing was changed; a person has to decide."""


class WalFullError(WalError):
    """``wal.maxBytes`` is reached or the disk is full. Nothing of the segment is in the log."""


class WalRangeError(WalError):
    """Positions that the log has removed, or has not reached."""


class DataLossError(WalError):
    """The log lacks messages that Spark's checkpoint refers to."""


# mode=log


class TopicLogError(Exception):
    """A topic can't be read from nsqd's log, or a channel can't follow it. Not tried again."""


class NsqdAwayError(Exception):
    """An nsqd does not answer now."""


# The receiver


class ReceiverError(Exception):
    """The receiver failed, or did not stop in time; the cause is attached."""


class ReceiverKilledError(ReceiverError):
    """The process of a query's receiver is gone: it was killed."""

    def __init__(self, text: str = "") -> None:
        super().__init__(
            text
            or "the receiver's process was killed, most likely because the machine or the "
            "container ran out of memory"
        )


# The sink


class SinkError(Exception):
    """Rows could not be published."""


class ColumnsError(SinkError, ValueError):
    """Columns that are missing, unknown or of a wrong type."""


class RowsError(SinkError, ValueError):
    """A row that can't be a message: no body, an invalid topic or delay, too large. Not retried.

    Rows before it may have been published.
    """


class PublishError(SinkError):
    """No nsqd could be reached, or nsqd refused; the text has the addresses and the reasons."""


class StageError(SinkError):
    """The folder of staged files can't be used, or does not belong to the query."""
