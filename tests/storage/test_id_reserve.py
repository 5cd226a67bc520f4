"""The time up to which ids were given out, over restarts."""

import errno
from pathlib import Path

import pytest

from trionsq.disk import Disk, RealDisk
from trionsq.storage.metadata import ID_RESERVE_FILE, IdReserve
from trionsq.testing.disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimulatedDisk()


def test_what_was_saved_is_loaded(disk: Disk) -> None:
    """The last time that was saved counts; without a file it is 0."""
    assert IdReserve(disk).load() == 0
    IdReserve(disk).save(1)
    IdReserve(disk).save(1795280000000000000)
    assert IdReserve(disk).load() == 1795280000000000000
    assert disk.names() == [ID_RESERVE_FILE]


def test_the_format_is_recorded() -> None:
    """Files of today stay readable: this is one."""
    disk = SimulatedDisk()
    IdReserve(disk).save(1795280000000000000)
    recorded = b'{"format":1,"ids_until_ns":1795280000000000000}'
    assert disk.files() == {ID_RESERVE_FILE: recorded}


def test_what_was_saved_survives_a_power_failure() -> None:
    """`save` returns when the time is durable."""
    disk = SimulatedDisk()
    IdReserve(disk).save(7)
    assert IdReserve(disk.after_power_loss()).load() == 7


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"ids_until_ns":5}',
        b'{"format":2,"ids_until_ns":5}',
        b'{"format":1}',
        b'{"format":1,"ids_until_ns":-5}',
        b'{"format":1,"ids_until_ns":true}',
        b'{"format":1,"ids_until_ns":1e400}',
    ],
)
def test_an_unusable_file_is_a_warning(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is in the file, the broker starts, and says what that means."""
    disk = SimulatedDisk()
    disk.write_file(ID_RESERVE_FILE, data)
    assert IdReserve(disk).load() == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    IdReserve(disk).save(5)
    assert IdReserve(disk).load() == 5


def test_a_file_that_cannot_be_read_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A read error does not keep the broker from starting, and leaves no file open."""
    disk = SimulatedDisk()
    IdReserve(disk).save(5)
    disk.fail(errno.EIO, only={"read"})
    assert IdReserve(disk).load() == 0
    assert disk.faults["read"] == 1
    assert disk.open_files == 0
    assert "Input/output error" in caplog.text
