"""What was found out a moment ago, so that many who look at one page ask the nodes once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import trio

__all__ = ["KEPT_MAX", "KEPT_S", "Recent"]

T = TypeVar("T")

KEPT_S: Final = 1.0
"""In seconds; nothing is shown that is older."""
KEPT_MAX: Final = 32
"""Answers; the oldest goes first."""


@dataclass(slots=True)
class _Finding:
    done: trio.Event = field(default_factory=trio.Event)
    found: bool = False
    value: Any = None
    until_s: float = 0.0


class Recent:
    """Answers by key. Who asks for what is being found out waits for it."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._findings: OrderedDict[Hashable, _Finding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._findings)

    async def get(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        """What ``find`` returns or returned just now; what it raises is raised and not kept."""
        while (finding := self._findings.get(key)) is not None:
            if not finding.done.is_set():
                await finding.done.wait()
            if finding.found and trio.current_time() < finding.until_s:
                return cast(T, finding.value)
            if self._findings.get(key) is finding:
                del self._findings[key]
        return await self._find(key, find)

    def clear(self) -> None:
        """Forget: something was changed. What is being found out may be of before, too."""
        self._findings.clear()

    async def _find(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        finding = self._findings[key] = _Finding()
        self._drop()
        try:
            finding.value = value = await find()
            finding.found, finding.until_s = True, trio.current_time() + self._kept_s
            return value
        finally:
            finding.done.set()
            if not finding.found and self._findings.get(key) is finding:
                del self._findings[key]

    def _drop(self) -> None:
        now_s = trio.current_time()
        over = [k for k, f in self._findings.items() if f.done.is_set() and f.until_s <= now_s]
        for key in over:
            del self._findings[key]
        while len(self._findings) > KEPT_MAX:
            self._findings.popitem(last=False)
