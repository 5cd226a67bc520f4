"""Names of nsqlookupd's tasks, for the debug pages."""

from __future__ import annotations

from typing import Final

from trionsq.web.task_names import COMMON, Names, always, namer, peer_of

__all__ = ["NAMED", "task_name"]

NAMED: Final[Names] = {
    **COMMON,
    "lookupd.daemon.run_nsqlookupd": always("nsqlookupd"),
    "lookupd.daemon.Lookupd.serve_socket": lambda found: f"client {peer_of(found['accepted'])}",
}

task_name = namer(NAMED)
