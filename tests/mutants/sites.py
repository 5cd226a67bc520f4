"""Where a source file can be changed, and the changes: one small one at each place.

Log calls, `__repr__`, assertions, annotations and texts are left out: no test has to notice them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["KINDS", "Scope", "Site", "find_sites", "mutate", "name_of"]

KINDS: Final = {
    "sync removed": 8.0,
    "scope removed": 6.0,
    "await removed": 4.0,
    "comparison": 2.0,
    "logic": 2.0,
    "raise removed": 2.0,
    "branch swapped": 1.5,
    "call removed": 1.5,
    "assignment removed": 1.5,
    "del removed": 1.5,
    "jump removed": 1.5,
    "arithmetic": 1.5,
    "bool": 1.5,
    "constant": 1.0,
    "return removed": 0.7,
}
"""Each kind of change with its weight: what goes wrong seldom and silently is drawn more often."""

Scope = tuple[str, int]
"""A function that is in no other one: its qualified name and first line, as in its code object."""

_Change = Callable[[], None]
_Function = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
_LOG: Final = re.compile(r"(self\.)?_?(log|logger)\.")
_SYNC: Final = re.compile(r"\b(f?sync|fdatasync|flush)\w*\(")
_SCOPE: Final = re.compile(r"lock|[sS]cope|_after|_at\(|limit|suppress|[gG]uard|[cC]onflict")
_UNTESTED: Final = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Site:
    """One place and one change.

    Attributes:
        path: of the file, from the root of the project.
        number: of the site in its file.
        occurrence: among those of the file with the same line and change.
        kind: see `KINDS`.
        change: what is changed, in words.
        line_number: of the change, from 1.
        line: the text there, without the spaces around it.
        scope: the function, or None for code that runs at the import.
    """

    path: str
    number: int
    occurrence: int
    kind: str
    change: str
    line_number: int
    line: str
    scope: Scope | None

    @property
    def name(self) -> str:
        """Stays the same when lines move."""
        return name_of(self.path, self.line, self.change, self.occurrence)

    @property
    def weight(self) -> float:
        """Code that runs at the import is constants for the most part, which only restate."""
        return KINDS[self.kind] * (1.0 if self.scope else 0.3)


def name_of(path: str, line: str, change: str, occurrence: int) -> str:
    """Return the name of a site, which is unique."""
    return f"{path} | {line} | {change} | {occurrence}"


def find_sites(root: Path, path: str) -> list[Site]:
    """Return the sites of a file in the order of its lines."""
    source = (root / path).read_text(encoding="utf-8")
    lines, seen, sites = source.splitlines(), Counter[tuple[str, str]](), []
    for number, (kind, change, line_number, scope, _) in enumerate(_Finder(source).places):
        line = lines[line_number - 1].strip()
        occurrence = seen[line, change]
        seen[line, change] += 1
        sites.append(Site(path, number, occurrence, kind, change, line_number, line, scope))
    return sites


def mutate(root: Path, site: Site) -> ast.Module:
    """Return the file's syntax tree with the change made."""
    finder = _Finder((root / site.path).read_text(encoding="utf-8"))
    finder.places[site.number][-1]()
    return ast.fix_missing_locations(finder.tree)


class _Finder:
    """Walks one syntax tree; each place comes with the function that changes the tree there."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.places: list[tuple[str, str, int, Scope | None, _Change]] = []
        self._classes: list[str] = []
        self._scope: Scope | None = None
        self._walk_body(self.tree.body)

    def _add(self, kind: str, change: str, node: ast.expr | ast.stmt, apply: _Change) -> None:
        self.places.append((kind, change, node.lineno, self._scope, apply))

    def _walk_body(self, body: list[ast.stmt]) -> None:
        for index, statement in enumerate(list(body)):
            self._walk_statement(body, index, statement)

    def _walk_statement(self, body: list[ast.stmt], index: int, node: ast.stmt) -> None:
        def replace(by: ast.stmt) -> _Change:
            return lambda: body.__setitem__(index, ast.copy_location(by, node))

        nothing = replace(ast.Pass())
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Global() | ast.Nonlocal():
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._walk_function(node)
                return
            case ast.ClassDef():
                self._classes.append(node.name)
                self._walk_body(node.body)
                self._classes.pop()
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    self._walk_expression(value)
                return
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                # Without a first value every use raises: nothing to learn.
                if self._scope is None or not self._scope[0].endswith("__init__"):
                    self._add("assignment removed", "assignment removed", node, nothing)
            case ast.Raise():
                self._add("raise removed", "raise removed", node, nothing)
                return
            case ast.Return(value=None):
                self._add("return removed", "return removed", node, nothing)
            case ast.Return(value=value) if not isinstance(value, ast.Constant):
                bare = ast.Return(value=ast.Constant(value=None))
                self._add("return removed", "returns None", node, replace(bare))
            case ast.Delete():
                self._add("del removed", "del removed", node, nothing)
            case ast.Break() | ast.Continue():
                self._add("jump removed", f"{ast.unparse(node)} removed", node, nothing)
            case ast.Expr(value=value):
                text = ast.unparse(value)
                if isinstance(value, ast.Constant) or _LOG.match(text):
                    return
                if isinstance(value, ast.Await):
                    kind = "sync removed" if _SYNC.search(text) else "await removed"
                    self._add(kind, kind, node, nothing)
                elif isinstance(value, ast.Call):
                    kind = "sync removed" if _SYNC.search(text) else "call removed"
                    self._add(kind, kind, node, nothing)
            case ast.With() | ast.AsyncWith():
                self._add_scopes(body, index, node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.If() | ast.While():
                self._add_swap(node)
        self._walk_children(node)

    def _add_scopes(self, body: list[ast.stmt], index: int, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            text = ast.unparse(item.context_expr)
            if not _SCOPE.search(text):
                continue
            if item.optional_vars is None:
                apply = self._without(body, index, node, item)
            elif text.startswith("trio.") and isinstance(item.context_expr, ast.Call):
                bare = ast.parse("trio.CancelScope()", mode="eval").body
                apply = self._with_context(item, bare)
            else:
                continue
            self._add("scope removed", f"`{text}` removed", item.context_expr, apply)

    def _without(
        self, body: list[ast.stmt], index: int, node: ast.With | ast.AsyncWith, item: ast.withitem
    ) -> _Change:
        def apply() -> None:
            if len(node.items) > 1:
                node.items.remove(item)
            else:
                plain = ast.If(test=ast.Constant(value=True), body=node.body, orelse=[])
                body[index] = ast.copy_location(plain, node)

        return apply

    def _with_context(self, item: ast.withitem, context: ast.expr) -> _Change:
        return lambda: setattr(item, "context_expr", ast.copy_location(context, item.context_expr))

    def _add_swap(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if isinstance(node.test, ast.Constant):
            return
        negated = ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=node.test), node.test)
        self._add(
            "branch swapped", "condition negated", node, lambda: setattr(node, "test", negated)
        )

    def _walk_function(self, node: _Function) -> None:
        defaults = node.args.defaults + [one for one in node.args.kw_defaults if one is not None]
        for expression in [*node.decorator_list, *defaults]:
            self._walk_expression(expression)
        if node.name in _UNTESTED:
            return
        if self._scope is not None:
            self._walk_body(node.body)
            return
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        self._scope = (".".join([*self._classes, node.name]), first)
        self._walk_body(node.body)
        self._scope = None

    def _walk_children(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "format_spec"):
                continue
            children = value if isinstance(value, list) else [value]
            if children and isinstance(children[0], ast.stmt):
                self._walk_body(children)
                continue
            for child in children:
                if isinstance(child, ast.expr):
                    self._walk_expression(child)
                elif isinstance(child, ast.AST):
                    self._walk_children(child)

    def _walk_expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr():
                return
            case ast.Call() if _LOG.match(ast.unparse(node.func)):
                return
            case ast.Compare():
                self._add_comparisons(node)
            case ast.BoolOp(op=operator):
                other = ast.Or if isinstance(operator, ast.And) else ast.And
                words = "and to or" if isinstance(operator, ast.And) else "or to and"
                self._add("logic", words, node, lambda: setattr(node, "op", other()))
            case ast.IfExp():
                self._add_swap(node)
            case ast.BinOp(op=sign) if type(sign) in _ARITHMETIC and not _has_text(node):
                replacement = _ARITHMETIC[type(sign)]
                words = f"{type(sign).__name__} to {replacement.__name__}"
                self._add("arithmetic", words, node, lambda: setattr(node, "op", replacement()))
            case ast.Constant(value=bool() as flag):
                self._add("bool", f"{flag} to {not flag}", node, _set_value(node, not flag))
            case ast.Constant(value=int() | float() as value):
                words = f"{value} to {value + 1}"
                self._add("constant", words, node, _set_value(node, value + 1))
        self._walk_children(node)

    def _add_comparisons(self, node: ast.Compare) -> None:
        for index, sign in enumerate(node.ops):
            replacement = _COMPARISONS[type(sign)]
            words = f"{type(sign).__name__} to {replacement.__name__}"
            self._add("comparison", words, node, _set_operator(node, index, replacement()))


def _set_value(node: ast.Constant, value: bool | int | float) -> _Change:
    return lambda: setattr(node, "value", value)


def _set_operator(node: ast.Compare, index: int, operator: ast.cmpop) -> _Change:
    return lambda: node.ops.__setitem__(index, operator)


def _has_text(node: ast.BinOp) -> bool:
    """Whether the operation joins texts or bytes, where a difference would only raise."""

    def leaves(one: ast.expr) -> Iterator[ast.expr]:
        if isinstance(one, ast.BinOp):
            yield from leaves(one.left)
            yield from leaves(one.right)
        else:
            yield one

    return any(
        isinstance(leaf, ast.JoinedStr)
        or (isinstance(leaf, ast.Constant) and isinstance(leaf.value, str | bytes))
        for leaf in leaves(node)
    )
