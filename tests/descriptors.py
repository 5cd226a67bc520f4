"""A process that has no free file descriptor."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_free_descriptors"]


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Let everything that needs a new descriptor fail with EMFILE; open files work on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
