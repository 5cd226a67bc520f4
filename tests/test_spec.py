"""References to the specification in docstrings name pages and sections of docs/spec."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ROOT / "docs" / "spec"
SOURCES: Final = ("trionsq", "lookupd", "admin", "pipelines", "tests", "benchmarks", "deploy")

_REFERENCE: Final = re.compile(r"\bSpec: (.+?)(?:\.(?=\s|$)|\n\s*\n|$)", re.DOTALL)
_NOTE: Final = re.compile(r"\s*\([^)]*\)")
_PLACE: Final = re.compile(
    r"([A-Za-z-]+)(?:, (?:sections? ([0-9]+(?:(?:,| and| to) ?[0-9]+)*)|(.+)))?"
)


def headings(page: str) -> set[str]:
    """The titles of the sections of a page; of a numbered title, the number alone."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    titles = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"^([0-9]+)\. .*", r"\1", title).lower() for title in titles}


def places(reference: str) -> Iterator[tuple[str, str | None]]:
    """Page and section (None for a whole page) of each place that a reference names."""
    for item in _NOTE.sub("", " ".join(reference.split())).split("; "):
        match = _PLACE.fullmatch(item)
        assert match is not None, f"not 'Spec: NAME, section N': {item!r}"
        page, numbers, title = match.groups()
        if numbers is None:
            yield page, title
        for number in re.findall("[0-9]+", numbers or ""):
            yield page, number


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a module and of its classes and functions."""
    text = path.read_text(encoding="utf-8")
    if "Spec:" not in text:
        return  # as most files; to parse them all takes seconds
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def wrong_references(path: Path) -> list[str]:
    """The references of a file to pages or sections that do not exist."""
    wrong = []
    for docstring in docstrings(path):
        for reference in _REFERENCE.findall(docstring):
            for page, section in places(reference):
                if not (PAGES / f"{page}.md").exists():
                    wrong.append(f"there is no page {page}")
                elif section is not None and section.lower() not in headings(page):
                    wrong.append(f"{page} has no section {section}")
    return wrong


@pytest.mark.parametrize("package", SOURCES)
def test_references_to_the_specification_exist(package: str) -> None:
    """A reader who follows ``Spec: NAME, section N`` finds the section."""
    files = sorted((ROOT / package).rglob("*.py"))
    wrong = {
        str(path.relative_to(ROOT)): problems
        for path in files
        if path != Path(__file__) and (problems := wrong_references(path))
    }
    assert not wrong


def test_places_of_a_reference() -> None:
    """Several sections, several pages and notes in parentheses are understood."""
    reference = "tcp-protocol, sections 2, 3 and 7\n    to 9 (states); tools, nsq_stat; options"
    assert list(places(reference)) == [
        *(("tcp-protocol", number) for number in "2379"),
        ("tools", "nsq_stat"),
        ("options", None),
    ]


def test_recorded_files_that_the_specification_names_exist() -> None:
    """The pages refer to recorded conversations in tests/golden/data."""
    for page in sorted(PAGES.glob("*.md")):
        for name in re.findall(r"`(tests/[^`]+)`", page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
