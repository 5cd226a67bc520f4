"""docs/architecture.md and the README's tour name files and functions that exist."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ("README.md", "CONTRIBUTING.md", "docs/README.md", "docs/architecture.md")
ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"

# `Class.method` and a link to its file, in a row of the table or in a sentence
_STEP: Final = re.compile(r"`(\w+)\.(\w+)`(?: in|\s*\|)\s*\[[\w/.]+\]\(\.\./([\w/.]+\.py)\)")
_NAMED: Final = re.compile(r"`([A-Z]\w+)\.(\w+)`|\b([A-Z]\w+)\.(\w+)(?=[:,\n])")


def methods(path: Path) -> set[tuple[str, str]]:
    """The methods of a file, with the classes that define them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        (node.name, member.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_step_is_in_the_file_that_the_page_names() -> None:
    """A reader who follows the walk of a message finds every function where the page says."""
    steps = _STEP.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(steps) >= 20
    missing = [step for step in steps if (step[0], step[1]) not in methods(ROOT / step[2])]
    assert not missing


def test_each_function_in_the_picture_and_text_exists() -> None:
    """Names without a link are methods of some class in trionsq."""
    known = set[tuple[str, str]]().union(*map(methods, (ROOT / "trionsq").rglob("*.py")))
    names = _NAMED.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(names) >= 20
    missing = [name for name in names if (name[0] or name[2], name[1] or name[3]) not in known]
    assert not missing


def test_every_package_has_its_line() -> None:
    """The table lists all packages of trionsq, and those beside it."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    packages = [f"trionsq/{path.parent.name}/" for path in (ROOT / "trionsq").glob("*/__init__.py")]
    for package in (*packages, "lookupd/", "admin/", "pipelines/"):
        assert f"[`{package}`]" in text, package


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    """Every relative link of the pages for developers leads to a file or folder."""
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


def test_files_in_the_tour_exist() -> None:
    """Each file that the README's tour names is in the folder of its paragraph."""
    tour = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A guided tour")[2]
    missing: list[str] = []
    for paragraph in re.split(r"\n(?=[0-9]+\. )", tour):
        links = re.findall(r"\]\(([\w/.]+)/__init__\.py\)", paragraph)
        folders = [ROOT, *(ROOT / link for link in links)]
        names = re.findall(r"`([\w/]+(?:\.py|/))`", paragraph)
        missing += [name for name in names if not any((path / name).exists() for path in folders)]
    assert not missing
