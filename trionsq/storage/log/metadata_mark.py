"""Whether ``nsqd.dat`` is the one that this nsqd wrote last: the original may have had the folder.

The state has the hash of the file, committed before the file is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from trionsq.disk import Disk, read_file, replace_file
from trionsq.storage.log.rows import PutMeta, State, StateError
from trionsq.storage.metadata import METADATA_FILE, TopicRecord, encode_metadata

__all__ = ["MetadataMark", "distrust_metadata"]

log = logging.getLogger("trionsq")

_KEY: Final = "nsqd.dat"


def distrust_metadata() -> PutMeta:
    """Return the change after which the next start takes over what the file has."""
    return PutMeta(_KEY, json.dumps(["nobody's"]).encode())


class MetadataMark:
    """The hashes of what the file may be, if this nsqd wrote it last."""

    def __init__(self, state: State, meta: Mapping[str, bytes]) -> None:
        self._state = state
        self._hashes: list[str] = json.loads(meta.get(_KEY, b"[]"))

    def __repr__(self) -> str:
        return f"<MetadataMark {self._hashes}>"

    def is_ours(self, disk: Disk) -> bool | None:
        """Return whether this nsqd wrote the file last; None if that is not known. Blocks."""
        if not self._hashes:
            return None
        try:
            return hashlib.sha256(read_file(disk, METADATA_FILE)).hexdigest() in self._hashes
        except OSError:
            return None

    def write(self, disk: Disk, topics: Iterable[TopicRecord]) -> None:
        """Replace the file as `save_metadata`, and remember that. Blocks.

        Raises:
            OSError: the file may have its old content.
        """
        data = b"".join(encode_metadata(topics))
        new = hashlib.sha256(data).hexdigest()
        if new not in self._hashes:
            try:
                hashes = [*self._hashes[:1], new]
                self._state.apply([PutMeta(_KEY, json.dumps(hashes).encode())])
                self._hashes = hashes
            except StateError as error:
                log.warning("LOG: the next start may take nsqd.dat for another nsqd's: %s", error)
        replace_file(disk, METADATA_FILE, data)
        if new in self._hashes:
            # What was there before is gone for good.
            self._hashes = [new]
