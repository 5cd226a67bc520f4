"""A small disk holds its size, and is removed completely."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import netns
from tests.deploy.cluster import Cluster, cluster
from tests.deploy.small_disk import clean_up, small_disk

WHY_NOT = netns.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ROOT = Path(__file__).parents[2]
NODE = "nsqd-1"
SIZE_NBYTES = 1 << 20


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    """The cluster, not started."""
    with cluster(tmp_path) as ours:
        yield ours


def test_a_volume_fills_up_and_is_empty_again(made: Cluster) -> None:
    """The disk is the node's only, exists in the context only, and can be cleared."""
    with small_disk(made, NODE, SIZE_NBYTES) as disk:
        assert disk.path == made.mounted(NODE)
        assert 0 < disk.free_nbytes <= SIZE_NBYTES
        disk.fill()
        assert disk.free_nbytes == 0
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(b"more")
        (made.mounted("nsqd-2") / "more").write_bytes(b"more")
        disk.clear()
        (disk.path / "more").write_bytes(b"more")
    assert not disk.path.is_mount()
    assert not list(disk.path.iterdir())


def test_what_a_killed_test_left_mounted_is_unmounted_by_the_next(tmp_path: Path) -> None:
    """The next test unmounts the disk of a killed one, also with a blank in its path."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().rstrip("\n"))
        assert left.is_mount()
        assert left not in clean_up()  # it is in use
        process.kill()
    clean_up()
    assert not left.is_mount()
    netns.clean_up()


_KILLED = """\
import sys, time
from pathlib import Path
from tests.deploy.cluster import cluster
from tests.deploy.small_disk import small_disk
with cluster(Path(sys.argv[1])) as made, small_disk(made, "nsqd-1") as disk:
    print(disk.path, flush=True)
    time.sleep(60)
"""
