"""Messages of a log that are for one channel alone: dead letters that go back to where they were.

They are published as deferred ones, which each channel holds for itself; the others leave them out.
The record has the name of the channel in its key, so a start knows, too.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Final

from trionsq.core.keys import DIGEST_BYTES, PublishKey

__all__ = ["AIMED_DELAY_MS", "Aims", "aim_key", "aimed_channel"]

AIMED_DELAY_MS: Final = 1
"""The delay of the messages."""

# No client can send such a key.
_PREFIX: Final = b"\0for\0"
_NOBODY: Final = ""


def aim_key(channel: str, letter: str) -> PublishKey:
    """Return the key of messages for a channel; ``letter`` makes it unlike all others."""
    text = _PREFIX + channel.encode() + b"\0" + letter.encode()
    return PublishKey(text, bytes(DIGEST_BYTES))


def aimed_channel(key: bytes | None) -> str | None:
    """Return the channel that a record is for; None if it is for all."""
    if key is None or not key.startswith(_PREFIX):
        return None
    return key.removeprefix(_PREFIX).split(b"\0")[0].decode()


class Aims:
    """Which messages of a log are for one channel alone."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        # First sequences, ends and channels, in order.
        self._ranges: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, first: int, end: int, channel: str, handed_on: int = 0) -> None:
        """Note messages; all before ``handed_on`` were handed to the channels."""
        self._ranges = [one for one in self._ranges if one[1] > handed_on]
        insort(self._ranges, (first, end, channel))

    def is_for(self, sequence: int, channel: str) -> bool:
        """Return whether a channel gets a message."""
        if not self._ranges:
            return True
        place = bisect_right(self._ranges, sequence, key=lambda one: one[0]) - 1
        _, end, wanted = self._ranges[place] if place >= 0 else (0, 0, _NOBODY)
        return sequence >= end or wanted == channel
