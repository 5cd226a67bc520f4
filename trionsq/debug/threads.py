"""What the threads of the process do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType

from trionsq.debug.places import place_of

__all__ = ["text_pieces"]


def text_pieces(*, stacks: bool) -> Iterator[str]:
    """A line for each thread; with ``stacks`` where it is, outermost first."""
    frames = sys._current_frames()
    threads = threading.enumerate()
    yield f"{len(threads)} threads\n"
    for thread in threads:
        yield f"{thread.name}  [{'daemon, ' if thread.daemon else ''}{thread.native_id}]\n"
        if stacks:
            frame = frames.get(thread.ident or 0)
            yield from (f"    | {place}\n" for place in _places(frame))


def _places(frame: FrameType | None) -> list[str]:
    places: list[str] = []
    while frame is not None:
        places.append(str(place_of(frame)))
        frame = frame.f_back
    return places[::-1]
