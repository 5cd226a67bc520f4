"""Where code is, in few words: ``trionsq.broker.client:205 Client._ioloop``."""

from __future__ import annotations

from types import FrameType
from typing import NamedTuple

__all__ = ["Place", "place_of"]


class Place(NamedTuple):
    """A line of code.

    Attributes:
        module: dotted name.
        line: number in its file.
        function: qualified name inside the module.
        file: path.
    """

    module: str
    line: int
    function: str
    file: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function}"

    @property
    def is_of_trio(self) -> bool:
        """Whether it is trio's own code."""
        return self.module.partition(".")[0] in ("trio", "outcome")


def place_of(frame: FrameType, line: int | None = None) -> Place:
    """The place where ``frame`` is, at ``line`` if that is known better."""
    code = frame.f_code
    module = str(frame.f_globals.get("__name__", "?"))
    return Place(module, line or frame.f_lineno or 0, code.co_qualname, code.co_filename)
