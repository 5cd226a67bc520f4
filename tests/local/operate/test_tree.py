"""The tree of commands: help, shell completion and man pages come from its definitions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.local.operate.stage import LIMIT_S, run_command
from trionsq.local.operate.manual import write_pages
from trionsq.local.operate.tree import cli


def commands(group: click.Group = cli, *above: str) -> Iterator[tuple[str, ...]]:
    """The words of each command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield (*above, name)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_help_has_an_example_that_is_a_command(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The example names the command, and its flags exist."""
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    lines = (command.epilog or "").splitlines()
    examples = [line.strip() for line in lines if "trionsq " in line]
    assert examples
    for example in examples:
        assert f"trionsq {' '.join(words)}" in example
        flags = {word.partition("=")[0] for word in example.split() if word.startswith("--")}
        assert flags <= {flag for one in command.params for flag in one.opts}
    if words != ("up",):  # it prints its own
        shown = run_command(capsys, *words, "--help")
        assert shown.code == 0
        assert all(example in shown.out for example in examples)


@pytest.fixture(scope="module")
def script_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH with the command ``trionsq`` of this project."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "trionsq"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trionsq.local.main "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


BASH = """
eval "$(trionsq completion bash)"
COMP_WORDS=(trionsq topic pa); COMP_CWORD=2; _trionsq_completion trionsq
echo "${COMPREPLY[@]}"
COMPREPLY=()
COMP_WORDS=(trionsq channel seek --t); COMP_CWORD=3; _trionsq_completion trionsq
echo "${COMPREPLY[@]}"
complete -p trionsq
"""
# compadd and _describe work in a terminal only: here they print what they are given.
ZSH = """
compdef() { registered=$2 }
compadd() { print -- ${completions} }
_describe() { print -- ${completions_with_descriptions} }
eval "$(trionsq completion zsh)"
words=(trionsq topic pa); CURRENT=3; _trionsq_completion
words=(trionsq channel seek --t); CURRENT=4; _trionsq_completion
print $registered
"""


@pytest.mark.parametrize(
    ("shell", "script", "last"),
    [
        ("bash", BASH, "complete -o nosort -F _trionsq_completion trionsq"),
        ("zsh", ZSH, "trionsq"),
    ],
    ids=["bash", "zsh"],
)
def test_a_shell_completes(shell: str, script: str, last: str, script_path: str) -> None:
    """Commands and flags, by the script that ``trionsq completion`` prints."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    quiet = ["--norc", "--noprofile"] if shell == "bash" else ["-f"]
    done = subprocess.run(
        [shell, *quiet, "-c", script],
        env={**os.environ, "PATH": script_path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stderr == ""
    command, flag, registered = done.stdout.splitlines()
    assert command.partition(":")[0] == "pause"
    assert flag.partition(":")[0] == "--to"
    assert registered == last


def test_fish_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """It asks this command; no fish runs it here."""
    ended = run_command(capsys, "completion", "fish")
    assert ended.code == 0
    assert "--command trionsq" in ended.out


def test_man_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page for each command and group, which man renders without a warning."""
    assert run_command(capsys, "manual", str(tmp_path)).code == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert {f"{'-'.join(('trionsq', *words))}.1" for words in commands()} <= names
    assert "trionsq.1" in names
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stderr == ""
    assert "trionsq channel seek orders billing" in done.stdout


def test_text_is_no_macro_on_a_man_page(tmp_path: Path) -> None:
    """A backslash, and a dot or a quote at the beginning of a line, are shown as they are."""
    help_text = "A \\n in a path.\n\n.config is read.\n\n'quoted' as well."
    (path,) = write_pages(click.Command("c", help=help_text), tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert r"c \- A \en in a path." in lines
    assert r"\&.config is read." in lines
    assert r"\&'quoted' as well." in lines
