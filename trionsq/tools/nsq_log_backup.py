"""The commands backup and restore of nsq_log."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Final
from urllib.parse import quote

import trio

from trionsq.httpget import GetError, post
from trionsq.storage.log.backup import BackupError, restore_backup
from trionsq.tools.nsq_log_folder import GOOD, UNREADABLE

__all__ = ["backup", "restore"]

# A backup copies the state, and syncs what was not synced.
_TIMEOUT_S: Final = 600.0
_OK: Final = 200


def backup(address: str, name: str) -> int:
    """Have an nsqd make a backup, and print where it is; return the exit code."""
    url = f"http://{address}/log/backup?name={quote(name, safe='')}"
    try:
        answer = trio.run(partial(post, url, b"", request_timeout_s=_TIMEOUT_S))
    except GetError as error:
        print(f"nsq_log: {error}", file=sys.stderr)
        return UNREADABLE
    if answer.status != _OK:
        text = answer.body.decode(errors="replace")
        print(f"nsq_log: {address}: {answer.status} {text}", file=sys.stderr)
        return UNREADABLE
    made = json.loads(answer.body)
    print(f"{made['path']}: {made['segments']} segments, {made['bytes']} bytes")
    return GOOD


def restore(path: str, data_path: str) -> int:
    """Copy a backup to an empty data path; return the exit code."""
    try:
        sizes = restore_backup(path, data_path)
    except BackupError as error:
        print(f"nsq_log: {error}", file=sys.stderr)
        return UNREADABLE
    print(f"{data_path}: {len(sizes)} segments, {sum(sizes.values())} bytes")
    return GOOD
