"""The tree of commands: help, shell completion and man pages come from its definitions."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
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


# Notes the words that a shell gives to it, and completes as the command does.
SCRIPT = """#!/bin/sh
if [ -z "$_TRIONSQ_COMPLETE" ] && [ "$1" != completion ]; then
    echo "$*" >> "{log}"
    exit
fi
exec "{python}" -m trionsq.local.main "$@"
"""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit && compinit -D -u\n"),
    "fish": (["fish", "--no-config", "-i"], ""),
}
# What is typed before the key TAB, and what the command then gets.
TYPED = {
    "topic unp": "topic unpause",
    "channel seek orders billing --t": "channel seek orders billing --to",
    "channel peek orders billing --state in": "channel peek orders billing --state in_flight",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    """At a terminal, the key TAB completes commands, flags and values of flags."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    log = tmp_path / "log"
    script = tmp_path / "trionsq"
    script.write_text(SCRIPT.format(log=log, python=sys.executable), encoding="utf-8")
    script.chmod(0o755)
    words, preparation = SHELLS[shell]
    path = f"{tmp_path}:{os.environ['PATH']}"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PATH": path, "TERM": "dumb", "HOME": str(tmp_path)},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        output = threading.Thread(target=read_all, args=(ours,))
        output.start()
        os.write(ours, f'{preparation}eval "$(trionsq completion {shell})"\n'.encode())
        for line in TYPED:
            os.write(ours, f"trionsq {line}\t\n".encode())
        os.write(ours, b"exit\n")
        assert process.wait(LIMIT_S) == 0
    output.join()
    os.close(ours)
    assert log.read_text(encoding="utf-8").splitlines() == list(TYPED.values())


def read_all(terminal: int) -> None:
    """What a shell prints has to be read, or it waits."""
    with suppress(OSError):  # the other end is closed
        while os.read(terminal, 65536):
            pass


def test_fish_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """It asks this command, also where no fish is installed."""
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
