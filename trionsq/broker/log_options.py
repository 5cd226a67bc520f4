"""The options of topics with a log."""

from trionsq.durations import SECOND_NS
from trionsq.options import BOOL, DURATION, INT, choice, option

DURABILITY = choice("when", "always", "interval")


def storage_option() -> str:
    """The option --storage."""
    return option(
        "storage",
        "default",
        choice("engine", "default", "log"),
        "where new topics keep their messages: default (the files of NSQ) or log",
    )


def move_topics_option() -> bool:
    """The option --move-topics."""
    return option(
        "move-topics",
        False,
        BOOL,
        "with --storage=log: after the start, move topics that have no log to logs, one by one, as "
        "POST /topic/move does",
    )


def durability_option() -> str:
    """The option --durability."""
    return option(
        "durability",
        "interval",
        DURABILITY,
        "topics with a log answer: always (after the fsync) or interval (after the write)",
    )


def state_interval_option() -> int:
    """The option --state-interval."""
    return option(
        "state-interval",
        SECOND_NS,
        DURATION,
        "duration between saves of what the consumers of topics with a log have finished",
    )


def retain_option() -> int:
    """The option --retain."""
    return option(
        "retain",
        0,
        DURATION,
        "topics with a log keep finished messages so long, for /channel/seek (0: no longer than "
        "needed)",
    )


def retain_bytes_option() -> int:
    """The option --retain-bytes."""
    return option(
        "retain-bytes",
        0,
        INT,
        "topics with a log keep so many bytes of finished messages (0: none; with --retain: no "
        "limit)",
    )
