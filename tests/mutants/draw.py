"""Which sites are tried: all files of the chosen folders, and a draw from a seed."""

from __future__ import annotations

import math
import random
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.sites import Site, find_sites, name_of

__all__ = ["FOLDERS", "Listed", "all_sites", "draw", "folder_of", "read_listed"]

FOLDERS: Final = (
    "trionsq/wire",
    "trionsq/core",
    "trionsq/storage",
    "trionsq/broker",
    "trionsq/client",
    "lookupd",
    "admin/cluster",
    "pipelines/wal",
)
_LIST: Final = Path(__file__).parent / "equivalent.toml"


def all_sites(root: Path, folders: Sequence[str] = FOLDERS) -> list[Site]:
    """Return the sites of all files of the folders."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [site for path in paths for site in find_sites(root, str(path.relative_to(root)))]


def folder_of(path: str) -> str:
    """Return the folder of `FOLDERS` to which the file belongs."""
    return next(folder for folder in FOLDERS if path.startswith(f"{folder}/"))


def draw(sites: Sequence[Site], count: int, seed: int) -> list[Site]:
    """Draw without putting back, by the weights of kinds.

    A folder gets a share in proportion to the square root of its sites, so that a small one is
    not forgotten. The first 100 of 500 are the 100 of the same seed. A site's luck hangs on its
    name alone: while the code changes elsewhere, kept results stay those of the draw.
    """
    sizes = Counter(folder_of(site.path) for site in sites)

    def rank(site: Site) -> float:
        weight = site.weight / math.sqrt(sizes[folder_of(site.path)])
        return math.log(1.0 - random.Random(f"{seed} {site.name}").random()) / weight

    return sorted(sites, key=rank, reverse=True)[:count]


@dataclass(frozen=True)
class Listed:
    """A change that no test has to notice.

    Attributes:
        kind: ``equivalent``: nothing that one sees differs; ``speed``: only time or memory does.
    """

    path: str
    line: str
    change: str
    kind: str
    reason: str
    occurrence: int = 0

    @property
    def name(self) -> str:
        """As of `Site`."""
        return name_of(self.path, self.line, self.change, self.occurrence)


def read_listed(path: Path = _LIST) -> list[Listed]:
    """Return the kept list."""
    with path.open("rb") as file:
        return [Listed(**entry) for entry in tomllib.load(file).get("mutant", [])]
