"""Share of the lines that wait at which a sweep has waited, by folder.

``TRIONSQ_AWAITS=FILE python -m pytest ...`` writes the lines at which swept tasks waited to FILE
(see `tests/cancellation.py`), then ``python -m tests.awaits FILE`` prints the shares, and with
``--missing`` the lines at which none has waited. ``FOLDER...`` after ``--in`` limits both.

The lines are those of ``await``, ``async for`` and ``async with``, as the source has them. Some
never wait: what they call returns at once.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, TypeGuard

__all__ = ["await_lines", "main", "recorded_lines", "source_files"]

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("trionsq", "lookupd", "admin", "pipelines")

COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def await_lines(source: str) -> set[int]:
    """Lines that a waiting frame may have as its current one."""
    return {node.lineno for node in ast.walk(ast.parse(source)) if _waits(node)}


def _waits(node: ast.AST) -> TypeGuard[ast.expr | ast.stmt]:
    if isinstance(node, COMPREHENSIONS):
        return any(part.is_async for part in node.generators)
    return isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)


def source_files(folders: Collection[str] = PACKAGES) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def recorded_lines(files: Collection[Path]) -> dict[str, set[int]]:
    """Lines by path, of files of rows ``path:line``."""
    lines: dict[str, set[int]] = {}
    for file in files:
        for row in set(file.read_text().splitlines()):
            path, _, line = row.rpartition(":")
            lines.setdefault(path, set()).add(int(line))
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.awaits", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--missing", action="store_true", help="print the lines without a sweep")
    parser.add_argument("--in", nargs="+", default=PACKAGES, metavar="FOLDER", dest="folders")
    options = parser.parse_args(arguments)
    recorded = recorded_lines(options.files)
    counts: dict[str, tuple[int, int]] = {}
    for file in source_files(options.folders):
        path = str(file.relative_to(ROOT))
        source = file.read_text()
        lines = await_lines(source)
        if not lines:
            continue
        missing = lines - recorded.get(path, set())
        if options.missing:
            rows = source.splitlines()
            for line in sorted(missing):
                print(f"{path}:{line}: {rows[line - 1].strip()}")
        folder = str(Path(path).parent)
        waited, whole = counts.get(folder, (0, 0))
        counts[folder] = waited + len(lines) - len(missing), whole + len(lines)
    counts["all"] = sum(row[0] for row in counts.values()), sum(row[1] for row in counts.values())
    for folder, (waited, whole) in counts.items():
        print(f"{folder:24} {waited:4} of {whole:4}  {100 * waited // max(whole, 1):3} %")


if __name__ == "__main__":
    main()
