"""What users install: the four packages, typed, and at top level only what Spark looks for."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tests.install.__main__ import build_wheel
from tests.install.programs import try_programs
from tests.soak import in_short_soak

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_exactly_the_four_packages(tmp_path: Path) -> None:
    """No `tests` and no `benchmarks` land in site-packages; each package says that it is typed."""
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        scripts = archive.read(entry_points).decode()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    packages = {"trionsq", "lookupd", "admin", "pipelines"}
    assert top == packages | {"pyspark_nsq.py"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert "nsqd = trionsq.local.programs:nsqd" in scripts
    pages = ROOT / "admin" / "pages"
    shown = {f"admin/pages/{file.relative_to(pages)}" for file in pages.rglob("*.*")}
    assert {name for name in shown if "__pycache__" not in name} <= set(names)


def test_the_pins_name_no_registry() -> None:
    """The pinned dependencies install from whatever registry the machine is set up for."""
    pins = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert "://" not in pins
    assert "--index" not in pins


@in_short_soak
def test_the_programs_run_from_the_wheel(tmp_path: Path) -> None:
    """All that they need is in the wheel, and its commands start them.

    The short form of `make check-install`: this Python only, with the pinned dependencies.
    """
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", build_wheel(tmp_path)],
        check=True,
        timeout=60,
    )
    # A folder that is named in a .pth file has its own .pth files ignored, and so ours as editable.
    (packages,) = (venv / "lib").glob("python3.*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    (tmp_path / "data").mkdir()
    try_programs(venv / "bin", tmp_path / "data")


def _dependencies() -> dict[str, Requirement]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    told = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    return {found.name: found for found in map(Requirement, told) if found.name != "trionsq"}


def test_each_dependency_is_bounded_and_pinned_within_its_bounds() -> None:
    """A release that we have not seen is not installed, whatever the Python."""
    pins = dict(
        re.findall(r"^([a-z0-9-]+)==([^ ]+)", (ROOT / "requirements-dev.txt").read_text(), re.M)
    )
    for name, dependency in _dependencies().items():
        assert Version(pins[name]) in dependency.specifier
        assert Version("999") not in dependency.specifier


def test_no_quart_is_allowed_that_quart_trio_can_not_be_imported_with() -> None:
    """pip would take it on Python 3.13, where it exists, and no daemon could start."""
    found = _dependencies()
    assert Version("0.13.0") not in found["quart-trio"].specifier
    assert Version("0.23.0") not in found["quart"].specifier
