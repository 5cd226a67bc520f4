"""What a daemon asks of the operating system (trionsq.daemon.command)."""

from __future__ import annotations

import resource

import pytest

from trionsq.daemon.command import raise_open_files_limit


def test_as_many_files_as_allowed_may_be_open() -> None:
    """The soft limit becomes the hard one; asking again changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        for _ in range(2):
            raise_open_files_limit()
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
    raise_open_files_limit()
    assert tried == [(resource.RLIMIT_NOFILE, (before[1], before[1]))]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
