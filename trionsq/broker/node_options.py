"""The options of a node's end, of who may use it, and of delays."""

from trionsq.durations import SECOND_NS
from trionsq.options import DURATION, STRING, choice, option

SIGTERM = choice("way", "stop", "drain")


def sigterm_option() -> str:
    """The option --sigterm."""
    return option(
        "sigterm",
        "stop",
        SIGTERM,
        "what SIGTERM does: stop, or drain (refuse publishes, deliver what is there, then stop)",
    )


def drain_timeout_option() -> int:
    """The option --drain-timeout."""
    return option(
        "drain-timeout",
        30 * SECOND_NS,
        DURATION,
        "a drain ends after this time with whatever is left; that is saved (0: no limit)",
    )


def acl_file_option() -> str:
    """The option --acl-file, of nsqd and nsqlookupd."""
    return option(
        "acl-file",
        "",
        STRING,
        "path of a TOML file that says who may publish, subscribe and administer (empty: all may)",
    )


def lookupd_token_file_option() -> str:
    """The option --lookupd-token-file."""
    return option(
        "lookupd-token-file",
        "",
        STRING,
        "path of a file with the token for nsqlookupds, for registering and asking (empty: none)",
    )


def max_defer_timeout_option() -> int:
    """The option --max-defer-timeout."""
    return option(
        "max-defer-timeout",
        0,
        DURATION,
        "longest delay of DPUB and defer (0: that of --max-req-timeout)",
    )
