"""nsq-ready and nsq-drain, which the images have, and their Dockerfile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.deploy.commands import script
from tests.deploy.topology import DEPLOY
from tests.processes import free_address, running_nsqd, running_nsqlookupd
from trionsq import httpget

ROOT = DEPLOY.parent


async def run(name: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A script of deploy/ in a process, as the images run it."""
    command = [sys.executable, str(DEPLOY / f"{name}.py"), *words]
    return await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)


async def test_the_health_check_follows_ready(tmp_path: Path) -> None:
    """0 while the daemon is ready; 1 and a line when nobody answers."""
    async with running_nsqd(tmp_path) as nsqd:
        url = f"http://{nsqd.http_address}/ready"
        assert (await run("healthcheck", url)).returncode == 0
    done = await run("healthcheck", url)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"{url}: ")


async def test_the_health_check_tells_a_refusal() -> None:
    """Any answer but 200 is a failure, told with its status."""
    async with running_nsqlookupd() as lookupd:
        done = await run("healthcheck", f"http://{lookupd.http_address}/no-such-page")
    assert done.returncode == 1
    assert b": 404 " in done.stderr


async def test_the_drain_waits_for_the_last_message(tmp_path: Path) -> None:
    """1 and what is left at the limit; 0 once nothing is left."""
    async with running_nsqd(tmp_path) as nsqd:
        url = f"http://{nsqd.http_address}"
        assert (await run("drain", "--limit=5", url)).returncode == 0
        await httpget.post(f"{url}/pub?topic=t", b"one")
        done = await run("drain", "--limit=0", url)
        assert (done.returncode, done.stderr) == (1, b"t: 1 messages\n")
        await httpget.post(f"{url}/channel/create?topic=t&channel=c", b"")
        await httpget.post(f"{url}/pub?topic=t&defer=60000", b"two")
        while (await run("drain", "--limit=0", url)).stderr != b"t/c: 1 waiting, 1 deferred\n":
            await trio.lowlevel.checkpoint()
        await httpget.post(f"{url}/channel/empty?topic=t&channel=c", b"")
        assert (await run("drain", "--limit=5", url)).returncode == 0


class Clock:
    """Stands in for the module time."""

    now_s = 0.0

    def monotonic(self) -> float:
        """The time."""
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Passes at once."""
        self.now_s += pause_s


def test_the_drain_lets_clients_go_elsewhere_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --least it looks again and again even at an empty node; the limit ends that too."""
    drain = script("drain")
    clock = Clock()
    monkeypatch.setattr(drain, "time", clock)
    monkeypatch.setattr(drain, "request_stats", lambda url: {"topics": []})
    assert drain.main(["--least=5"]) == 0
    assert clock.now_s == 5.0
    assert drain.main(["--least=60", "--limit=20"]) == 0
    assert clock.now_s == 25.0


async def test_the_drain_of_nobody_fails() -> None:
    """A node that does not answer is not an empty one."""
    done = await run("drain", "--limit=0", f"http://{free_address()}")
    assert done.returncode == 1
    assert done.stderr


def test_the_drain_knows_what_is_in_flight() -> None:
    """A message that a consumer holds is not done."""
    channel = {"channel_name": "c", "depth": 0, "in_flight_count": 2, "deferred_count": 0}
    stats = {"topics": [{"topic_name": "t", "depth": 0, "channels": [channel]}]}
    assert script("drain").message_counts(stats) == ["t/c: 2 in flight"]


def test_the_dockerfile_copies_what_is_there() -> None:
    """Each path exists, and is let through by the ignore file."""
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
    """Where they are at hand: of the shell script and of the Dockerfile."""
    program = shutil.which(linter)
    if not program:
        pytest.skip(f"no {linter} here")
    done = subprocess.run([program, str(DEPLOY / path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_nothing_is_built_by_what_is_not_pinned() -> None:
    """Each pip of the Dockerfile installs by hash, by the pins, or what was built just before."""
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
    """With hashes, the versions of requirements-dev.txt, and without naming a registry."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    pinned = dict(re.findall(r"(?m)^([a-z0-9.-]+)==(\S+)", text))
    tested = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert pinned.items() <= dict(re.findall(r"(?m)^([a-z0-9.-]+)==(\S+)", tested)).items()
    blocks = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert "pytest" not in pinned
