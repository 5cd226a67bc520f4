"""The modules that mypyc compiles: nothing in them means something else to it.

`make test-compiled` runs them compiled.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import trio

from tests.processes import running_nsqd
from trionsq.core import topic

IS_COMPILED = "TRIONSQ_TEST_COMPILED" in os.environ
ROOT = Path(__file__).parent.parent
HOOKS = ("tool", "hatch", "build", "targets", "wheel", "hooks", "custom")


def modules() -> list[str]:
    """The modules that pyproject.toml names."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name in HOOKS:
        table = table[name]
    return list(table["modules"])


def test_they_are_there_and_each_once() -> None:
    assert modules() == sorted(set(modules()))
    assert [name for name in modules() if not (ROOT / name).is_file()] == []


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that mypyc refuses, or compiles to something that fails when it runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.TryStar):
            yield node.lineno, "except*"
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "__class__"
            and isinstance(node.ctx, ast.Store)
        ):
            yield node.lineno, "a change of the class"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds: dict[str, str] = {}
            for one in ast.walk(node):
                if isinstance(one, ast.ExceptHandler) and one.name and one.type is not None:
                    kind = ast.unparse(one.type)
                    if kinds.setdefault(one.name, kind) != kind:
                        yield one.lineno, f"{one.name} is of two types"


@pytest.mark.parametrize("name", modules())
def test_it_can_be_compiled(name: str) -> None:
    assert list(faults(ast.parse((ROOT / name).read_text()))) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("try:\n    f()\nexcept* OSError:\n    pass", "except*"),
        ("one.__class__ = Other", "a change of the class"),
        (
            "def f():\n    try:\n        g()\n    except OSError as error:\n        h(error)\n"
            "    except ValueError as error:\n        h(error)",
            "error is of two types",
        ),
    ],
)
def test_a_fault_is_found(source: str, fault: str) -> None:
    assert [text for _, text in faults(ast.parse(source))] == [fault]


def first_line(url: str) -> str:
    with urlopen(url) as answer:
        return str(answer.readline().decode())


async def test_nsqd_says_whether_it_is_compiled(tmp_path: Path) -> None:
    """In this process and in others the same packages are tested, those that were asked for."""
    assert topic.__file__.endswith(".py") is not IS_COMPILED
    async with running_nsqd(tmp_path) as nsqd:
        line = await trio.to_thread.run_sync(first_line, f"http://{nsqd.http_address}/stats")
    assert line.startswith("nsqd v1.3.0 (built w/python")
    assert line.endswith(", compiled)\n") is IS_COMPILED
