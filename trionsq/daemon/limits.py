"""What the operating system allows a daemon."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["raise_open_files_limit"]


def raise_open_files_limit() -> None:
    """Let the process have as many open files, and so connections, as its hard limit says."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse a hard limit of "unlimited" here; then the soft one stays.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
