"""Where a disk queue stands, and the text that keeps it over a restart.

Spec: nsqd-internals, section 7 (the file ``<queue>.diskqueue.meta.dat``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Positions", "QueueFiles"]

_TEXT: Final = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")


@dataclass(slots=True)
class Positions:
    """The state of a disk queue. Positions are byte offsets.

    Attributes:
        depth: records written and not read, as counted; after an unclean stop it may be wrong.
        read_file, read_pos: number of the file and offset of the next record to read.
        write_file, write_pos: where the next record is written.
    """

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0

    @property
    def all_read(self) -> bool:
        """Whether the reader has come to where the writer is."""
        return self.read_pos >= self.write_pos and self.read_file >= self.write_file

    def text(self) -> bytes:
        """As the file has it."""
        return b"%d\n%d,%d\n%d,%d\n" % (
            max(0, self.depth),
            self.read_file,
            self.read_pos,
            self.write_file,
            self.write_pos,
        )

    @classmethod
    def parse(cls, text: bytes) -> Positions:
        """The state that a file tells.

        Raises:
            ValueError: it is not such a file, or the reader is ahead of the writer.
        """
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"no positions: {text[:40]!r}")
        positions = cls(*map(int, match.groups()))
        reader = (positions.read_file, positions.read_pos)
        if reader > (positions.write_file, positions.write_pos):
            raise ValueError(f"the reader is ahead of the writer: {text!r}")
        return positions


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The names of a queue's files. ``queue`` is ``topic`` or ``topic:channel``."""

    queue: str

    @property
    def positions(self) -> str:
        return f"{self.queue}.diskqueue.meta.dat"

    def records(self, number: int) -> str:
        return f"{self.queue}.diskqueue.{number:06d}.dat"

    def set_aside(self, number: int) -> str:
        """The name that a file gets which can't be read, or must not be overwritten."""
        return self.records(number) + ".bad"
