"""Durations in the notation of NSQ's flags, config files and HTTP arguments.

A duration is a sequence of decimal numbers, each with a unit: ``1h30m``, ``250ms``, ``-1.5s``.
``0`` needs no unit. In Python it is an ``int`` of nanoseconds; the range is that of 64 bits, so
that every value can travel in the protocols that carry nanoseconds.
"""

import re

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS

MIN_NS = -(2**63)
MAX_NS = 2**63 - 1

_UNITS_NS = {
    "ns": 1,
    "us": MICROSECOND_NS,
    "\N{MICRO SIGN}s": MICROSECOND_NS,
    "\N{GREEK SMALL LETTER MU}s": MICROSECOND_NS,
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "m": MINUTE_NS,
    "h": HOUR_NS,
}
# Two-letter units first, or "ms" would be read as minutes and a stray "s".
_UNIT = "|".join(sorted(_UNITS_NS, key=len, reverse=True))
_PART = re.compile(rf"(?=[0-9]|\.[0-9])([0-9]*)(?:\.([0-9]*))?({_UNIT})")
# No value in range needs more; Python's own limit on digits of an integer is of this order.
_MAX_LENGTH = 1_000


def parse(text: str) -> int:
    """Return the nanoseconds that *text* means. Fractions of a nanosecond are dropped.

    Raises:
        ValueError: not a duration, a missing unit, or out of the 64-bit range.
    """
    negative = text.startswith("-")
    digits = text[1:] if text[:1] in ("-", "+") else text
    if digits == "0":
        return 0
    if not digits or len(digits) > _MAX_LENGTH:
        raise ValueError(f"invalid duration {text[:64]!r}")
    total_ns = 0
    position = 0
    while position < len(digits):
        part = _PART.match(digits, position)
        if part is None:
            raise ValueError(f"invalid duration {text!r}")
        whole, fraction, unit = part[1], part[2] or "", _UNITS_NS[part[3]]
        total_ns += int(whole or "0") * unit
        total_ns += int(fraction or "0") * unit // 10 ** len(fraction)
        position = part.end()
    if negative:
        total_ns = -total_ns
    if not MIN_NS <= total_ns <= MAX_NS:
        raise ValueError(f"duration {text!r} out of range")
    return total_ns


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    width = len(str(unit)) - 1
    return f"{whole}.{rest:0{width}d}".rstrip("0")


def render(duration_ns: int) -> str:
    """Return the usual notation of *duration_ns*, such as ``1m0s``, ``250ms`` or ``1.5s``.

    ``parse(render(x)) == x`` for every x in range.
    """
    sign = "-" if duration_ns < 0 else ""
    value = abs(duration_ns)
    if value == 0:
        return "0s"
    if value < MICROSECOND_NS:
        return f"{sign}{value}ns"
    if value < MILLISECOND_NS:
        return f"{sign}{_decimal(value, MICROSECOND_NS)}\N{MICRO SIGN}s"
    if value < SECOND_NS:
        return f"{sign}{_decimal(value, MILLISECOND_NS)}ms"
    minutes, seconds_ns = divmod(value, MINUTE_NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(seconds_ns, SECOND_NS)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    if minutes:
        return f"{sign}{minutes}m{text}"
    return sign + text
