"""The recorded conversations with nsqadmin. Their steps name a member of the cluster (``to``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.golden.needs import deviations
from tests.golden.transcripts import HERE
from tests.processes import other_nsqadmin

__all__ = ["ADMIN_FILE", "ADMIN_INSTEAD_FILE", "admin_cases", "read_admin_cases"]

ADMIN_FILE = HERE / "data" / "http_nsqadmin_api.jsonl"
ADMIN_INSTEAD_FILE = HERE / "instead" / "http_nsqadmin_api.jsonl"


def read_admin_cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a file, in its order."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def admin_cases() -> list[dict[str, Any]]:
    """The recorded cases; for our own nsqadmin with those that hold where we deviate."""
    cases = read_admin_cases(ADMIN_FILE)
    if other_nsqadmin():
        return cases
    deviating = {entry.case for entry in deviations() if entry.suite == "nsqadmin"}
    kept = [case for case in cases if case["name"] not in deviating]
    return kept + read_admin_cases(ADMIN_INSTEAD_FILE)
