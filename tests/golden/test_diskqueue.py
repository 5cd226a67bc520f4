"""Recorded data folders against a real nsqd: it takes them over, and could give them back.

TRIONSQ_TEST_NSQD=/path/to/nsqd starts that one in place of ours.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.drill.connection import NsqConnection, read_stats
from tests.golden.diskqueue import (
    DEFAULT_MAX_MSG_SIZE,
    QUEUE_FILES,
    Delivery,
    FolderCase,
    Stored,
    folder_cases,
    queue_of_file,
    read_meta,
    read_queue,
)
from tests.golden.needs import not_built
from tests.processes import NsqdProcess, running_nsqd
from tests.soak import smoke
from trionsq.wire import commands
from trionsq.wire.client import MessageFrame, Response

CASE_LIMIT_S = 120.0
SILENCE_S = 0.2
POLL_S = 0.02
READY_COUNT = 100
BAD_FILES_VARY = frozenset({"rolled_files_partly_read"})
"""Cases in which the original may set a finished file aside, or not."""

needs_disk = pytest.mark.skipif("disk" in not_built(), reason=not_built().get("disk", ""))
each_folder = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in folder_cases()]
)

a_few_folders = pytest.mark.parametrize(
    "case",
    smoke(
        {case.name: case for case in folder_cases()},
        "metadata_paused_and_ephemeral",
        "rolled_files_partly_read",
    ),
)


@each_folder
def test_recorded_folder_is_read_as_recorded(case: FolderCase) -> None:
    """The reader of these tests finds in each folder what the recording says is there."""
    for queue, (meta_text, messages) in case.queues.items():
        meta = read_meta(case.data, queue)
        assert (case.data / f"{queue}.diskqueue.meta.dat").read_text() == meta_text
        assert read_queue(case.data, queue, case.max_msg_size)[: meta.depth] == messages
    assert unread_queues(case.data, case) == case.unread()


@needs_disk
@each_folder
async def test_folder_is_taken_over(case: FolderCase, tmp_path: Path) -> None:
    """nsqd shows, delivers, in order, and leaves behind what nsqd v1.3.0 did with the folder."""
    folder = shutil.copytree(case.data, tmp_path / "data")
    async with running_nsqd(folder, case.args) as nsqd:
        with trio.fail_after(CASE_LIMIT_S):
            assert like(await read_stats(nsqd.http_address), case.topics) == case.topics
            for delivery in case.delivered:
                assert await consumed(nsqd, delivery) == delivery.messages
            await stop(nsqd)
    assert significant(left_files(folder, case), case) == significant(case.files_after_stop, case)
    assert in_order(read_metadata(folder)) == in_order(metadata_after(case))
    assert all(read_meta(folder, queue).depth == 0 for queue in new_queues(folder, case))


@needs_disk
@a_few_folders
async def test_the_way_back_is_open(case: FolderCase, tmp_path: Path) -> None:
    """nsqd that opened the folder and stopped leaves every record where another finds it."""
    folder = shutil.copytree(case.data, tmp_path / "data")
    async with running_nsqd(folder, case.args) as nsqd:
        with trio.fail_after(CASE_LIMIT_S):
            # Also shows that it serves: nsqd v1.3.0 minds signals only after it listens.
            assert like(await read_stats(nsqd.http_address), case.topics) == case.topics
            await stop(nsqd)
    assert unread_queues(folder, case) == case.unread()
    assert in_order(read_metadata(folder)) == in_order(case.metadata)
    names = {path.name for path in folder.glob(QUEUE_FILES)}
    assert [name for name in names if queue_of_file(name) is None] == []
    assert new_queues(folder, case) == set()


@needs_disk
async def test_what_goes_in_lies_in_the_files(tmp_path: Path) -> None:
    """After a stop the folder holds, in nsqd's files, what was published and not finished; a
    message in flight with the attempts it has had."""
    bodies = [b"body %d" % number for number in range(9)]
    async with running_nsqd(tmp_path, ["--mem-queue-size=3"]) as nsqd:
        with trio.fail_after(CASE_LIMIT_S):
            async with (
                await NsqConnection.open(nsqd.tcp_address) as consumer,
                await NsqConnection.open(nsqd.tcp_address) as publisher,
            ):
                await consumer.subscribe("mixed", "work", 1)
                for body in bodies:
                    await publisher.send(commands.publish("mixed", body))
                    assert await publisher.frames() == [Response(b"OK")]
                (in_flight,) = await consumer.frames()
                assert isinstance(in_flight, MessageFrame)
                await stop(nsqd)
    stored = read_queue(tmp_path, "mixed:work", DEFAULT_MAX_MSG_SIZE)
    stored += read_queue(tmp_path, "mixed", DEFAULT_MAX_MSG_SIZE)
    assert {message.body for message in stored} == set(bodies)
    assert len(stored) == len(bodies)
    attempts = {message.message_id: message.attempts for message in stored}
    assert attempts == {**dict.fromkeys(attempts, 0), in_flight.message_id: 1}


async def consumed(nsqd: NsqdProcess, delivery: Delivery) -> tuple[Stored, ...]:
    """All that a subscription brings until the channel is empty and silent, finished at once."""
    got: list[Stored] = []
    async with await NsqConnection.open(nsqd.tcp_address) as connection:
        await connection.subscribe(delivery.topic, delivery.channel, READY_COUNT)
        while len(got) < len(delivery.messages):
            got += await finish_next(connection)
        while await held_messages(nsqd, delivery):  # noqa: ASYNC110 - another process
            await trio.sleep(POLL_S)
        with trio.move_on_after(SILENCE_S):
            while True:
                got += await finish_next(connection)
    return tuple(got)


async def finish_next(connection: NsqConnection) -> list[Stored]:
    """Finish the messages that come next; anything but messages fails the test."""
    frames = await connection.frames()
    messages = [frame for frame in frames if isinstance(frame, MessageFrame)]
    assert messages == frames
    await connection.send(b"".join(commands.finish(message.message_id) for message in messages))
    return [Stored(*message) for message in messages]


async def held_messages(nsqd: NsqdProcess, delivery: Delivery) -> int:
    """Messages that the topic and the channel still hold."""
    topics = {topic["topic_name"]: topic for topic in await read_stats(nsqd.http_address)}
    topic = topics[delivery.topic]
    channels = {channel["channel_name"]: channel for channel in topic["channels"]}
    channel = channels[delivery.channel]
    counts = ("depth", "in_flight_count", "deferred_count")
    return int(topic["depth"]) + sum(int(channel[name]) for name in counts)


async def stop(nsqd: NsqdProcess) -> None:
    """A clean stop, as SIGTERM asks for it."""
    nsqd.process.send_signal(signal.SIGTERM)
    assert await nsqd.process.wait() == 0, nsqd.log_tail()


def like(got: Any, pattern: Any) -> Any:
    """``got`` less the keys that ``pattern`` lacks; lists of things sorted as in ``pattern``."""
    if isinstance(pattern, dict):
        return {key: like(got[key], value) for key, value in pattern.items()}
    if isinstance(pattern, list) and len(pattern) == len(got):
        return [like(one, other) for one, other in zip(got, pattern, strict=True)]
    return got


def in_order(value: Any) -> Any:
    """The JSON value with its lists sorted: topics and channels have no order."""
    if isinstance(value, dict):
        return {key: in_order(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return sorted(map(in_order, value), key=json.dumps)
    return value


def read_metadata(folder: Path) -> Any:
    """nsqd.dat, but for the version."""
    metadata = json.loads((folder / "nsqd.dat").read_text())
    del metadata["version"]
    return in_order(metadata)


def metadata_after(case: FolderCase) -> dict[str, Any]:
    """nsqd.dat, but for the version, once the case's subscriptions made their channels."""
    topics = []
    for topic in case.metadata["topics"]:
        channels = list(topic["channels"] or [])
        names = {channel["name"] for channel in channels}
        channels += [
            {"name": delivery.channel, "paused": False}
            for delivery in case.delivered
            if delivery.topic == topic["name"] and delivery.channel not in names
        ]
        topics.append({**topic, "channels": channels or None})
    return {"topics": topics}


def unread_queues(folder: Path, case: FolderCase) -> dict[str, tuple[Stored, ...]]:
    """What the folder holds of the queues that the case speaks of."""
    return {queue: read_queue(folder, queue, case.max_msg_size) for queue in case.unread()}


def left_files(folder: Path, case: FolderCase) -> dict[str, str | int]:
    """A meta file's text and another's size, of the recorded queues and of files unheard of."""
    new = new_queues(folder, case)
    return {
        path.name: path.read_text() if path.name.endswith(".meta.dat") else path.stat().st_size
        for path in folder.glob(QUEUE_FILES)
        if queue_of_file(path.name) not in new
    }


def new_queues(folder: Path, case: FolderCase) -> set[str]:
    """Queues that the folder has and the recorded one had not, by their files."""
    before = {queue_of_file(path.name) for path in case.data.glob(QUEUE_FILES)}
    now = {queue_of_file(path.name) for path in folder.glob(QUEUE_FILES)}
    return {queue for queue in now - before if queue is not None}


def significant(files: dict[str, str | int], case: FolderCase) -> dict[str, str | int]:
    """The files but for leftovers that vary."""
    varies = case.name in BAD_FILES_VARY
    return {name: is_ for name, is_ in files.items() if not (varies and name.endswith(".bad"))}
