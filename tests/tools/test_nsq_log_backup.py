"""Backups of a running nsqd, and what a start on a restored one finds. Real files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import trio

from tests.broker.support import consume, finish, numbered
from tests.broker.test_dead_letters import count, with_letters
from trionsq.broker import backups
from trionsq.broker.backups import make_backup
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.broker.topic import until_safe
from trionsq.disk import Disk
from trionsq.http.app import create_app
from trionsq.httpget import post
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.storage.log import backup
from trionsq.storage.log.backup import BackupError
from trionsq.storage.log.rows import State
from trionsq.storage.log.state import SqliteState
from trionsq.tools import nsq_log
from trionsq.wire.bodies import ListBodies


def options(path: Path) -> NsqdOptions:
    return NsqdOptions(
        data_path=str(path),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        storage="log",
        durability="always",
    )


async def tool(*words: object) -> int:
    """Run nsq_log beside an nsqd in this process."""
    return await trio.to_thread.run_sync(partial(nsq_log.main, [str(word) for word in words]))


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - nobody tells
        await trio.sleep(0.01)


async def publish(broker: Broker, *bodies: bytes) -> None:
    """Return when they are acknowledged."""
    pending = broker.topics["t"].publish(ListBodies(list(bodies)))
    if pending is not None:
        await until_safe(pending)


async def keep_publishing(broker: Broker, acknowledged: list[bytes]) -> None:
    while True:
        body = b"load-%d" % len(acknowledged)
        await publish(broker, body)
        acknowledged.append(body)


async def bodies_of(broker: Broker, channel: str) -> list[bytes]:
    count = broker.topics["t"].channels[channel].core.depth
    _, messages = await consume(broker, "t", channel, count)
    return [message.body for message in messages]


async def test_a_backup_under_load_has_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    """For each channel that has not finished it; and nothing that it has. `verify` is content."""
    before: list[bytes] = []
    restored = tmp_path / "restored"
    async with running_nsqd(options(tmp_path)) as broker:
        node = await broker.logs.ensure_node()
        node.segment_bytes = 2_000
        for name in ("a", "b"):
            broker.topic("t").channel(name)
        for number in range(0, 90, 30):
            await publish(broker, *numbered(90, 40)[number : number + 30])
        consumer, got = await consume(broker, "t", "a", 90)
        await finish(consumer, *got[:50])
        await until(lambda: broker.topics["t"].channels["a"].core.finish_count == 50)
        broker.topics["t"].channels["b"].pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_publishing, broker, before)
            await until(lambda: len(before) >= 20)
            surely = set(before)
            address = f"127.0.0.1:{broker.ports.http}"
            assert await tool("backup", f"--nsqd-http-address={address}", "first") == 0
            assert await tool("backup", f"--nsqd-http-address={address}", "first") == 2
            await until(lambda: len(before) >= len(surely) + 20)
            nursery.cancel_scope.cancel()
        await broker.topics["t"].channels["a"].empty().wait()
        await broker.topics["t"].channels["b"].empty().wait()
        await broker.logs.take_snapshots()
    backup = tmp_path / "backup.first"
    assert await tool("verify", backup) == 0
    assert await tool("restore", backup, restored) == 0
    assert await tool("verify", restored) == 0
    assert await tool("restore", backup, restored) == 2
    async with running_nsqd(options(restored)) as broker:
        finished = {message.body for message in got[:50]}
        assert broker.topics["t"].channels["b"].core.paused
        broker.topics["t"].channels["b"].unpause()
        own, all_ = await bodies_of(broker, "a"), await bodies_of(broker, "b")
        assert len(set(own)) == len(own)
        assert set(own) >= {message.body for message in got[50:]} | surely
        assert not set(own) & finished
        assert set(all_) >= set(numbered(90, 40)) | surely


def segments_in(folder: Path) -> int:
    """How many segments of the topic there are."""
    return len(list(folder.glob("t.log.*")))


async def test_segments_are_held_only_while_a_backup_is_made(tmp_path: Path) -> None:
    """Those that nobody needs any more go from the data path, also after a backup that failed."""
    async with running_nsqd(options(tmp_path)) as broker:
        (await broker.logs.ensure_node()).segment_bytes = 2_000
        channel = broker.topic("t").channel("c")
        for number in range(0, 90, 30):
            await publish(broker, *numbered(90, 40)[number : number + 30])
        await make_backup(broker.logs, broker.dead_letters, broker.folder, "x")
        with pytest.raises(FileExistsError):
            await make_backup(broker.logs, broker.dead_letters, broker.folder, "x")
        assert segments_in(tmp_path) >= 2
        await channel.empty().wait()
        await broker.logs.take_snapshots()
        await broker.folder.background.wait_idle()
        assert segments_in(tmp_path) == 1
    assert await tool("verify", tmp_path / "backup.x") == 0


async def test_what_was_finished_meanwhile_is_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state was copied before: segments stay until they are linked, and go then."""
    copied, goes_on = Event(), Event()
    copy_to = SqliteState.copy_to

    def slowly(self: SqliteState, disk: Disk) -> None:
        copy_to(self, disk)
        copied.set()
        goes_on.wait(60)

    monkeypatch.setattr(SqliteState, "copy_to", slowly)
    async with running_nsqd(options(tmp_path)) as broker:
        (await broker.logs.ensure_node()).segment_bytes = 2_000
        channel = broker.topic("t").channel("c")
        for number in range(0, 90, 30):
            await publish(broker, *numbered(90, 40)[number : number + 30])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_backup, broker.logs, broker.dead_letters, broker.folder, "x")
            await until(copied.is_set)
            await channel.empty().wait()
            await broker.logs.take_snapshots()
            assert await broker.logs.commit() is None
            await trio.sleep(0.1)  # for a removal that does not wait
            goes_on.set()
        await until(lambda: segments_in(tmp_path) == 1)
    assert await tool("restore", tmp_path / "backup.x", tmp_path / "restored") == 0
    async with running_nsqd(options(tmp_path / "restored")) as broker:
        assert Counter(await bodies_of(broker, "c")) == Counter(numbered(90, 40))


async def test_a_restore_takes_only_what_the_manifest_counts(tmp_path: Path) -> None:
    """A segment is a hard link, and grows while nsqd goes on."""
    async with running_nsqd(options(tmp_path)) as broker:
        broker.topic("t").channel("c")
        await publish(broker, b"before")
        url = f"http://127.0.0.1:{broker.ports.http}/log/backup?name="
        assert (await post(f"{url}x", b"")).status == 200
        await publish(broker, b"behind")
        for name, answer in [("x", 409), ("", 400), ("a/b", 400), ("..", 400)]:
            assert (await post(url + name, b"")).status == answer
    assert await tool("restore", tmp_path / "backup.x", tmp_path / "restored") == 0
    async with running_nsqd(options(tmp_path / "restored")) as broker:
        assert await bodies_of(broker, "c") == [b"before"]


async def test_dead_letters_are_in_a_backup(tmp_path: Path) -> None:
    """Their channel has forgotten the messages. After a restore each goes back to it, once."""
    async with running_nsqd(options(tmp_path)) as broker:
        address = f"127.0.0.1:{broker.ports.http}"
        await with_letters(broker, create_app(broker), 5)
        assert await tool("backup", f"--nsqd-http-address={address}", "x") == 0
    assert await tool("restore", tmp_path / "backup.x", tmp_path / "restored") == 0
    async with running_nsqd(options(tmp_path / "restored")) as broker:
        await until(lambda: count(broker) == 5)
        channel = broker.topics["t"].channels["c"].core
        assert channel.depth == 0
        url = f"http://127.0.0.1:{broker.ports.http}/deadletter/replay?topic=t&channel=c"
        assert (await post(url, b"")).status == 200
        await until(lambda: count(broker) == 0 and channel.depth == 5)
        assert set(await bodies_of(broker, "c")) == set(numbered(5))


async def test_a_folder_that_is_no_backup_is_not_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is one that is shorter than its manifest says."""
    assert await tool("restore", tmp_path, tmp_path / "to") == 2
    async with running_nsqd(options(tmp_path)) as broker:
        broker.topic("t").channel("c")
        await publish(broker, b"x")
        url = f"http://127.0.0.1:{broker.ports.http}/log/backup?name=x"
        await post(url, b"")
    sizes = json.loads((tmp_path / "backup.x/backup.json").read_bytes())["segments"]
    for segment in (tmp_path / "backup.x").glob("*.log.*"):
        data = segment.read_bytes()
        segment.unlink()
        segment.write_bytes(data[: sizes[segment.name] - 1])
    assert await tool("restore", tmp_path / "backup.x", tmp_path / "to") == 2
    assert re.search(r"shorter than \d+ bytes", capsys.readouterr().err)


async def test_two_backups_of_one_name_at_once_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused while the first is made, whose files it would take away; also if
    nobody waits for the first any more."""
    begun, goes_on = Event(), Event()
    written = backup.write_backup

    def slowly(
        disk: Disk,
        state: State,
        copy_letters: Callable[[Disk], None],
        name: str,
        ends: Callable[[], Mapping[str, int]],
    ) -> dict[str, int]:
        begun.set()
        goes_on.wait(60)
        return written(disk, state, copy_letters, name, ends)

    monkeypatch.setattr(backups, "write_backup", slowly)
    async with running_nsqd(options(tmp_path)) as broker:
        broker.topic("t").channel("c")
        await publish(broker, b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_backup, broker.logs, broker.dead_letters, broker.folder, "x")
            await until(begun.is_set)
            nursery.cancel_scope.cancel()
        with pytest.raises(FileExistsError):
            await make_backup(broker.logs, broker.dead_letters, broker.folder, "x")
        goes_on.set()
        await broker.folder.background.wait_idle()
        assert not broker.logs.backups
        await make_backup(broker.logs, broker.dead_letters, broker.folder, "y")
    for name in "xy":
        assert await tool("verify", tmp_path / f"backup.{name}") == 0


@pytest.mark.parametrize("place", [0, 1, 3, "manifest", "rename"])
async def test_what_a_crash_leaves_of_a_backup_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int | str
) -> None:
    """Nothing restores it while something is missing, and the next one of that name is good."""
    links = [0]
    link, rename = os.link, os.rename

    def crash(*_: object) -> None:
        raise OSError("Crashed")

    def rename_or_crash(source: str, target: str) -> None:
        if target.endswith("backup.x"):
            crash()
        rename(source, target)

    def counted(*paths: str) -> None:
        if links[0] == place:
            crash()
        links[0] += 1
        link(*paths)

    async with running_nsqd(options(tmp_path)) as broker:
        (await broker.logs.ensure_node()).segment_bytes = 2_000
        broker.topic("t").channel("c")
        for number in range(0, 200, 50):
            await publish(broker, *numbered(200, 40)[number : number + 50])
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            patch.setattr(os, "link", counted)
            if place == "manifest":
                patch.setattr(backup, "replace_file", crash)
            elif place == "rename":
                patch.setattr(os, "rename", rename_or_crash)
            with pytest.raises(BackupError, match="Crashed"):
                await make_backup(broker.logs, broker.dead_letters, broker.folder, "x")
            if isinstance(place, int):
                assert links == [place]
        left = await tool("restore", tmp_path / "backup.x.tmp", tmp_path / "of-a-part")
        assert left == (0 if place == "rename" else 2)
        await publish(broker, b"more")
        await make_backup(broker.logs, broker.dead_letters, broker.folder, "x")
    assert not (tmp_path / "backup.x.tmp").exists()
    assert await tool("restore", tmp_path / "backup.x", tmp_path / "restored") == 0
    async with running_nsqd(options(tmp_path / "restored")) as broker:
        assert Counter(await bodies_of(broker, "c")) == Counter([*numbered(200, 40), b"more"])
