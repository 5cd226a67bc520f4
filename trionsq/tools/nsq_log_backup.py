"""The commands backup and restore of nsq_log."""

from __future__ import annotations

import json
from functools import partial
from typing import Final
from urllib.parse import quote

import trio

from trionsq.httpget import GetError, post
from trionsq.storage.log.backup import BackupError, restore_backup
from trionsq.tools.nsq_log_folder import GOOD, UNREADABLE
from trionsq.tools.nsq_log_output import LogOutput

__all__ = ["backup", "restore"]

# A backup copies the state, and syncs what was not synced.
_TIMEOUT_S: Final = 600.0
_OK: Final = 200


def backup(address: str, name: str, output: LogOutput) -> int:
    """Have an nsqd make a backup, and print where it is; return the exit code."""
    url = f"http://{address}/log/backup?name={quote(name, safe='')}"
    try:
        answer = trio.run(partial(post, url, b"", request_timeout_s=_TIMEOUT_S))
    except GetError as error:
        output.remark(str(error))
        return UNREADABLE
    if answer.status != _OK:
        text = answer.body.decode(errors="replace")
        output.remark(f"{address}: {answer.status} {text}")
        return UNREADABLE
    try:
        made = json.loads(answer.body)
        segments, nbytes = int(made["segments"]), int(made["bytes"])
        return _report(output, str(made["path"]), segments, nbytes)
    except (KeyError, TypeError, ValueError):
        output.remark(f"{address}: this is no answer of nsqd's /log/backup")
        return UNREADABLE


def restore(path: str, data_path: str, output: LogOutput) -> int:
    """Copy a backup to an empty data path; return the exit code."""
    try:
        sizes = restore_backup(path, data_path)
    except BackupError as error:
        output.remark(str(error))
        return UNREADABLE
    return _report(output, data_path, len(sizes), sum(sizes.values()))


def _report(output: LogOutput, path: str, segments: int, nbytes: int) -> int:
    output.line(f"{path}: {segments} segments, {nbytes} bytes")
    output.document = {"path": path, "segments": segments, "bytes": nbytes}
    return GOOD
