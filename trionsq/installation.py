"""What an installation lacks, and whose packages hide ours: clear errors instead of a traceback.

The top-level packages ``lookupd``, ``admin`` and ``pipelines`` have everyday names: another package
of such a name that is first on Python's path (the working directory of ``python -m`` and
``python -c``, a script's own folder, PYTHONPATH) is imported instead of ours.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

__all__ = ["HiddenPackageError", "MissingExtraError", "require_extra", "require_own_package"]

# A package that nothing but the extra brings.
_MARKERS: Final = {"server": "quart_trio", "http": "httpx2"}
_HERE: Final = Path(__file__).parent.parent


class HiddenPackageError(ImportError):
    """Another package has the name of one of ours, and comes first on Python's path."""


class MissingExtraError(ImportError):
    """A package of an extra is missing."""


def require_own_package(name: str) -> None:
    """Check that ``import name`` finds the package that is installed beside trionsq.

    Args:
        name: ``lookupd``, ``admin`` or ``pipelines``.

    Raises:
        HiddenPackageError: it finds another one. The text says where, and what helps.
    """
    found = _folder_of(name)
    if found is None or found == (_HERE / name).resolve():
        return
    raise HiddenPackageError(
        f"the package {name!r} of trionsq is hidden by {found}, which Python finds first: start "
        f"from another folder (or with python -P), take that folder off PYTHONPATH, or rename it",
        name=name,
    )


def _folder_of(name: str) -> Path | None:
    """The folder of a top-level package, or the file of a module: imported already, or to be."""
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else PathFinder.find_spec(name)
    if spec is None:
        return None
    if places := list(spec.submodule_search_locations or ()):
        return Path(places[0]).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def require_extra(extra: str) -> None:
    """Check that an extra of trionsq is installed.

    Args:
        extra: ``server`` or ``http``.

    Raises:
        MissingExtraError: it is not. The text says what to run.
    """
    marker = _MARKERS[extra]
    if importlib.util.find_spec(marker) is None:
        raise MissingExtraError(
            f"{marker!r} is not installed: run pip install 'trionsq[{extra}]'", name=marker
        )
