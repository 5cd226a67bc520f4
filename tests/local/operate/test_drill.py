"""Each command of ``trionsq topic|channel|node|log`` once, as processes, on a cluster of three."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click
import trio

from tests.local.operate.stage import LIMIT_S
from tests.local.operate.test_tree import commands
from tests.processes import running_nsqd, running_nsqlookupd
from tests.soak import in_short_soak
from trionsq.httpget import get, post
from trionsq.local.operate.tree import cli

NODES = 3
MESSAGES = 10
# What is typed, and a part of what is printed. {cluster} names the nsqlookupd; a line with {node},
# {data} or {copy} is for each node. MESSAGES are published to each node where there is no command.
RUNNING = [
    ("topic create orders --storage=log {cluster}", "created on 3 nodes and at 1 nsqlookupd"),
    ("topic create plain {cluster}", "created on 3 nodes and at 1 nsqlookupd"),
    ("topic list {cluster}", "orders"),
    ("topic move plain {cluster}", "moved to the log on 3 nodes"),
    ("topic settings orders --retain=1h --durability=always {cluster}", "set on 3 nodes"),
    ("topic settings orders --json {cluster}", '"retain": "1h0m0s"'),
    ("topic pause orders {cluster}", "paused on 3 nodes"),
    ("channel create orders billing {cluster}", "created on 3 nodes and at 1 nsqlookupd"),
    ("", ""),
    ("topic tail orders --from=beginning --to=end {cluster}", "message 9"),
    ("topic peek orders {cluster}", "message 9"),
    ("topic unpause orders {cluster}", "unpaused on 3 nodes"),
    ("channel create orders audit --from=beginning {cluster}", "created on 3 nodes"),
    ("channel list orders {cluster}", "audit"),
    ("channel peek orders audit {cluster}", "message 9"),
    ("channel deferred orders audit {cluster}", "due (ns)"),
    ("channel pause orders audit {cluster}", "paused on 3 nodes"),
    ("channel unpause orders audit {cluster}", "unpaused on 3 nodes"),
    ("topic tail orders --channel=billing -n 30 {cluster}", "message 9"),
    ("channel seek orders billing --to=beginning --yes {cluster}", "moved on 3 nodes"),
    ("topic tail orders --channel=billing -n 30 {cluster}", "message 9"),
    ("channel empty orders audit --yes {cluster}", "emptied on 3 nodes"),
    ("channel delete orders audit --yes {cluster}", "deleted on 3 nodes and at 1 nsqlookupd"),
    ("topic pause plain {cluster}", "paused on 3 nodes"),
    ("topic empty plain --yes {cluster}", "emptied on 3 nodes"),
    ("topic delete plain --yes {cluster}", "deleted on 3 nodes and at 1 nsqlookupd"),
    ("node list {cluster}", "OK"),
    ("node info {cluster}", "1.3.0"),
    ("node ready {cluster}", "yes"),
    ("deadletter list orders billing {cluster}", "0 dead letters"),
    ("deadletter replay orders billing {cluster}", "0 dead letters"),
    ("deadletter discard orders billing --yes {cluster}", "0 dead letters"),
    ("log backup --nsqd-http-address={node} monday", "backup.monday"),
]
STOPPED = [
    ("log verify {data}", "0 damage"),
    ("log stat --topic=orders {data}", "orders"),
    ("log cat --topic=orders --format=raw {data}", "message 9"),
    ("log restore {data}/backup.monday {copy}", "segment"),
    ("log verify {copy}", "0 damage"),
    ("log adopt {copy}", "all logs are known"),
]


def test_the_drill_has_each_command() -> None:
    """A new one is to be entered. `channel cancel` needs an id: test_cluster_commands has it."""
    drilled = {tuple(line.split()[:2]) for line, _ in (*RUNNING, *STOPPED) if line}
    groups = {name for name, one in cli.commands.items() if isinstance(one, click.Group)}
    drilled.add(("channel", "cancel"))
    assert drilled == {words for words in commands() if words[0] in groups}
    assert groups == {"topic", "channel", "node", "log", "deadletter"}


@in_short_soak
async def test_each_command_does_its_work(tmp_path: Path) -> None:
    """It prints what it did on all three nodes, with exit code 0; at the end each node has what
    the commands have left."""
    async with AsyncExitStack() as stack:
        lookupd = await stack.enter_async_context(running_nsqlookupd())
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}"]
        folders = [tmp_path / str(number) for number in range(NODES)]
        nodes = []
        for folder in folders:
            folder.mkdir()
            nodes.append(await stack.enter_async_context(running_nsqd(folder, flags)))
        cluster = f"--lookupd-http-address={lookupd.http_address}"
        with trio.fail_after(LIMIT_S):
            while len((await answer(lookupd.http_address, "/nodes"))["producers"]) < NODES:  # noqa: ASYNC110
                await trio.sleep(0.05)
        for line, text in RUNNING:
            if not line:
                for node in nodes:
                    bodies = "\n".join(f"message {number}" for number in range(MESSAGES))
                    url = f"http://{node.http_address}/mpub?topic=orders"
                    assert (await post(url, bodies.encode(), {}, 60.0, 60.0)).status == 200
                continue
            addresses = [node.http_address for node in nodes] if "{node}" in line else [""]
            for address in addresses:
                await check(line.format(cluster=cluster, node=address), text)
        for node in nodes:
            topics = (await answer(node.http_address, "/stats?format=json"))["topics"]
            found = [
                (topic["topic_name"], topic["message_count"], channel["channel_name"])
                for topic in topics
                for channel in topic["channels"]
            ]
            assert found == [("orders", MESSAGES, "billing")]
    for folder in folders:
        for line, text in STOPPED:
            await check(line.format(data=folder, copy=tmp_path / f"copy{folder.name}"), text)


async def check(line: str, text: str) -> None:
    """Run a command, to its good end."""
    with trio.fail_after(LIMIT_S):
        ended = await trio.run_process(
            [sys.executable, "-m", "trionsq.local.main", *line.split()],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    told = f"{line}\n{ended.stdout.decode()}{ended.stderr.decode()}"
    assert ended.returncode == 0, told
    assert text in ended.stdout.decode(), told


async def answer(address: str, target: str) -> Any:
    """The JSON that a node answers to GET."""
    return json.loads((await get(f"http://{address}{target}", {}, 60.0, 60.0)).body)
