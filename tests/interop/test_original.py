"""The original's programs are found where they are, and nothing else is taken for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.interop.original import PROGRAMS, found_in


def install(folder: Path, start: bytes, *names: str) -> str:
    """A folder with executables that begin with ``start``."""
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(start)
        (folder / name).chmod(0o755)
    return str(folder)


def test_they_are_found_in_the_path(tmp_path: Path) -> None:
    """Behind a virtual environment with programs of the same names, which are scripts."""
    ours = install(tmp_path / "ours", b"#!/bin/sh\n", *PROGRAMS)
    theirs = install(tmp_path / "theirs", b"\x7fELF", *PROGRAMS)
    found = found_in("", os.pathsep.join([ours, theirs]))
    assert found == {name: f"{theirs}/{name}" for name in PROGRAMS}


def test_not_all_of_them_are_none(tmp_path: Path) -> None:
    """Half a cluster can't be mixed."""
    some = install(tmp_path / "some", b"\x7fELF", *PROGRAMS[:2])
    assert found_in("", some) == {}
    assert found_in("", None) == {}


def test_a_folder_that_lacks_one_is_an_error(tmp_path: Path) -> None:
    """Who names a folder wants the tests to run, not to be skipped."""
    some = install(tmp_path / "some", b"\x7fELF", *PROGRAMS[:2])
    with pytest.raises(pytest.UsageError, match=r"some/nsqadmin"):
        found_in(some, None)
    (tmp_path / "some" / PROGRAMS[2]).touch()
    assert found_in(some, None).keys() == set(PROGRAMS)
