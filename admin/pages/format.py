"""Numbers, durations, sizes and times as the pages show them. Spec: nsqadmin, section 6.

Pure functions. An unknown value is a dash.
"""

from __future__ import annotations

import calendar
import math
from datetime import UTC, datetime
from typing import Final

__all__ = [
    "UNKNOWN",
    "age",
    "ago",
    "clock",
    "compact",
    "duration_ns",
    "duration_s",
    "iso_time",
    "nbytes",
    "number",
    "percent",
    "rate",
    "since",
    "when",
]

UNKNOWN: Final = "\N{EN DASH}"

_DAY_S: Final = 86_400
_MONTHS: Final = calendar.month_abbr
# Longer than any node runs.
_ALWAYS_S: Final = 10**12
_STEPS: Final = ("", "k", "M", "G", "T", "P", "E")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def number(value: float | None) -> str:
    """``1234567`` as ``1,234,567``; a float is rounded."""
    if value is None or not _is_finite(value):
        return UNKNOWN
    return f"{round(value):,}"


def compact(value: float | None) -> str:
    """At most five characters: ``999``, ``1.23k``, ``45.6M``; for charts and tiles."""
    if value is None or not _is_finite(value):
        return UNKNOWN
    sign, size = "-" if value < 0 else "", abs(float(value))
    step = 0
    while step + 1 < len(_STEPS) and _three_digits(size) >= 1000:
        size /= 1000
        step += 1
    if step == 0:
        return f"{sign}{_short(size)}"
    return f"{sign}{_short(size)}{_STEPS[step]}"


def rate(per_s: float | None) -> str:
    """A rate per second: ``0``, ``0.05``, ``12.3``, ``1,234``; ``<0.01`` if it is smaller."""
    if per_s is None or not _is_finite(per_s):
        return UNKNOWN
    if 0 < per_s < 0.01:
        return "<0.01"
    if per_s >= 99.95:
        return number(per_s)
    return _short(float(per_s))


def percent(part: float | None, whole: float | None) -> str:
    """``part`` of ``whole``, as ``12 %``."""
    if part is None or not whole:
        return UNKNOWN
    return f"{round(100 * part / whole)} %"


def nbytes(value: int | None) -> str:
    """A size: ``12 B``, ``1.5 KiB``."""
    if value is None:
        return UNKNOWN
    size, step = float(value), 0
    while step + 1 < len(_SIZES) and _three_digits(abs(size)) >= 1000:
        size /= 1024
        step += 1
    return f"{_short(size)} {_SIZES[step]}"


def duration_s(seconds: float | None) -> str:
    """Seconds as ``1h2m3.5s``, ``150ms``, ``20us``, ``0s``; days too: ``3d4h``."""
    if seconds is None or not abs(seconds) < _ALWAYS_S:
        return UNKNOWN
    return duration_ns(round(seconds * 1e9))


def age(seconds: float | None) -> str:
    """An age, which is known to a second at best: ``1h2m3s``; ``0s`` if it is negative."""
    return duration_s(seconds if seconds is None else float(max(0, round(seconds))))


def duration_ns(ns: int | None) -> str:
    """Nanoseconds, as `duration_s`; tenths of a second at most, from a day on no minutes."""
    if ns is None:
        return UNKNOWN
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns < 1_000:
        return f"{sign}{ns}ns" if ns else "0s"
    if ns < 999_950:
        return f"{sign}{_tenths(ns, 1_000)}us"
    if ns < 999_950_000:
        return f"{sign}{_tenths(ns, 1_000_000)}ms"
    return sign + _long(ns)


def _long(ns: int) -> str:
    tenths = (ns + 50_000_000) // 100_000_000
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h" if days < 100 else f"{days}d"
    seconds = f"{tenths // 10}.{tenths % 10}".removesuffix(".0") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def ago(then_s: float | None, now_s: float) -> str:
    """The time since ``then_s``, roughly: ``now``, ``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    if then_s is None or not _is_finite(then_s):
        return UNKNOWN
    passed = now_s - then_s
    for limit, unit, name in (
        (1, 1, ""),
        (120, 1, "s"),
        (7_200, 60, "min"),
        (2 * _DAY_S, 3600, "h"),
    ):
        if passed < limit:
            return f"{int(passed // unit)} {name}" if name else "now"
    return f"{int(passed // _DAY_S):,} d"


def when(at_s: float | None) -> str:
    """A time as ``2026-01-31 12:00:05`` (UTC)."""
    text = iso_time(at_s)
    return text.replace("T", " ").removesuffix("Z") if text else UNKNOWN


def clock(at_s: float | None) -> str:
    """The time of a day, as ``12:00:05`` (UTC)."""
    return when(at_s).rpartition(" ")[2]


def since(at_s: float | None, now_s: float) -> str:
    """A time in the past as ``12:00``, or ``Jan 31, 12:00`` if it is half a day ago (UTC)."""
    text = when(at_s)
    if at_s is None or text == UNKNOWN:
        return UNKNOWN
    if now_s - at_s < _DAY_S / 2:
        return text[11:16]
    month = _MONTHS[int(text[5:7])]
    return f"{month} {int(text[8:10])}, {text[11:16]}"


def iso_time(at_s: float | None) -> str:
    """A time in ISO 8601, ``2026-01-31T12:00:05Z``; "" if it is out of range."""
    if at_s is None or not _is_finite(at_s):
        return ""
    try:
        moment = datetime.fromtimestamp(int(at_s), UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _three_digits(size: float) -> float:
    """``size`` as rounded by `_short`, so that 999.6 becomes 1k and not 1000."""
    return size if size < 99.95 else round(size)


def _short(size: float) -> str:
    """Three digits at most, and no zeros at the end."""
    if size >= 99.95:
        return str(round(size))
    text = f"{size:.1f}" if size >= 9.995 else f"{size:.2f}"
    return text.rstrip("0").rstrip(".")


def _tenths(ns: int, unit_ns: int) -> str:
    return f"{ns / unit_ns:.1f}".removesuffix(".0")
