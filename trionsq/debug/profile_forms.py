"""A profile as text, for speedscope (JSON) and for Python's own pstats."""

from __future__ import annotations

import json
import marshal
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from trionsq.debug.profile import Line, Profile, Stack

__all__ = ["pstats_bytes", "speedscope_json", "text_lines"]

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_REST: Final = "(more stacks than are kept)"

# As pstats has them: file, line, function.
_Function = tuple[str, int, str]


def _functions(stack: Stack) -> list[_Function]:
    """The functions of a stack by their first lines, innermost first."""
    if not stack:
        return [("", 0, _REST)]
    return [(code.co_filename, code.co_firstlineno, code.co_qualname) for code, _ in stack]


def text_lines(profile: Profile, top: int) -> Iterator[str]:
    """The functions in which most time was spent, for people."""
    own, cumulative, total = _own_and_cumulative(profile)
    idle = sum(thread.idle for thread in profile.threads)
    more = f", {idle} more in which they waited for something to do" if idle else ""
    yield (
        f"{profile.seconds:.1f} s, {profile.cpu_seconds:.2f} s of processor time,"
        f" looked at {1 / profile.interval_s:.0f} times a second: {total} samples of"
        f" {len(profile.threads)} threads{more}"
    )
    yield ""
    yield f"{'own':>8} {'%':>6} {'with calls':>11} {'%':>6}"
    for function, count in sorted(own.items(), key=lambda item: -item[1])[:top]:
        yield _text_line(function, count, cumulative[function], total)
    yield ""
    yield "by time with calls:"
    for function, count in cumulative.most_common(top):
        yield _text_line(function, own[function], count, total)


def _text_line(function: _Function, own: int, cumulative: int, total: int) -> str:
    file, line, name = function
    return (
        f"{own:>8} {own / total:>6.1%} {cumulative:>11} {cumulative / total:>6.1%}"
        f"  {name} ({file}:{line})"
    )


def _own_and_cumulative(profile: Profile) -> tuple[Counter[_Function], Counter[_Function], int]:
    own: Counter[_Function] = Counter()
    cumulative: Counter[_Function] = Counter()
    total = 0
    for _, stack, count in profile.counted():
        functions = _functions(stack)
        own[functions[0]] += count
        for function in set(functions):
            cumulative[function] += count
        total += count
    return own, cumulative, total


def pstats_bytes(profile: Profile) -> bytes:
    """A file that `pstats.Stats` loads. Its numbers of calls are numbers of samples."""
    own, cumulative, _ = _own_and_cumulative(profile)
    callers: dict[_Function, Counter[_Function]] = {function: Counter() for function in cumulative}
    for _, stack, count in profile.counted():
        functions = _functions(stack)
        for called, caller in set(pairwise(functions)):
            callers[called][caller] += count
    interval_s = profile.interval_s

    def entry(function: _Function, samples: int) -> tuple[int, int, float, float]:
        return samples, samples, own[function] * interval_s, samples * interval_s

    stats = {
        function: (
            *entry(function, samples),
            {
                caller: (count, count, 0.0, count * interval_s)
                for caller, count in callers[function].items()
            },
        )
        for function, samples in cumulative.items()
    }
    # pstats refuses a file without any.
    return marshal.dumps(stats or {("", 0, "(no samples)"): (0, 0, 0.0, 0.0, {})})


def speedscope_json(profile: Profile, name: str) -> str:
    """A file for https://speedscope.app: a profile for each thread, lines as frames."""
    frames: dict[Line | None, int] = {}
    profiles = []
    for thread in profile.threads:
        stacks = [
            [frames.setdefault(line, len(frames)) for line in reversed(stack or (None,))]
            for stack in thread.stacks
        ]
        profiles.append(
            {
                "type": "sampled",
                "name": thread.name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": len(thread.samples) * profile.interval_s,
                "samples": [stacks[number] for number in thread.samples],
                "weights": [profile.interval_s] * len(thread.samples),
            }
        )
    document = {
        "$schema": _SCHEMA,
        "name": name,
        "exporter": "trionsq",
        "activeProfileIndex": 0,
        "shared": {"frames": [_speedscope_frame(line) for line in frames]},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":"))


def _speedscope_frame(line: Line | None) -> dict[str, Any]:
    if line is None:
        return {"name": _REST}
    code, number = line
    return {"name": code.co_qualname, "file": code.co_filename, "line": number}
