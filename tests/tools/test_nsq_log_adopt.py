"""The command adopt of nsq_log: a lost state costs positions, and no message. Real files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.broker.support import consume, finish
from tests.tools.support import Ended, run_here
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.broker.topic import until_safe
from trionsq.disk import FolderLock, RealDisk
from trionsq.local.nsqd_daemon import running_nsqd
from trionsq.storage.log.rows import DropTopic
from trionsq.storage.log.state import STATE_FILE, WAL_FILE, SqliteState
from trionsq.wire.bodies import ListBodies

NSQ_LOG = Callable[..., Ended]


@pytest.fixture
def nsq_log(capsys: pytest.CaptureFixture[str]) -> NSQ_LOG:
    """Return what runs the tool in this process."""
    return lambda *words: run_here("nsq_log", [str(word) for word in words], capsys)


def options(path: Path, storage: str = "log") -> NsqdOptions:
    return NsqdOptions(
        data_path=str(path),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        storage=storage,
        durability="always",
    )


async def publish(broker: Broker, topic: str, *bodies: bytes, defer_ms: int = 0) -> None:
    pending = broker.topic(topic).publish(ListBodies(list(bodies)), defer_ms)
    if pending is not None:
        await until_safe(pending)


async def bodies_of(broker: Broker, channel: str) -> list[bytes]:
    core = broker.topics["t"].channels[channel].core
    with trio.fail_after(5):
        while broker.topics["t"].core.depth:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)
    with trio.fail_after(5):
        _, messages = await consume(broker, "t", channel, core.depth)
    return sorted(message.body for message in messages)


def lose_state(path: Path) -> None:
    for name in (STATE_FILE, WAL_FILE):
        (path / name).unlink(missing_ok=True)


async def served(path: Path) -> None:
    """Two log topics; one has a paused channel, and one that has finished a message."""
    async with running_nsqd(options(path)) as broker:
        for name in ("a", "b"):
            broker.topic("t").channel(name)
        broker.topics["t"].channels["b"].pause()
        await publish(broker, "t", b"1", b"2", b"3")
        await publish(broker, "t", b"late", defer_ms=3_000_000)
        await publish(broker, "none", b"kept")
        consumer, got = await consume(broker, "t", "a", 3)
        await finish(consumer, got[0])
        consumer.close()


async def test_a_lost_state_comes_back_with_all_messages(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """Topics, their channels and pauses; each channel gets all that was published."""
    await served(tmp_path)
    lose_state(tmp_path)
    ended = nsq_log("adopt", "--json", str(tmp_path))
    assert ended.code == 0
    adopted = json.loads(ended.out)["adopted"]
    assert [(one["topic"], one["messages"], one["first"], one["last"]) for one in adopted] == [
        ("none", 1, 0, 0),
        ("t", 4, 0, 3),
    ]
    assert nsq_log("verify", str(tmp_path)).code == 0
    assert nsq_log("adopt", str(tmp_path)).out == b"all logs are known\n"
    for _ in range(2):
        async with running_nsqd(options(tmp_path)) as broker:
            assert broker.topics.keys() == {"t", "none"}
            assert all(topic.storage == "log" for topic in broker.topics.values())
            topic = broker.topics["t"]
            paused = {name: one.core.paused for name, one in topic.channels.items()}
            assert paused == {"a": False, "b": True}
            assert await bodies_of(broker, "a") == [b"1", b"2", b"3"]
            assert [one.core.deferred_count for one in topic.channels.values()] == [1, 1]
            assert broker.topics["none"].core.depth == 1
            topic.channels["b"].unpause()
            assert await bodies_of(broker, "b") == [b"1", b"2", b"3"]
            topic.channels["b"].pause()
            await broker.logs.commit(topic.core, topic.channels["b"].core)


@pytest.mark.parametrize("storage", ["log", "default"])
async def test_what_came_while_the_state_was_missing_is_kept(
    storage: str, tmp_path: Path, nsq_log: NSQ_LOG
) -> None:
    """nsqd ran without the state: what it took is in the log after that."""
    await served(tmp_path)
    lose_state(tmp_path)
    async with running_nsqd(options(tmp_path, storage)) as broker:
        assert broker.topics["t"].storage == "default"
        await publish(broker, "t", b"4")
    assert nsq_log("adopt", "--topic=t", str(tmp_path)).code == 0
    async with running_nsqd(options(tmp_path, storage)) as broker:
        assert broker.topics["t"].storage == "log"
        assert await bodies_of(broker, "a") == [b"1", b"2", b"3", b"4"]
        assert broker.topics["t"].channels["b"].core.paused
        with trio.fail_after(5):
            while any("diskqueue.0" in name for name in os.listdir(tmp_path)):  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_what_must_not_be_adopted_stays(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """A deleted topic, one whose name another has, and all while nsqd runs or the state is bad."""
    await served(tmp_path)
    state = SqliteState(RealDisk(str(tmp_path)))
    numbers = {row.name: row.number for row in state.load().topics}
    state.apply([DropTopic(numbers["none"])])
    state.close()
    segment = next(name for name in os.listdir(tmp_path) if name.startswith("t.log."))
    old, new = f".{numbers['t']:08}.", ".00000077."
    (tmp_path / segment.replace(old, new)).write_bytes((tmp_path / segment).read_bytes())
    ended = nsq_log("adopt", str(tmp_path))
    assert (ended.code, ended.out) == (1, b"all logs are known\n")
    assert "t incarnation 77 stays" in ended.err
    with FolderLock(str(tmp_path)):
        ended = nsq_log("adopt", str(tmp_path))
    assert ended.code == 2
    assert "stop nsqd before" in ended.err
    (tmp_path / STATE_FILE).write_bytes(b"no database")
    ended = nsq_log("adopt", str(tmp_path))
    assert ended.code == 2
    assert "move the state away" in ended.err
    assert (tmp_path / STATE_FILE).read_bytes() == b"no database"


async def test_damage_and_gaps_are_known_afterwards(tmp_path: Path, nsq_log: NSQ_LOG) -> None:
    """A damaged record costs itself, and is no depth; exit code 1 says so."""
    async with running_nsqd(options(tmp_path)) as broker:
        broker.topic("t").channel("a")
        for body in (b"one", b"two", b"three"):
            await publish(broker, "t", body)
    lose_state(tmp_path)
    [name] = [name for name in os.listdir(tmp_path) if name.startswith("t.log.")]
    segment = tmp_path / name
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"two", b"twO"))
    ended = nsq_log("adopt", str(tmp_path))
    assert ended.code == 1
    assert "damage at" in ended.err
    assert b"2 messages, sequences 0 to 2" in ended.out
    async with running_nsqd(options(tmp_path)) as broker:
        assert await bodies_of(broker, "a") == [b"one", b"three"]
