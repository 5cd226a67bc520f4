"""The options of idempotent publishes."""

from trionsq.durations import MINUTE_NS
from trionsq.options import DURATION, INT, option


def window_option() -> int:
    """The option --idempotency-window."""
    return option(
        "idempotency-window",
        10 * MINUTE_NS,
        DURATION,
        "duration for which a publish that is repeated with its key is stored once (0: keys are "
        "ignored)",
    )


def max_keys_option() -> int:
    """The option --idempotency-max-keys."""
    return option(
        "idempotency-max-keys",
        200_000,
        INT,
        "maximum number of keys that are known; the oldest are forgotten first",
    )
