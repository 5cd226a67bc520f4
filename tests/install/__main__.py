"""``make check-install``: the wheel on each Python, with the dependencies that pip finds today.

For each Python that the classifiers of pyproject.toml name and this machine has: a new
environment, ``pip install`` of the wheel without pins, first the client alone
(`tests.install.lean`), then ``[server]`` on top of it with `tests.install.programs`; at the end it
is uninstalled. Names each Python that was tried or is missing. Exit code 1 if any fails, or none
was found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.install.lean import LIMIT_S, try_client
from tests.install.programs import InstallError, try_programs

ROOT = Path(__file__).parents[2]
# A download of some 20 MB over a slow line
PIP_LIMIT_S = 600.0
OURS = ("trionsq", "lookupd", "admin", "pipelines", "pyspark_nsq.py")
SHOWN = ("trio", "hypercorn", "Quart", "quart-trio", "Flask", "Werkzeug", "cryptography")


def main() -> int:
    """Try all; the exit code."""
    arguments = argparse.ArgumentParser(description="the wheel on each Python, without pins")
    arguments.add_argument("--only", metavar="3.N", help="this Python")
    only = arguments.parse_args().only
    results = []
    with tempfile.TemporaryDirectory(prefix="check-install-") as place:
        wheel = build_wheel(Path(place))
        for version in [only] if only else versions():
            python = find_python(version)
            if python is None:
                tell(f"Python {version}: not found, so not tried")
                continue
            results.append(try_python(python, version, wheel, Path(place) / version))
    return 0 if results and all(results) else 1


def tell(text: str) -> None:
    """A line at once."""
    print(text, flush=True)


def versions() -> list[str]:
    """The Pythons that pyproject.toml promises: 3.11 and so on."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in classifiers
    )
    return [match[1] for match in found if match]


def find_python(version: str) -> Path | None:
    """The interpreter of that version, on PATH or from pyenv."""
    for candidate in _candidates(version):
        ask = [str(candidate), "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
        # A shim of pyenv is there for each version, and fails for those that are not chosen.
        try:
            said = subprocess.run(ask, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except OSError:
            continue
        if said.stdout.split() == version.split("."):
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    (wheel,) = folder.glob("trionsq-*.whl")
    return wheel


def try_python(python: Path, version: str, wheel: Path, folder: Path) -> bool:
    """Install there and try; says what came of it."""
    begun_s = time.monotonic()
    installed = ""
    try:
        subprocess.run(
            [str(python), "-m", "venv", str(folder / "venv")], check=True, timeout=LIMIT_S
        )
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _install(pip, str(wheel))
        tell(f"Python {version}: {try_client(folder / 'venv', folder)}")
        _install(pip, f"{wheel}[server]")
        installed = _shown(pip)
        (folder / "data").mkdir()
        try_programs(folder / "venv" / "bin", folder / "data")
        # The client again, then the same wheel once more, as an upgrade does: nothing gets lost.
        _install(pip, "--force-reinstall", "--no-deps", str(wheel))
        try_programs(folder / "venv" / "bin", folder / "data")
        subprocess.run(
            [*pip, "uninstall", "--quiet", "--yes", "trionsq"],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
        (packages,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
        if left := [name for name in OURS if (packages / name).exists()]:
            raise InstallError(f"pip uninstall has left {left}")
    except (subprocess.SubprocessError, InstallError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace")
        tell(f"Python {version} ({python}): FAILED with {installed}\n{error}\n{said}".rstrip())
        return False
    tell(f"Python {version} ({python}): ok in {time.monotonic() - begun_s:.0f} s with {installed}")
    return True


def _install(pip: list[str], *words: str) -> None:
    """Install, and check that all requirements are met."""
    subprocess.run(
        [*pip, "install", "--quiet", *words], check=True, capture_output=True, timeout=PIP_LIMIT_S
    )
    subprocess.run([*pip, "check"], check=True, capture_output=True, timeout=LIMIT_S)


def _shown(pip: list[str]) -> str:
    listed = subprocess.run(
        [*pip, "list", "--format=freeze"],
        check=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    found = dict(line.split("==") for line in listed.stdout.split() if "==" in line)
    names = {name.lower(): name for name in SHOWN}
    return ", ".join(
        f"{names[name.lower()]} {version}"
        for name, version in found.items()
        if name.lower() in names
    )


if __name__ == "__main__":
    sys.exit(main())
