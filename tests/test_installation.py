"""Installing the client alone, and folders of users that have the names of our packages."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trionsq
from trionsq import client
from trionsq.installation import MissingExtraError, require_extra, require_own_package

ROOT = Path(__file__).parent.parent
# Modules of the dependencies without extras.
LEAN = {"trio", "anyio", "h11", "msgspec", "snappy"}
# What a program may have or not: imported where it is used, and said so there.
OPTIONAL = {
    "trionsq/client/codecs.py": {"pydantic", "typing_extensions"},
    "trionsq/client/metrics.py": {"prometheus_client"},
    "trionsq/client/tracing.py": {"opentelemetry"},
    "trionsq/client/blocking/tracing.py": {"opentelemetry"},
    "trionsq/client/taskiq.py": {"taskiq"},
    "trionsq/tools/nsq_to_http.py": {"httpx2"},
    "trionsq/transports/any_certificate.py": {"cryptography", "OpenSSL"},
    "trionsq/transports/watches.py": {"outcome"},  # comes with trio
    "trionsq/wire/auth.py": {"re2"},
}


def run(*words: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """A Python of ours in that folder."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def foreign_imports(path: Path) -> set[str]:
    """The packages of others that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"trionsq"}


@pytest.mark.parametrize("layer", ["wire", "transports", "client", "tools"])
def test_the_client_imports_no_package_of_the_server(layer: str) -> None:
    """`pip install trionsq` without extras brings all that the client and the tools import."""
    for path in (ROOT / "trionsq" / layer).rglob("*.py"):
        allowed = LEAN | OPTIONAL.get(str(path.relative_to(ROOT)), set())
        assert foreign_imports(path) <= allowed, path


def test_the_dependencies_without_extras_are_these() -> None:
    """What the test above takes for granted is what pip installs."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        told = tomllib.load(file)["project"]["dependencies"]
    names = {re.split(r"[<>=]", one)[0].removeprefix("python-") for one in told}
    assert names == LEAN


def test_a_publishing_program_imports_only_what_it_uses(tmp_path: Path) -> None:
    """`import trionsq.client` imports nothing; a Producer needs no discovery."""
    code = (
        "import sys, trionsq.client\n"
        "assert not {'trio', 'anyio', 'ssl'} & sys.modules.keys()\n"
        "from trionsq.client import Producer\n"
        "assert 'trionsq.client.discovery' not in sys.modules\n"
        "assert not {'msgspec', 'quart', 'taskiq', 'pydantic'} & sys.modules.keys()\n"
    )
    done = run("-c", code, folder=tmp_path, path=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_each_public_name_of_the_client_is_found() -> None:
    """The table of lazy imports is true; another name is an AttributeError."""
    for name in client.__all__:
        assert getattr(client, name) is not None
        assert name in dir(client)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = client.Nothing


def test_ours_are_found() -> None:
    """Where nothing hides them, there is nothing to say."""
    for name in ("lookupd", "admin", "pipelines"):
        require_own_package(name)
    require_extra("server")
    require_extra("http")


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the command to run."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trionsq\[server\]'"):
        require_extra("server")


@pytest.mark.parametrize("program", ["nsqlookupd", "nsqadmin", "trionsq"])
def test_a_hidden_package_is_named(tmp_path: Path, program: str) -> None:
    """The user's folder, and what helps, instead of a traceback."""
    for name in ("admin", "lookupd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = f"import sys; from trionsq.local import programs; sys.exit(programs.{program}())"
    done = run("-c", code, folder=tmp_path, path=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    hidden = "lookupd" if program == "nsqlookupd" else "admin"
    assert line.startswith(f"{program}: the package {hidden!r} of trionsq is hidden by {tmp_path}")
    assert "rename" in line


def test_a_data_repository_with_its_own_pipelines(tmp_path: Path) -> None:
    """Spark finds format("nsq") all the same; using it says what hides it."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    source = Path(trionsq.__file__).parent.parent / "pipelines" / "pyspark_nsq.py"
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / source.name).write_bytes(source.read_bytes())
    code = (
        "from pyspark_nsq import DefaultSource\n"
        "print(DefaultSource.name())\n"
        "try:\n    DefaultSource({})\n"
        "except ImportError as error:\n    print(error)\n"
    )
    path = os.pathsep.join([str(tmp_path / "installed"), str(ROOT)])
    done = run("-c", code, folder=tmp_path, path=path)
    name, text = done.stdout.splitlines()
    assert name == "nsq"
    assert text.startswith("the package 'pipelines' of trionsq is hidden by ")
