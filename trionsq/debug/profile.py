"""A sampling profiler by processor time, and its profiles as text and for ``go tool pprof``.

A timer that runs only while the process computes interrupts the main thread, and the stacks of all
threads at that moment are one sample: an idle process has none. A sample costs some ten
microseconds. Nothing runs unless a profile is requested.

py-spy and memray show more, but they have to attach to the process, and most containers forbid
that (no CAP_SYS_PTRACE, no debugger installed); docs/debugging.md says when to use them.
"""

from __future__ import annotations

import gzip
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, process_time, time_ns
from types import CodeType, FrameType
from typing import Final

import trio

from trionsq.debug.process import UnderWayError, exclusive

__all__ = [
    "Line",
    "NotInMainThreadError",
    "Profile",
    "Stack",
    "ThreadProfile",
    "pprof_bytes",
    "profile",
    "text_lines",
]

# Deeper stacks lose their outer end; more different stacks are counted as one.
_MAX_DEPTH: Final = 100
_MAX_STACKS: Final = 20_000
_WAITS: Final = frozenset(
    {
        ("trio._core._io_epoll", "EpollIOManager.get_events"),
        ("trio._core._io_kqueue", "KqueueIOManager.get_events"),
        ("trio._core._thread_cache", "WorkerThread._work"),
        ("threading", "Condition.wait"),
        ("threading", "Thread._wait_for_tstate_lock"),
        ("selectors", "EpollSelector.select"),
    }
)

# Code and the line in it.
Line = tuple[CodeType, int]
# Innermost line first.
Stack = tuple[Line, ...]
_OTHER_STACKS: Final[Stack] = ()


class NotInMainThreadError(Exception):
    """The event loop runs in another thread, which no timer can interrupt."""


@dataclass(slots=True)
class ThreadProfile:
    """The samples of a thread.

    Attributes:
        name: of the thread.
        stacks: each different stack with its number of samples. The empty stack stands for all
            stacks beyond the limit.
    """

    name: str
    stacks: Counter[Stack] = field(default_factory=Counter)

    def add(self, stack: Stack, count: int) -> None:
        """Add ``count`` samples of a stack."""
        if stack not in self.stacks and len(self.stacks) >= _MAX_STACKS:
            stack = _OTHER_STACKS
        self.stacks[stack] += count


@dataclass(slots=True)
class Profile:
    """The samples of all threads.

    Attributes:
        interval_s: processor time between samples.
        began_ns: wall clock.
        seconds: duration on the wall clock.
        cpu_seconds: processor time that the process used.
        threads: those that were sampled, the main one first.
    """

    interval_s: float
    began_ns: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    threads: list[ThreadProfile] = field(default_factory=list)

    def counted(self) -> Iterator[tuple[ThreadProfile, Stack, int]]:
        """Yield each thread's different stacks with their number of samples."""
        for thread in self.threads:
            for stack, count in thread.stacks.items():
                yield thread, stack, count


class _Sampler:
    def __init__(self, interval_s: float) -> None:
        self.profile = Profile(interval_s, time_ns())
        self._by_ident: dict[int, ThreadProfile] = {}
        self._began_s = monotonic()
        self._began_cpu_s = self._sampled_cpu_s = process_time()

    def sample(self, frame: FrameType | None) -> None:
        """Add a sample: the timer has expired, once or more; ``frame`` is the main thread's."""
        now_s = process_time()
        count = max(1, round((now_s - self._sampled_cpu_s) / self.profile.interval_s))
        self._sampled_cpu_s = now_s
        frames = sys._current_frames()
        if frame is None or frames.pop(_main_ident(), None) is None:
            return
        others = [other for other in frames.items() if not _waits(other[1])]
        for ident, other in others:
            self._thread(ident).add(_stack(other), count)
        # If the main thread waits, another thread has used the time that the timer counts.
        if not (others and _waits(frame)):
            self._thread(_main_ident()).add(_stack(frame), count)

    def finish(self) -> Profile:
        """Return the profile."""
        profile = self.profile
        profile.seconds = monotonic() - self._began_s
        profile.cpu_seconds = process_time() - self._began_cpu_s
        main = _main_ident()
        profile.threads = [
            self._by_ident[ident] for ident in sorted(self._by_ident, key=lambda i: i != main)
        ]
        return profile

    def _thread(self, ident: int) -> ThreadProfile:
        thread = self._by_ident.get(ident)
        if thread is None:
            thread = self._by_ident[ident] = ThreadProfile(_thread_name(ident))
        return thread


def _main_ident() -> int:
    return threading.main_thread().ident or 0


def _thread_name(ident: int) -> str:
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.name
    return f"thread {ident}"


def _waits(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__"), frame.f_code.co_qualname
    return name in _WAITS


def _stack(frame: FrameType | None) -> Stack:
    lines: list[Line] = []
    while frame is not None and len(lines) < _MAX_DEPTH:
        lines.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(lines)


async def profile(seconds: float, hz: float = 100.0) -> Profile:
    """Profile all threads for ``seconds``, ``hz`` times in each second of processor time.

    Cancelling stops the timer.

    Raises:
        UnderWayError: another profile is under way, or something else uses the timer (SIGPROF).
        NotInMainThreadError: the event loop does not run in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise NotInMainThreadError
    with exclusive("profile"):
        if signal.getitimer(signal.ITIMER_PROF) != (0.0, 0.0):
            raise UnderWayError("profile")
        sampler = _Sampler(1 / hz)
        with _timer(1 / hz, sampler.sample):
            await trio.sleep(seconds)
        return sampler.finish()


@contextmanager
def _timer(interval_s: float, expired: Callable[[FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, lambda _, frame: expired(frame))
    try:
        signal.setitimer(signal.ITIMER_PROF, interval_s, interval_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # The default action kills the process, and a signal may still be pending.
        signal.signal(signal.SIGPROF, before if callable(before) else _ignore_signal)


def _ignore_signal(_: int, frame: FrameType | None) -> None:
    """Ignore a signal that was pending when the timer stopped."""


# Text

_Function = tuple[str, int, str]  # file, first line, name


def text_lines(profile: Profile, top: int) -> Iterator[str]:
    """Yield lines for people: the ``top`` functions by own time, then by time with calls."""
    own: Counter[_Function] = Counter()
    cumulative: Counter[_Function] = Counter()
    for _, stack, count in profile.counted():
        functions = _functions(stack)
        own[functions[0]] += count
        for function in set(functions):
            cumulative[function] += count
    total = own.total()
    yield (
        f"{profile.seconds:.1f} s, {profile.cpu_seconds:.2f} s of processor time, sampled"
        f" {1 / profile.interval_s:.0f} times a second: {total} samples of"
        f" {len(profile.threads)} threads"
    )
    yield ""
    yield f"{'own':>8} {'%':>6} {'with calls':>11} {'%':>6}"
    for function, count in own.most_common(top):
        yield _text_line(function, count, cumulative[function], total)
    yield ""
    yield "by time with calls:"
    for function, count in cumulative.most_common(top):
        yield _text_line(function, own[function], count, total)


def _functions(stack: Stack) -> list[_Function]:
    """The functions of a stack, innermost first."""
    if not stack:
        return [("", 0, "(stacks beyond the limit)")]
    return [(code.co_filename, code.co_firstlineno, code.co_qualname) for code, _ in stack]


def _text_line(function: _Function, own: int, cumulative: int, total: int) -> str:
    file, line, name = function
    return (
        f"{own:>8} {own / total:>6.1%} {cumulative:>11} {cumulative / total:>6.1%}"
        f"  {name} ({file}:{line})"
    )


# pprof: a gzipped protocol buffer. Messages and field numbers are those of its ``profile.proto``.

_BYTES_FIELD: Final = 2


def pprof_bytes(profile: Profile) -> bytes:
    """Return the samples, and the processor nanoseconds that they stand for, by stack."""
    return gzip.compress(_PprofMessage(profile).encode(), mtime=0)


class _PprofMessage:
    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        # Numbers of strings begin at 0, which is the empty one; the others begin at 1.
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[CodeType, int] = {}
        self._locations: dict[Line, int] = {}

    def encode(self) -> bytes:
        profile = self._profile
        interval_ns = round(profile.interval_s * 1e9)
        cpu_type = self._value_type("cpu", "nanoseconds")
        parts = [
            _message(1, self._value_type("samples", "count")),
            _message(1, cpu_type),
        ]
        for thread, stack, count in profile.counted():
            label = _number(1, self._string("thread")) + _number(2, self._string(thread.name))
            sample = _numbers(1, [self._location(line) for line in stack])
            sample += _numbers(2, [count, count * interval_ns]) + _message(3, label)
            parts.append(_message(2, sample))
        # Each kind adds strings, and locations add functions.
        parts += [
            _message(4, _number(1, number) + _message(4, self._line(line)))
            for line, number in self._locations.items()
        ]
        parts += [_message(5, self._function(code, n)) for code, n in self._functions.items()]
        parts += [_message(6, text.encode(errors="replace")) for text in self._strings]
        parts += [
            _number(9, profile.began_ns),
            _number(10, round(profile.seconds * 1e9)),
            _message(11, cpu_type),
            _number(12, interval_ns),
        ]
        return b"".join(parts)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, line: Line) -> int:
        return self._locations.setdefault(line, len(self._locations) + 1)

    def _value_type(self, kind: str, unit: str) -> bytes:
        return _number(1, self._string(kind)) + _number(2, self._string(unit))

    def _line(self, line: Line) -> bytes:
        code, number = line
        function = self._functions.setdefault(code, len(self._functions) + 1)
        return _number(1, function) + _number(2, number)

    def _function(self, code: CodeType, number: int) -> bytes:
        name = self._string(code.co_qualname)
        return b"".join(
            [
                _number(1, number),
                _number(2, name),
                _number(3, name),
                _number(4, self._string(code.co_filename)),
                _number(5, code.co_firstlineno),
            ]
        )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES_FIELD) + _varint(len(content)) + content


def _numbers(field: int, numbers: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, numbers)))
