"""Messages that a log got from disk queues: each record names the place that they came from.

A copy counts when one commit of the state says so, with all that belongs to it: the end of the log
that the state has is behind it then. What a crash left of other copies is a gap.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trionsq.core.keys import DIGEST_BYTES, PublishKey
from trionsq.storage.log.format import Origin, RecordHead

__all__ = ["is_void", "origin_key", "origin_of"]

# No client can send such a key. It never gets to the disk: the record has the origin instead.
_PREFIX: Final = b"\0from\0"
_POSITION: Final = Struct(">Q")


def origin_key(origin: Origin) -> PublishKey:
    """Return the key that a batch has on its way into the log. One for each batch."""
    name, position = origin
    return PublishKey(_PREFIX + _POSITION.pack(position) + name.encode(), bytes(DIGEST_BYTES))


def origin_of(key: PublishKey | None) -> Origin | None:
    """Return where the messages of a key came from; None if they were published."""
    if key is None or not key.text.startswith(_PREFIX):
        return None
    at = len(_PREFIX)
    [position] = _POSITION.unpack_from(key.text, at)
    return key.text[at + _POSITION.size :].decode(), position


def is_void(head: RecordHead, stored_end: int) -> bool:
    """Return whether a record is a copy that does not count; ``stored_end``: of the state."""
    return head.origin is not None and head.sequence >= stored_end
