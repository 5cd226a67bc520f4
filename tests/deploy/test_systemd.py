"""deploy/systemd: valid units, with command lines that the daemons accept."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess

import pytest

from pipelines.jobs.job import BATCH_LIMIT_S
from pipelines.jobs.receive import config_of
from tests.deploy.commands import DAEMONS, job_arguments, options
from tests.deploy.topology import DEPLOY

FOLDER = DEPLOY / "systemd"
UNITS = (*DAEMONS, "nsq-archive", "nsq-receive")


def settings(name: str) -> dict[str, str]:
    """The settings of a unit; no key of which the value matters comes twice."""
    text = (FOLDER / f"{name}.service").read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^([A-Za-z]+)=(.*)$", text))


@pytest.mark.parametrize("name", DAEMONS)
def test_the_daemons_take_their_command_lines(name: str) -> None:
    """The command lines are valid with the example of each machine's file."""
    text = (FOLDER / f"{name}.service").read_text(encoding="utf-8")
    found = re.search(r"(?m)^#   ([A-Z]+_FLAGS)=(.*)$", text)
    assert found is not None
    path, *words = shlex.split(settings(name)["ExecStart"].replace(f"${found[1]}", found[2]))
    assert path == f"/opt/trionsq/bin/{name}"
    given = options([name, *words])
    if name != "nsqadmin":
        assert given.broadcast_address.endswith(".example")


def command_of_job(name: str) -> argparse.Namespace:
    """The flags of a job's unit, with the example of each machine's file."""
    text = (FOLDER / f"{name}.service").read_text(encoding="utf-8")
    found = re.search(r"(?m)^#   ([A-Z]+_FLAGS)=(.*)$", text)
    assert found is not None
    line = settings(name)["ExecStart"].replace(f"${found[1]}", found[2])
    return job_arguments(shlex.split(line.replace("%H", "host-1")))


def test_the_pipeline_takes_its_command_line() -> None:
    """Its flags are the job's, and a stop reaches the job alone and waits for its microbatch."""
    told = settings("nsq-archive")
    arguments = command_of_job("nsq-archive")
    assert arguments.name == "archive"
    assert arguments.checkpoint == f"/var/lib/{told['StateDirectory']}"
    assert arguments.output in told["ReadWritePaths"]
    assert told["KillMode"] == "mixed"
    assert int(told["TimeoutStopSec"]) > BATCH_LIMIT_S + 30


def test_the_receiver_takes_its_command_line() -> None:
    """Its flags are the job's, its log has the machine's name, and a stop waits for what it has."""
    config = config_of(command_of_job("nsq-receive"))
    assert config.path == "s3://archive/logs/host-1"
    assert int(settings("nsq-receive")["TimeoutStopSec"]) > config.receiver.stop_timeout_s + 10


def test_a_stop_waits_for_what_nsqd_saves() -> None:
    """The stop limit is longer than the minute that nsqd may need to save."""
    assert int(settings("nsqd")["TimeoutStopSec"]) > 60


@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_them(name: str) -> None:
    """If systemd-analyze is installed, it only reports missing programs."""
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("no systemd-analyze here")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(FOLDER / f"{name}.service")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    told = [line for line in done.stderr.splitlines() if f"{name}.service" in line]
    assert [line for line in told if "is not executable" not in line] == []


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_them_locked_down(name: str) -> None:
    """If systemd-analyze is installed, its exposure value stays below 2.5 of 10."""
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("no systemd-analyze here")
    unit = str(FOLDER / f"{name}.service")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=25", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr
