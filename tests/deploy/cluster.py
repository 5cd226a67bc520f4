"""The services of deploy/compose.yaml as real processes, each on a node of its own.

They are run by the very command lines of the file: names become the nodes' addresses, mounted
paths become folders. Its health checks say when a daemon is ready.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from tests.deploy.netns import Network, network
from tests.deploy.topology import DEPLOY, Service, broker_services
from trionsq import httpget
from trionsq.client import Config, Consumer, Producer

__all__ = ["PASSWORD", "USER", "Cluster", "ClusterError", "add_user", "cluster"]

USER: Final = "ops"
PASSWORD: Final = "a password for tests"

_MODULES: Final = {
    "nsqd": "trionsq.local.nsqd",
    "nsqlookupd": "lookupd.cli",
    "nsqadmin": "admin.cli",
}
_SECRETS: Final = "./secrets"
_START_LIMIT_S: Final = 60.0
_STOP_LIMIT_S: Final = 60.0
_RETRY_S: Final = 0.1
_LOG_NBYTES: Final = 4000


class ClusterError(Exception):
    """A daemon did not start or did not stop; the end of its log is in the text."""


class Cluster:
    """A running cluster, or one that may be started.

    Attributes:
        network: the nodes.
        services: what runs on each, by the node's name.
        folder: volumes and logs.
    """

    def __init__(self, net: Network, services: Mapping[str, Service], folder: Path) -> None:
        self.network = net
        self.services = services
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def nsqds(self) -> list[str]:
        """The names of the nsqd nodes."""
        return self._of("nsqd")

    @property
    def nsqlookupds(self) -> list[str]:
        """The names of the nsqlookupd nodes."""
        return self._of("nsqlookupd")

    def _of(self, program: str) -> list[str]:
        return [name for name, service in self.services.items() if service.command[0] == program]

    def address(self, node: str, port: int) -> str:
        """``host:port`` on the node."""
        return f"{self.network.addresses[node]}:{port}"

    def producer(self, *nodes: str, config: Config | None = None) -> Producer:
        """Of the nsqds on these nodes, by default of all, from the host's node."""
        addresses = [self.address(node, 4150) for node in nodes or self.nsqds]
        return Producer(*addresses, config=config, dial=self.network.dial)

    def consumer(self, topic: str, channel: str, config: Config) -> Consumer:
        """That asks all nsqlookupds, from the host's node."""
        return Consumer(
            topic,
            channel,
            lookupd_http_addresses=[self.address(node, 4161) for node in self.nsqlookupds],
            config=config,
            dial=self.network.dial,
            get=partial(httpget.get, dial=self.network.connect),
        )

    async def get(
        self, node: str, port: int, path: str, headers: Mapping[str, str] | None = None
    ) -> httpget.Answer:
        """Ask a daemon by HTTP, from the host's node. Raises as `trionsq.httpget.get`."""
        url = f"http://{self.address(node, port)}{path}"
        return await httpget.get(url, headers, dial=self.network.connect)

    async def start(self, *nodes: str) -> None:
        """Start daemons, by default all, and wait until their health checks pass.

        Raises:
            ClusterError: one ended, or was not ready in time.
        """
        names = nodes or tuple(self.services)
        for node in names:
            self._spawn(node)
        for node in names:
            await self._await_ready(node)

    async def stop(self, node: str) -> int:
        """SIGTERM; the exit code. Raises ClusterError if it does not end in time."""
        process = self._processes.pop(node)
        process.terminate()
        try:
            return await trio.to_thread.run_sync(
                process.wait, _STOP_LIMIT_S, abandon_on_cancel=True
            )
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            why = f"{node} did not stop in {_STOP_LIMIT_S} s"
            raise ClusterError(f"{why}:\n{self.log(node)}") from error

    def kill(self, node: str) -> None:
        """SIGKILL."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    async def restart(self, node: str) -> int:
        """Stop, start, wait until ready; the exit code of the stop. Raises ClusterError."""
        code = await self.stop(node)
        await self.start(node)
        return code

    async def is_ready(self, node: str) -> bool:
        """Whether the service's health check passes now."""
        service = self.services[node]
        words = self._local(service, service.healthcheck)
        done = await trio.run_process(
            self.network.command(node, words), check=False, capture_stderr=True
        )
        return done.returncode == 0

    def log(self, node: str) -> str:
        """The end of what the node's daemons wrote."""
        text = self._log_file(node).read_bytes()[-_LOG_NBYTES:]
        return text.decode(errors="replace")

    def close(self) -> None:
        """Kill what still runs."""
        for node in list(self._processes):
            self.kill(node)

    def _spawn(self, node: str) -> None:
        service = self.services[node]
        words = self._local(service, service.command)
        with self._log_file(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                self.network.command(node, words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    async def _await_ready(self, node: str) -> None:
        process = self._processes[node]
        with trio.move_on_after(_START_LIMIT_S):
            while process.poll() is None:
                if await self.is_ready(node):
                    return
                await trio.sleep(_RETRY_S)
        why = "ended" if process.poll() is not None else "is not ready"
        raise ClusterError(f"{node} {why}:\n{self.log(node)}")

    def _log_file(self, node: str) -> Path:
        return self.folder / f"{node}.log"

    def _local(self, service: Service, words: Sequence[str]) -> list[str]:
        """The words of a service as this machine needs them."""
        program, *flags = words
        if program == "nsq-ready":
            start = [sys.executable, str(DEPLOY / "healthcheck.py")]
        else:
            start = [sys.executable, "-m", _MODULES[program]]
        return [*start, *(self._localised(service, flag) for flag in flags)]

    def _localised(self, service: Service, flag: str) -> str:
        name, sign, value = flag.partition("=")
        host, colon, port = value.partition(":")
        if host in self.network.addresses:
            value = f"{self.network.addresses[host]}{colon}{port}"
        for target, source in service.mounts.items():
            if value == target or value.startswith(f"{target}/"):
                value = f"{self.mounted(source)}{value.removeprefix(target)}"
        return f"{name}{sign}{value}"

    def mounted(self, source: str) -> Path:
        """The folder of a volume, or of a path beside the file. Secrets are the test's own."""
        if source.startswith("./") and source != _SECRETS:
            return DEPLOY / source
        folder = self.folder / source.removeprefix("./")
        folder.mkdir(exist_ok=True)
        return folder


async def add_user(made: Cluster) -> None:
    """Write the users file, as deploy/README.md says. Raises subprocess.CalledProcessError."""
    users = made.mounted(_SECRETS) / "users"
    words = ["-m", _MODULES["nsqadmin"], f"--add-user={USER}:admin", f"--users-file={users}"]
    await trio.run_process([sys.executable, *words], stdin=PASSWORD.encode(), capture_stderr=True)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """The broker's services of compose.yaml, not yet started; all gone in the end."""
    services = broker_services()
    with network(list(services)) as net:
        made = Cluster(net, services, folder)
        try:
            yield made
        finally:
            made.close()
