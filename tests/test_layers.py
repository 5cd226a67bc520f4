"""Imports run one way: wire <- core <- storage <- broker <- http <- local, and wire <- client.

debug uses none of them, for it can look into any trio program. web is what our HTTP servers have
in common: it knows no broker.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trionsq

ROOT = Path(trionsq.__file__).parent
TOP_LEVEL = ("trionsq", "lookupd", "admin", "pipelines")

# Modules beside the layers: about values only, so that any layer may use them.
SHARED = frozenset({"durations", "histogram", "hostport", "installation", "logtext", "options"})
# Modules beside the layers that do I/O: not for the pure layers, and on trio and h11 alone.
SHARED_IO = frozenset({"disk", "httpget", "httpmessage"})
# What each layer may use, besides itself and SHARED.
MAY_USE = {
    "wire": set[str](),
    "core": {"wire"},
    "storage": {"wire", "core"},
    "transports": set[str](),
    "daemon": set[str](),
    "broker": {"wire", "core", "storage", "transports", "daemon"},
    "web": {"wire", "debug", "transports", "daemon"},
    "http": {"wire", "core", "storage", "broker", "debug", "web", "transports", "daemon"},
    "debug": set[str](),
    "client": {"wire", "transports"},
    "testing": {"wire", "core", "storage", "broker", "http", "client", "local"},
    "tools": {"wire", "core", "storage", "client", "daemon"},
    "local": {
        "wire",
        "core",
        "storage",
        "broker",
        "http",
        "web",
        "client",
        "tools",
        "transports",
        "daemon",
    },
}
# Modules of others that a layer must do without: no I/O, no clock, no tasks.
MUST_NOT_USE = {
    "wire": {"trio", "os", "time", "socket", "datetime", "asyncio", "threading"},
    "core": {"trio", "socket", "asyncio", "threading"},
}
# Of trionsq's layers, what the other packages may use.
OTHERS_MAY_USE = {"wire", "client", "web", "debug", "daemon", "testing"}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the full name of each module (or name in a module) that the file imports."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(layer: str) -> list[Path]:
    """Return the source files of one layer of trionsq."""
    return sorted((ROOT / layer).rglob("*.py"))


def layers_used(path: Path) -> set[str]:
    """Return the layers of trionsq that the file imports from."""
    names = [name.split(".") for name in imports(path) if name.split(".")[0] == "trionsq"]
    found = {parts[1] for parts in names if len(parts) > 1}
    return found & MAY_USE.keys()


def test_every_part_of_trionsq_has_a_place_in_the_order() -> None:
    """A new sub-package or top-level module cannot be added without saying where it belongs."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    folders = {path.parent.name for path in ROOT.glob("*/*.py")}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert packages | folders <= MAY_USE.keys()
    assert modules == SHARED | SHARED_IO


@pytest.mark.parametrize("layer", MAY_USE)
def test_a_layer_imports_only_from_those_below(layer: str) -> None:
    """No module imports from a layer above its own, not even inside a function."""
    for path in files_of(layer):
        assert layers_used(path) <= MAY_USE[layer] | {layer}, path


@pytest.mark.parametrize("layer", MUST_NOT_USE)
def test_pure_layers_do_no_input_output(layer: str) -> None:
    """wire and core have bytes and times as arguments: they import no I/O, clock or tasks."""
    for path in files_of(layer):
        used = {name.split(".")[0] for name in imports(path)}
        assert not used & MUST_NOT_USE[layer], path
        assert not {name.split(".")[1] for name in imports(path) if "." in name} & SHARED_IO, path


def test_shared_modules_use_only_the_standard_library() -> None:
    """The modules beside the layers drag nothing in: neither a layer nor, but for I/O, trio."""
    for name in SHARED | SHARED_IO:
        path = ROOT / f"{name}.py"
        assert not layers_used(path), path
        foreign = {used.split(".")[0] for used in imports(path)} & {"trio", "h11", "quart"}
        assert foreign <= ({"trio", "h11"} if name in SHARED_IO else set()), path


@pytest.mark.parametrize("package", TOP_LEVEL[1:])
def test_other_packages_stay_out_of_the_broker(package: str) -> None:
    """lookupd, admin and pipelines use wire, client and web, never the broker's inside."""
    for path in (ROOT.parent / package).rglob("*.py"):
        assert layers_used(path) <= OTHERS_MAY_USE, path


def test_only_local_programs_join_the_packages() -> None:
    """Only `local` imports lookupd and admin; only `testing` imports `local`."""
    for package in TOP_LEVEL:
        for path in (ROOT.parent / package).rglob("*.py"):
            if path.is_relative_to(ROOT / "local"):
                continue
            if path.is_relative_to(ROOT):
                used = {name.split(".")[0] for name in imports(path)} & set(TOP_LEVEL[1:])
                assert not used, path
            if not path.is_relative_to(ROOT / "testing"):
                assert not any(name.startswith("trionsq.local") for name in imports(path)), path


@pytest.mark.parametrize("package", TOP_LEVEL)
def test_nothing_installed_imports_tests_or_benchmarks(package: str) -> None:
    """What users install works without the folders that they do not get."""
    for path in (ROOT.parent / package).rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"tests", "benchmarks"}, path


def modules() -> dict[str, Path]:
    """Return the source file of each module of the four packages."""
    found = {}
    for package in TOP_LEVEL:
        for path in sorted((ROOT.parent / package).rglob("*.py")):
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def test_no_file_imports_itself_through_others() -> None:
    """No two files import each other, be it through others or for types alone."""
    known = modules()
    uses: dict[str, set[str]] = {}
    for module, path in known.items():
        uses[module] = set()
        for name in imports(path):
            while name and name not in known:
                name = name.rpartition(".")[0]
            if name != module:
                uses[module].add(name)
    while free := {module for module, used in uses.items() if not used & uses.keys()}:
        for module in free:
            del uses[module]
    assert not uses, "these files import each other, or import files that do"


@pytest.mark.parametrize("package", TOP_LEVEL)
def test_a_public_class_name_means_one_class(package: str) -> None:
    """No two public classes of a package have the same name."""
    places: dict[str, list[str]] = {}
    for module, path in modules().items():
        # It has the names of the async client, as a program uses one or the other.
        if module.split(".")[0] != package or module.startswith("trionsq.client.blocking."):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: at for name, at in places.items() if len(at) > 1} == {}


def test_no_source_file_has_more_than_400_lines() -> None:
    """A file has one subject, which a reader can take in."""
    lengths = {
        str(path.relative_to(ROOT.parent)): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules().values()
    }
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}
