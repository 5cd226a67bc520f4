"""The golden transcripts of nsqadmin: each case on a cluster of its own.

TRIONSQ_TEST_NSQADMIN=/path/to/nsqadmin replays them against that one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.golden.admin_cases import admin_cases
from tests.golden.admin_cluster import AdminCluster, WebStub, admin_cluster
from tests.golden.admin_compare import differs
from tests.golden.http_exchange import exchange_http
from tests.golden.interfaces import HttpAnswer
from tests.golden.peer import Peer, TranscriptMismatchError
from tests.golden.replay_http import compare_answer
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import Request, Response, latin1
from tests.processes import split_address
from trionsq.daemon.log import LOGGER

CASE_LIMIT_S = 120.0
PATIENCE_S = 30.0


@pytest.mark.parametrize("case", admin_cases(), ids=lambda case: case["name"])
def test_conversation(case: dict[str, Any], tmp_path: Path) -> None:
    """Browsers and scripts are answered as by nsqadmin v1.3.0, key order and headers included."""
    level = logging.getLogger(LOGGER).level
    try:
        trio.run(_replay, case, tmp_path)
    finally:
        logging.getLogger(LOGGER).setLevel(level)


async def _replay(case: dict[str, Any], folder: Path) -> None:
    failure: Exception | None = None
    with trio.fail_after(CASE_LIMIT_S):
        args, graphite = case.get("args", ()), case.get("graphite")
        async with admin_cluster(case["cluster"], args, graphite, folder) as cluster:
            replay = _AdminReplay(cluster)
            try:
                await replay.run_all(case)
            except (
                Exception
            ) as error:  # a mismatch must not keep the daemons from their orderly end
                failure = error
            await replay.close()
    if failure is not None:
        raise failure


class _AdminReplay:
    def __init__(self, cluster: AdminCluster) -> None:
        self._cluster = cluster
        self._helpers: dict[str, Peer] = {}

    async def run_all(self, case: dict[str, Any]) -> None:
        for number, step in enumerate(case["steps"]):
            try:
                await self.run(step)
            except TranscriptMismatchError as error:
                raise TranscriptMismatchError(f"step {number}: {step}\n{error}") from error
        await _check_stub(case, self._cluster)

    async def run(self, step: dict[str, Any]) -> None:
        match step:
            case {"request": dict(request)}:
                member = step.get("to", "admin")
                answer = await self._ask(member, request)
                self._check(step.get("response"), answer)
            case {"tcp": dict(helper), "to": str(member)}:
                await self._help(helper, member)
            case {"sleep_ms": int(duration_ms)}:
                await trio.sleep(duration_ms / 1000)
            case {"stop": "lookupd"}:
                self._cluster.stop_lookupd.set()
                await self._cluster.lookupd_stopped.wait()
            case _:
                raise ValueError(f"unknown step {step!r}")

    async def close(self) -> None:
        for helper in self._helpers.values():
            await helper.connection.close()

    async def _ask(self, member: str, given: Mapping[str, Any]) -> HttpAnswer:
        address = self._cluster.http[member]
        request = Request(
            method=given["method"],
            path=filled(given["path"], self._cluster),
            headers={"Host": address, **given.get("headers", {})},
            body=latin1(given.get("body", "")),
        )
        stream = await trio.open_tcp_stream(*split_address(address))
        return await exchange_http(SocketConnection(stream), request)

    def _check(self, raw: Mapping[str, Any] | None, answer: HttpAnswer) -> None:
        if raw is None:
            if answer.status != 200:
                raise TranscriptMismatchError(f"set-up answered {answer}")
            return
        wanted = Response(
            status=raw["status"],
            headers=raw.get("headers"),
            body=raw.get("body"),
            body_regex=raw.get("body_regex"),
            json=None,
            has_json=False,
            unordered=False,
        )
        if answer.headers.get("content-encoding"):
            answer = replace(answer, body=b"")
        compare_answer(wanted, answer, self._cluster.addresses)
        if "json" in raw:
            expected = json.loads(filled(json.dumps(raw["json"]), self._cluster))
            unordered = bool(raw.get("unordered"))
            if found := differs(expected, json.loads(answer.body), unordered=unordered):
                raise TranscriptMismatchError(found)

    async def _help(self, helper: Mapping[str, Any], member: str) -> None:
        name = helper["conn"]
        if name not in self._helpers:
            address = split_address(self._cluster.tcp[member])
            stream = await trio.open_tcp_stream(*address)
            self._helpers[name] = Peer(SocketConnection(stream))
        peer = self._helpers[name]
        await peer.connection.send_all(latin1(helper.get("send", "")))
        for _ in range(helper.get("read_frames", 0)):
            await peer.read_frame()


def filled(text: str, cluster: AdminCluster) -> str:
    """The text with the cluster's addresses in the places of their names."""
    for name, address in cluster.addresses.items():
        text = text.replace(f"<{name}>", address)
    return text


async def _check_stub(case: Mapping[str, Any], cluster: AdminCluster) -> None:
    """What Graphite or the receiver of notices was asked."""
    stub = cluster.stub
    if wanted := case.get("graphite_request"):
        [asked] = stub.seen
        assert {key: asked[key] for key in wanted} == wanted
    if "notifications" not in case:
        return
    expected = json.loads(filled(json.dumps(case["notifications"]), cluster))
    await _wait_for(stub, len(expected))
    wanted = case["notification_request"]
    for asked in stub.seen:
        assert (asked["method"], asked["path"]) == (wanted["method"], wanted["path"])
        assert asked["headers"]["content-type"] == wanted["content_type"]
    got = [json.loads(asked["body"]) for asked in stub.seen]
    assert not (found := differs(_by_action(expected), _by_action(got), unordered=False)), found


async def _wait_for(stub: WebStub, count: int) -> None:
    with trio.move_on_after(PATIENCE_S):
        while len(stub.seen) < count:
            await stub.heard.park()


def _by_action(notices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(notices, key=lambda notice: str(notice["action"]))
