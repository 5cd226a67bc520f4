"""Up to which time message ids may have been given out: a clock set back must not repeat them.

``trionsq.dat`` holds ``{"format":1,"ids_until_ns":N}``; nsqd does not know the file.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from trionsq.disk import Disk, read_file, replace_file

__all__ = ["FILE_NAME", "IdFloor"]

FILE_NAME: Final = "trionsq.dat"
_FORMAT: Final = 1

log = logging.getLogger("trionsq")


class IdFloor:
    """The time of the file, in nanoseconds since the epoch (wall clock)."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> int:
        """No id at or after this time was given out; 0 if there is no (readable) file."""
        try:
            return _decode(read_file(self._disk, FILE_NAME))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, RecursionError) as error:
            log.warning(
                "ids may repeat if the clock was set back: %s/%s: %s",
                self._disk.path,
                FILE_NAME,
                error,
            )
            return 0

    def save(self, until_ns: int) -> None:
        """Store the time, durably.

        Raises:
            OSError: it may not be stored; the earlier time may stand.
        """
        text = f'{{"format":{_FORMAT},"ids_until_ns":{until_ns}}}'
        replace_file(self._disk, FILE_NAME, text.encode())


def _decode(data: bytes) -> int:
    content: object = json.loads(data)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"not of format {_FORMAT}")
    until_ns: object = content.get("ids_until_ns")
    if type(until_ns) is not int or until_ns < 0:
        raise ValueError("ids_until_ns is not a time")
    return until_ns
