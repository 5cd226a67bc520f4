"""What a daemon asks of the operating system (trionsq.daemon.command)."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys

import pytest

from trionsq.daemon.command import prepare_process


def test_as_many_files_as_allowed_may_be_open() -> None:
    """The soft limit becomes the hard one; asking again changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        for _ in range(2):
            prepare_process()
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_system_that_refuses_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon tries, and starts with the limit that it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    tried: list[object] = []

    def refuse(*limit: object) -> None:
        tried.append(limit)
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    prepare_process()
    assert tried == [(resource.RLIMIT_NOFILE, (before[1], before[1]))]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


# What a thread allocates would be in an arena of its own: it is the second one in the list.
_LIST_ARENAS = """
import ctypes, sys, threading
from trionsq.daemon.command import prepare_process
if sys.argv[1] == "prepared":
    prepare_process()
thread = threading.Thread(target=lambda: [bytes(1000) for _ in range(1000)])
thread.start()
thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="no glibc")
@pytest.mark.parametrize(("how", "arenas"), [("prepared", 1), ("as it is", 2)])
def test_threads_allocate_from_one_arena(how: str, arenas: int) -> None:
    """With glibc a thread would have an arena of its own."""
    command = [sys.executable, "-c", _LIST_ARENAS, how]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
    }
    listed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert listed.count("<heap nr=") == arenas
