"""The topology of deploy/compose.yaml, as processes on nodes with their own addresses."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from tests.deploy import netns
from tests.deploy.cluster import PASSWORD, USER, Cluster, add_user, cluster
from tests.soak import in_short_soak

WHY_NOT = netns.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ROOT = Path(__file__).parents[2]
LIMIT_S = 90.0


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cluster]:
    """The cluster, not yet started."""
    with cluster(tmp_path) as ours:
        yield ours


@in_short_soak
async def test_all_of_it_starts_and_the_dashboard_shows_the_nodes(made: Cluster) -> None:
    """All services start by the file's command lines and become healthy."""
    await add_user(made)
    with trio.fail_after(LIMIT_S):
        await made.start()
        shown = await _nodes(made)
        assert shown == sorted(made.network.addresses[node] for node in made.nsqds)
        for node in made.nsqds:
            assert await made.stop(node) == 0, made.log(node)


async def _nodes(made: Cluster) -> list[str]:
    """The broadcast addresses of the nodes that nsqadmin shows, once it shows them all."""
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    while True:
        answer = await made.get("nsqadmin", 4171, "/api/nodes", {"Authorization": f"Basic {basic}"})
        assert answer.status == 200, answer
        nodes = json.loads(answer.body)["nodes"]
        found = sorted(node["broadcast_address"] for node in nodes)
        if len(found) >= len(made.nsqds):
            return found
        await trio.sleep(0.1)


async def test_only_connections_are_of_the_other_network(made: Cluster) -> None:
    """Connections to a node leave this machine's network; other sockets do not."""
    ours = _namespace()
    with pytest.raises(OSError, match="refused"):  # the node is there, nothing listens
        await made.network.connect(made.network.addresses["nsqd-1"], 4150)
    assert _namespace() == ours
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        await trio.aclose_forcefully(await trio.open_tcp_stream("127.0.0.1", port))
        with pytest.raises(OSError, match="refused"):
            await made.network.connect("127.0.0.1", port)


def _namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_what_a_killed_test_leaves_is_removed_by_the_next() -> None:
    """The next start removes the namespaces and daemons of a killed test."""
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        process.kill()
    assert netns.runs(left)
    removed = netns.clean_up()
    assert {f"tq{process.pid}-node", f"tq{process.pid}-host"} <= set(removed)
    assert not netns.runs(left)
    assert not list(Path("/run/netns").glob(f"tq{process.pid}-*"))


_KILLED = """\
import subprocess, time
from tests.deploy.netns import network
with network(["node"]) as net:
    print(subprocess.Popen(net.command("node", ["sleep", "60"])).pid, flush=True)
    time.sleep(60)
"""
