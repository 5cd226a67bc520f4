"""A build hook of hatch: compiles the hot path with mypyc while a wheel is built.

Off unless HATCH_BUILD_HOOK_ENABLE_CUSTOM=true. The modules are in pyproject.toml; a wheel has their
sources too, so tracebacks show lines, and without the hook everything runs from these. The compiler
optimises by MYPYC_OPT_LEVEL, 0 to 3 (2).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify({arguments!r}, opt_level={level!r}, debug_level="0", group_name="trionsq")
setup(name="trionsq", packages=[], py_modules=[], ext_modules=modules)
"""
_MYPY = ("--config-file=", "--explicit-package-bases", "--ignore-missing-imports",
         "--follow-imports=silent")  # fmt: skip


class CompileHook(BuildHookInterface[Any]):
    """Compiles in a copy, so that no extension module stands beside the sources of a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what comes of it to the wheel. Raises RuntimeError if that fails."""
        if version == "editable":
            raise RuntimeError(
                "what is compiled can't be edited: leave HATCH_BUILD_HOOK_ENABLE_* out"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="trionsq-compile-"))
        root = Path(self.root)
        shutil.copytree(root / "trionsq", self._folder / "trionsq",
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))  # fmt: skip
        files = [
            str(file.relative_to(root))
            for pattern in self.config["modules"]
            for file in sorted(root.glob(pattern))
        ]
        level = os.environ.get("MYPYC_OPT_LEVEL", "2")
        setup = _SETUP.format(arguments=[*_MYPY, *files], level=level)
        (self._folder / "setup.py").write_text(setup)
        built = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=self._folder,
            env={**os.environ, "MYPYPATH": str(self._folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if built.returncode:
            raise RuntimeError(f"mypyc failed:\n{built.stdout}")
        for library in self._folder.glob("**/*.so"):
            if "build" not in library.relative_to(self._folder).parts:
                build_data["force_include"][str(library)] = str(library.relative_to(self._folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy."""
        shutil.rmtree(self._folder)
