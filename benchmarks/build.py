"""Compiles the generator and the floor (`native/*.c`) once for each state of their sources."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
BUILD = Path(__file__).parent / "build"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
SOURCES = {
    "load": (
        "load.c",
        "fail.c",
        "measure.c",
        "connection.c",
        "publisher.c",
        "consumer.c",
        "http.c",
        "run.c",
        "backlog.c",
    ),
    "floor": ("floor.c",),
}


class BuildError(Exception):
    """There is no C compiler, or it refused the sources."""


@dataclass(frozen=True)
class Programs:
    """Paths of the two compiled programs, and the compiler's own first line."""

    load: Path
    floor: Path
    compiler: str


def _compiler() -> tuple[list[str], str]:
    command = shlex.split(os.environ.get("CC", "cc"))
    try:
        version = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"the benchmarks need a C compiler, and {shlex.join(command)!r} does not run: {error};"
            " install one (Debian: apt-get install gcc libc6-dev) or name it in CC"
        ) from error
    return command, version.partition("\n")[0]


def _digest(version: str) -> str:
    digest = hashlib.sha256(f"{version} {FLAGS}".encode())
    for path in sorted(NATIVE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(into: Path = BUILD) -> Programs:
    """Compile what is not compiled yet below `into`, a folder for each state of the sources.

    Raises `BuildError` when there is no compiler or the sources don't compile.
    """
    command, version = _compiler()
    folder = into / _digest(version)
    folder.mkdir(parents=True, exist_ok=True)
    for name, sources in SOURCES.items():
        program = folder / name
        if program.exists():
            continue
        half_made = folder / f"{name}.{os.getpid()}"
        result = subprocess.run(
            [*command, *FLAGS, "-o", str(half_made), *(str(NATIVE / each) for each in sources)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise BuildError(f"{name} does not compile:\n{result.stderr}")
        half_made.replace(program)
    return Programs(folder / "load", folder / "floor", version)
