"""What users install: the four packages, typed, and at top level only what Spark looks for."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_exactly_the_four_packages(tmp_path: Path) -> None:
    """No `tests` and no `benchmarks` land in site-packages; each package says that it is typed."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("trionsq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        scripts = archive.read(entry_points).decode()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    packages = {"trionsq", "lookupd", "admin", "pipelines"}
    assert top == packages | {"pyspark_nsq.py"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert "nsqd = trionsq.cli.nsqd:main" in scripts
    pages = ROOT / "admin" / "pages"
    shown = {f"admin/pages/{file.relative_to(pages)}" for file in pages.rglob("*.*")}
    assert {name for name in shown if "__pycache__" not in name} <= set(names)


def test_the_pins_name_no_registry() -> None:
    """The pinned dependencies install from whatever registry the machine is set up for."""
    pins = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert "://" not in pins
    assert "--index" not in pins
