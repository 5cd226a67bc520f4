"""nsq-ready of the images, and the Dockerfile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.deploy.topology import DEPLOY
from tests.processes import running_nsqd, running_nsqlookupd

ROOT = DEPLOY.parent


async def run(name: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A script of deploy/ in a process, as the images run it."""
    command = [sys.executable, str(DEPLOY / f"{name}.py"), *words]
    return await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)


async def test_the_health_check_follows_ready(tmp_path: Path) -> None:
    """The exit code is 0 while the daemon is ready, and 1 with a line without a daemon."""
    async with running_nsqd(tmp_path) as nsqd:
        url = f"http://{nsqd.http_address}/ready"
        assert (await run("healthcheck", url)).returncode == 0
    done = await run("healthcheck", url)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"{url}: ")


async def test_the_health_check_tells_a_refusal() -> None:
    """Any status but 200 is a failure, and the line has the status."""
    async with running_nsqlookupd() as lookupd:
        done = await run("healthcheck", f"http://{lookupd.http_address}/no-such-page")
    assert done.returncode == 1
    assert b": 404 " in done.stderr


def test_the_dockerfile_copies_what_is_there() -> None:
    """Each copied path exists, and the ignore file admits it."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY (?!--from)(?:--\S+ )*(.+) \S+$", text)
    paths = [path.rstrip("/") for line in copied for path in line.split()]
    assert len(paths) > 8
    for path in paths:
        assert (ROOT / path).exists(), path
        assert {path, str(Path(path).parent)} & let_through, path


@pytest.mark.parametrize(
    ("linter", "path"), [("shellcheck", "spark/spark-node"), ("hadolint", "Dockerfile")]
)
def test_linters_have_nothing_to_say(linter: str, path: str) -> None:
    """If shellcheck and hadolint are installed, they find nothing."""
    program = shutil.which(linter)
    if not program:
        pytest.skip(f"no {linter} here")
    done = subprocess.run([program, str(DEPLOY / path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_nothing_is_built_by_what_is_not_pinned() -> None:
    """Each pip of the Dockerfile installs pinned packages by hash, or the wheel just built."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    calls = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) ([^&\n]*)", text)
    assert len(calls) == 6
    for call in calls:
        assert re.search(r"--require-hashes|--no-index|--no-build-isolation|-c requirements", call)
        assert (
            "--only-binary :all:" in call
            or "--no-build-isolation" in call
            or ("--no-index" in call or "-r build.txt" in call)
        )


@pytest.mark.parametrize("name", ["requirements.txt", "deploy/requirements-spark.txt"])
def test_what_images_install_is_pinned_as_tested(name: str) -> None:
    """Images have the versions of requirements-dev.txt, with hashes."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    pinned = dict(re.findall(r"(?m)^([a-z0-9.-]+)==(\S+)", text))
    tested = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert pinned.items() <= dict(re.findall(r"(?m)^([a-z0-9.-]+)==(\S+)", tested)).items()
    blocks = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert "pytest" not in pinned
