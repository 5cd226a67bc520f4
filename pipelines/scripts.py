"""Scripts that Spark runs in place of Java and of Python, made once in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["cache_folder", "script_home", "worker_python"]

_PYTHON: Final = """\
#!/bin/sh
# Spark puts an archive of pyspark in front, which each Python process would compile anew.
PYTHONPATH=${{PYTHONPATH#{archive}:}}
export PYTHONPATH
exec {python} "$@"
"""


def cache_folder(environ: Mapping[str, str], kind: str) -> Path:
    """The folder for scripts of a kind, below XDG_CACHE_HOME (``~/.cache``)."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "trionsq" / kind


def script_home(cache: Path, name: str, text: str) -> Path:
    """A folder whose ``bin/NAME`` is this script; several processes may make it at once.

    Raises OSError: the cache folder can't be written.
    """
    home = cache / hashlib.sha256(text.encode()).hexdigest()[:16]
    script = Path("bin") / name
    if os.access(home / script, os.X_OK):
        return home
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="new-", dir=cache))
    draft.chmod(0o755)
    (draft / "bin").mkdir()
    (draft / script).write_text(text, encoding="utf-8")
    (draft / script).chmod(0o755)
    try:
        draft.rename(home)
    except OSError:
        # Another process was first and made an equal folder.
        (draft / script).unlink()
        (draft / "bin").rmdir()
        draft.rmdir()
        if not os.access(home / script, os.X_OK):
            raise
    return home


def worker_python(environ: Mapping[str, str] = os.environ) -> str:
    """This Python for Spark's workers here: a script, or its path if there can't be one.

    Without the script a worker needs four times as long until it connects to Spark, which on a busy
    machine is longer than the 10 s that Spark waits and has no setting for.
    """
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return sys.executable
    # Spark names its home, and the archive in it, without symbolic links.
    archive = Path(os.path.realpath(pyspark.origin)).parent / "python" / "lib" / "pyspark.zip"
    text = _PYTHON.format(archive=shlex.quote(str(archive)), python=shlex.quote(sys.executable))
    try:
        script = script_home(cache_folder(environ, "python"), "python", text) / "bin" / "python"
    except OSError:
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable
