"""/topic/settings and /topic/note_damage (trionsq.http.settings, trionsq.storage.log.damage)."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.support import Gate, consume, finish, publish
from trionsq.broker.broker import Broker
from trionsq.broker.logs import LogTopics, log_of
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import Clock
from trionsq.disk import Disk
from trionsq.http import settings
from trionsq.http.app import create_app
from trionsq.storage.folder import DataPathError
from trionsq.storage.log.rows import State, StateError
from trionsq.storage.log.seeking import rfc3339
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.logstate import open_state
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire.bodies import ListBodies


async def ask(app: QuartTrio, method: str, target: str) -> tuple[int, Any]:
    """Status and document, or the code of a refusal."""
    client = app.test_client()
    response = await (client.get(target) if method == "GET" else client.post(target))
    data = await response.get_data()
    document: Any = json.loads(data) if data else None
    return response.status_code, document if response.status_code == 200 else document["message"]


async def test_what_is_set_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each topic, alone and in the list, which is made in turns; and what new ones get."""
    monkeypatch.setattr(settings, "_TURN_TOPICS", 1)
    async with nsqd_in_memory(storage="log", durability="always") as broker:
        app = create_app(broker)
        broker.topic("t")
        broker.topic("u", "default")
        broker.topic("e#ephemeral")
        rows = [
            {"topic": "t", "storage": "log", "durability": "always"},
            {"topic": "u", "storage": "default", "durability": "memory"},
            {"topic": "e#ephemeral", "storage": "default", "durability": "memory"},
        ]
        status, document = await ask(app, "GET", "/topic/settings")
        assert (status, document.pop("topics")) == (200, rows)
        assert document == {
            "storage": "log",
            "durability": "always",
            "disk_full": False,
            "damaged_count": 0,
            "damaged": [],
        }
        alone = {**rows[1], "settings": {}}
        assert await ask(app, "GET", "/topic/settings?topic=u") == (200, alone)


async def test_a_node_without_logs_has_settings(broker: Broker) -> None:
    """There is no trouble of logs either."""
    app = create_app(broker)
    _, document = await ask(app, "GET", "/topic/settings")
    assert (document["topics"], document["disk_full"]) == ([], False)


@pytest.mark.parametrize(
    ("method", "target", "refusal"),
    [
        ("GET", "/topic/settings?topic=x", (404, "TOPIC_NOT_FOUND")),
        ("GET", "/topic/settings?topic=b$d", (400, "INVALID_TOPIC")),
        ("POST", "/topic/settings", (400, "MISSING_ARG_TOPIC")),
        ("POST", "/topic/settings?topic=x&durability=always", (404, "TOPIC_NOT_FOUND")),
        ("POST", "/topic/settings?topic=t", (400, "INVALID_DURABILITY")),
        ("POST", "/topic/settings?topic=t&durability=memory", (400, "INVALID_DURABILITY")),
        ("POST", "/topic/settings?topic=u&durability=always", (409, "TOPIC_HAS_NO_LOG")),
        ("POST", "/topic/note_damage", (400, "MISSING_ARG_TOPIC")),
        ("POST", "/topic/note_damage?topic=x", (404, "TOPIC_NOT_FOUND")),
    ],
)
async def test_refusals(method: str, target: str, refusal: tuple[int, str]) -> None:
    """As the other endpoints of topics give them; nothing changes."""
    async with nsqd_in_memory(storage="log", durability="interval") as broker:
        app = create_app(broker)
        broker.topic("t")
        broker.topic("u", "default")
        assert await ask(app, method, target) == refusal
        _, row = await ask(app, "GET", "/topic/settings?topic=t")
        assert row["durability"] == "interval"


async def test_a_changed_durability_holds_at_once_and_after_a_kill() -> None:
    """The next publish waits for its fsync, what was answered before is durable, and so is the
    change."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="log", durability="interval") as broker:
        app = create_app(broker)
        topic = broker.topic("t")
        publish(broker, "t", b"before")
        topic_log = log_of(topic)
        assert topic_log is not None
        assert topic_log.unsynced_nbytes > 0
        target = "/topic/settings?topic=t&durability=always"
        assert (await ask(app, "POST", target))[1]["durability"] == "always"
        assert topic_log.unsynced_nbytes == 0
        publish(broker, "t", b"after")
        found = disk.after_power_loss()
    async with nsqd_in_memory(disk=found, storage="log", durability="interval") as broker:
        _, row = await ask(create_app(broker), "GET", "/topic/settings?topic=t")
        assert row["durability"] == "always"
        await consume(broker, "t", "c", 2)


async def test_a_change_that_is_not_saved_is_not_answered_as_such() -> None:
    """500 while the disk fails; the change is there all the same, and saved when that works."""
    disk, background = SimulatedDisk(), Gate()
    async with nsqd_in_memory(disk=disk, background=background, storage="log") as broker:
        app = create_app(broker)
        broker.topic("t")
        await wait_all_tasks_blocked()
        disk.fail(errno.EIO, forever=True)
        target = "/topic/settings?topic=t&durability=always"
        status, code = await ask(app, "POST", target)
        assert (status, code.split(":")[0]) == (500, "NOT_DURABLE")
        disk.heal()
        assert (await ask(app, "POST", target))[0] == 200
        found = disk.after_kill()
    async with nsqd_in_memory(disk=found) as broker:
        _, row = await ask(create_app(broker), "GET", "/topic/settings?topic=t")
        assert row["durability"] == "always"


async def with_damage(disk: SimulatedDisk, count: int = 3, *, has_channel: bool = True) -> str:
    """Damage the end of the second of some segments on a disk, and return its name."""
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        broker.topic("s")
        assert broker.logs.node is not None
        broker.logs.node.segment_bytes = 200
        topic = broker.topic("t")
        if has_channel:
            topic.channel("c")
        for number in range(count):
            pending = topic.publish(ListBodies([b"%0100d" % number] * 2))
            assert pending is None
    names = sorted(name for name in disk.files() if name.startswith("t.log."))
    assert len(names) == count
    data = disk.files()[names[1]]
    disk.write_file(names[1], data[:-50] + b"?" + data[-49:])
    return names[1]


async def test_a_first_log_on_a_full_disk_is_refused_with_the_reason() -> None:
    """No topic is made; the start with --storage=log fails with it, and says what goes without."""
    disk = SimulatedDisk()
    full: dict[str, Any] = {"forever": True, "only": ("create", "write")}
    disk.fail(errno.ENOSPC, **full)
    async with nsqd_in_memory(disk=disk, storage="default") as broker:
        status, code = await ask(create_app(broker), "POST", "/topic/create?topic=t&storage=log")
        assert (status, code.split(":")[0]) == (500, "NOT_DURABLE")
        assert "No space left on device" in code
        assert "t" not in broker.topics
        logs = LogTopics(broker.folder, NsqdOptions(storage="log"), {}, broker.clock, open_state)
        with pytest.raises(DataPathError, match=r"No space left on device.*--storage=default"):
            logs.open()
        disk.heal()
        assert logs.open() == []


def keeping(opened: list[State]) -> Callable[[Disk], State]:
    """What opens a state, and puts it into the list."""

    def open_one(disk: Disk) -> State:
        opened.append(open_state(disk))
        return opened[-1]

    return open_one


FIRST_LOGS = ["/topic/create?topic=t&storage=log", "/topic/move?topic=u&storage=log"]


@pytest.mark.parametrize("target", FIRST_LOGS)
async def test_the_first_log_of_a_node_holds_up_nobody(target: str) -> None:
    """Its state is made in a job, once, also if a request is given up meanwhile."""
    background, opened = Gate(), list[State]()
    async with nsqd_in_memory(background=background, storage="default") as broker:
        app = create_app(broker)
        broker.topic("u", "default")
        await wait_all_tasks_blocked()
        broker.logs._open_state = keeping(opened)
        background.shut()
        async with trio.open_nursery() as given_up:
            given_up.start_soon(ask, app, "POST", target)
            await wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            statuses: list[tuple[int, Any]] = []

            async def request() -> None:
                statuses.append(await ask(app, "POST", target))

            nursery.start_soon(request)
            await wait_all_tasks_blocked()
            assert not opened
            assert broker.logs.node is None
            background.open()
        assert [status for status, _ in statuses] == [200]
        assert len(opened) == 1


@pytest.mark.parametrize("target", FIRST_LOGS)
async def test_a_first_log_that_fails_says_why_and_may_be_tried_again(target: str) -> None:
    """The error of the disk is in the answer; when the disk is well, the same request succeeds."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="default") as broker:
        app = create_app(broker)
        broker.topic("u", "default")
        disk.fail(errno.EACCES, forever=True, only=("create", "write"))
        status, code = await ask(app, "POST", target)
        assert status == 500
        assert "Permission denied" in code
        assert "defect" not in code
        disk.heal()
        assert (await ask(app, "POST", target))[0] == 200


async def test_a_stop_waits_for_the_first_log(autojump_clock: MockClock) -> None:
    """The state that is being made is closed, and not by the end of the process."""
    background, states = Gate(), list[State]()
    async with (
        trio.open_nursery() as nursery,
        nsqd_in_memory(background=background, storage="default") as broker,
    ):
        await wait_all_tasks_blocked()
        broker.logs._open_state = keeping(states)
        background.shut()
        with trio.move_on_after(0.01):
            await broker.logs.ensure_node()

        async def open_later() -> None:
            await trio.sleep(1)
            background.open()

        nursery.start_soon(open_later)
    [state] = states
    with pytest.raises(StateError, match="closed"):
        state.load()


async def test_a_start_with_logs_on_a_full_disk() -> None:
    """Publishes are refused, and /ping says why; what is there can be consumed."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        broker.topic("t").channel("c")
        publish(broker, "t", b"x")
    disk.fail(errno.ENOSPC, forever=True, only=("create", "write"))
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        pending = broker.topics["t"].publish(ListBodies([b"y"]))
        assert pending is not None
        assert pending.error is not None
        assert broker.health.startswith("NOK - ")
        _, [message] = await consume(broker, "t", "c", 1)
        assert message.body == b"x"
        disk.heal()


async def test_damage_is_told_until_its_segment_is_gone() -> None:
    """Named by the settings and by /ping, and counted; then all is well again."""
    disk = SimulatedDisk()
    name = await with_damage(disk)
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        app = create_app(broker)
        consumer, messages = await consume(broker, "t", "c", 4)
        await wait_all_tasks_blocked()
        _, document = await ask(app, "GET", "/topic/settings")
        [place] = document["damaged"]
        assert (place["topic"], place["file"], document["damaged_count"]) == ("t", name, 1)
        assert place["offset"] > 0
        assert place["text"].startswith(f"{name}: bytes {place['offset']} to ")
        assert broker.health == f"NOK - {place['text']}"
        assert broker.topics["t"].channels["c"].core.dropped["damaged"] == 2
        await finish(consumer, *messages)
        await broker.logs.take_snapshots()
        await wait_all_tasks_blocked()
        assert name not in disk.files()
        assert (broker.health, len(broker.folder.faults)) == ("OK", 0)
        assert (await ask(app, "GET", "/topic/settings"))[1]["damaged"] == []


async def test_damage_that_a_start_comes_across_is_named() -> None:
    """The end of a segment that another one follows is not torn, but damaged."""
    disk = SimulatedDisk()
    name = await with_damage(disk, has_channel=False)
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        await consume(broker, "t", "c", 4)
        await wait_all_tasks_blocked()
        assert broker.health.startswith(f"NOK - {name}: bytes ")


async def test_damage_that_is_noted_is_no_fault() -> None:
    """It is not named again while nsqd runs; that of other topics stays."""
    disk = SimulatedDisk()
    await with_damage(disk)
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        app = create_app(broker)
        await consume(broker, "t", "c", 4)
        await wait_all_tasks_blocked()
        assert broker.health.startswith("NOK - ")
        assert (await ask(app, "POST", "/topic/note_damage?topic=s"))[0] == 200
        assert broker.health.startswith("NOK - ")
        assert (await ask(app, "POST", "/topic/note_damage?topic=t"))[0] == 200
        assert broker.health == "OK"
        # The other channel reads the place, too.
        broker.topics["t"].channel("d")
        await wait_all_tasks_blocked()
        assert broker.health == "OK"
        assert broker.logs.node is not None
        assert len(broker.logs.node.damaged) == 0


async def test_damage_goes_with_its_topic() -> None:
    """A topic that is deleted leaves no fault behind."""
    disk = SimulatedDisk()
    await with_damage(disk)
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        app = create_app(broker)
        await consume(broker, "t", "c", 4)
        await wait_all_tasks_blocked()
        assert broker.health.startswith("NOK - ")
        assert (await ask(app, "POST", "/topic/delete?topic=t"))[0] == 200
        assert broker.health == "OK"


async def test_a_missing_segment_is_damage_until_the_rest_is_finished() -> None:
    """The start names it; it is forgotten when what is behind it is all that is left."""
    disk = SimulatedDisk()
    name = await with_damage(disk)
    disk.unlink(name)
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        assert "lacks the segment" in broker.health
        consumer, messages = await consume(broker, "t", "c", 4)
        await finish(consumer, *messages)
        await broker.logs.take_snapshots()
        await wait_all_tasks_blocked()
        assert broker.health == "OK"


async def test_retention_is_set_and_shown(autojump_clock: MockClock) -> None:
    """Of one topic, or by nsqd's flags; it outlives a restart, and says what the log has."""
    disk, clock = SimulatedDisk(), Clock.from_trio(1_700_000_000_000_000_000)
    flags: dict[str, Any] = {"storage": "log", "durability": "interval", "retain_bytes": 7}
    flags |= {"retain_ns": 3_600_000_000_000}
    async with nsqd_in_memory(disk=disk, clock=clock, **flags) as broker:
        app = create_app(broker)
        broker.topic("t").channel("c")
        status, document = await ask(app, "GET", "/topic/settings?topic=t")
        assert status == 200
        assert document == {
            "topic": "t",
            "storage": "log",
            "durability": "interval",
            "settings": {},
            "retain": "1h0m0s",
            "retain_bytes": 7,
            "first": None,
            "last": None,
            "segments": 0,
            "bytes": 0,
            "oldest_segment": {"held_by": "none", "channel": ""},
        }
        # Threads let the time of tests jump, but for these seconds there are none.
        began_ns = clock.now_ns()
        for _ in range(3):
            publish(broker, "t", b"x", b"y")
            await trio.sleep(1)
        topic_log = log_of(broker.topics["t"])
        assert topic_log is not None
        topic_log.gaps.add(5, 6)
        for target, retain, nbytes in (
            ("retain=90s", "1m30s", 7),
            ("retain_bytes=0", "1m30s", 0),
            ("retain=default&durability=always", "1h0m0s", 0),
            ("retain=2h&retain_bytes=123", "2h0m0s", 123),
        ):
            status, document = await ask(app, "POST", f"/topic/settings?topic=t&{target}")
            assert status == 200
            assert (document["retain"], document["retain_bytes"]) == (retain, nbytes)
        assert document["durability"] == "always"
        assert document["first"] == {"sequence": 0, "time": rfc3339(began_ns)}
        assert document["last"] == {"sequence": 4, "time": rfc3339(began_ns + 2 * 10**9)}
        sizes = [len(data) for name, data in disk.files().items() if ".log." in name]
        assert document["bytes"] == sum(sizes)
        for bad in ("retain=", "retain=1", "retain=-1s", "retain_bytes=-1", "retain_bytes=1k",
                    "retain_bytes=9999999999999999999"):  # fmt: skip
            code = f"INVALID_{bad.partition('=')[0].upper()}"
            assert await ask(app, "POST", f"/topic/settings?topic=t&{bad}") == (400, code)
        broker.topic("d", "default")
        answer = await ask(app, "POST", "/topic/settings?topic=d&retain=1h")
        assert answer == (409, "TOPIC_HAS_NO_LOG")
        disk = disk.after_kill()
    async with nsqd_in_memory(disk=disk, clock=clock, **flags) as broker:
        app = create_app(broker)
        broker.topic("u")
        _, document = await ask(app, "GET", "/topic/settings?topic=t")
        assert (document["retain"], document["retain_bytes"]) == ("2h0m0s", 123)
        _, document = await ask(app, "GET", "/topic/settings?topic=u")
        assert (document["retain"], document["retain_bytes"]) == ("1h0m0s", 7)


async def test_what_is_finished_goes_when_retention_lets_it(autojump_clock: MockClock) -> None:
    """Not before; less retention takes effect at the next snapshot; /metrics says why it stays."""
    disk = SimulatedDisk()

    def files() -> int:
        return len([name for name in disk.files() if ".log." in name])

    async with nsqd_in_memory(disk=disk, storage="log", retain_ns=10**18) as broker:
        app = create_app(broker)
        assert broker.logs.node is not None
        broker.logs.node.segment_bytes = 300
        broker.topic("t").channel("c")
        for number in range(10):
            publish(broker, "t", b"%0300d" % number)
        consumer, messages = await consume(broker, "t", "c", 10)
        await finish(consumer, *messages[:4])
        await trio.sleep(3)
        _, document = await ask(app, "GET", "/topic/settings?topic=t")
        assert document["oldest_segment"] == {"held_by": "retention", "channel": ""}
        assert files() == document["segments"] == 10
        await ask(app, "POST", "/topic/settings?topic=t&retain=0&retain_bytes=0")
        await trio.sleep(3)
        _, document = await ask(app, "GET", "/topic/settings?topic=t")
        assert document["oldest_segment"] == {"held_by": "channel", "channel": "c"}
        assert files() == 6
        page = await (await app.test_client().get("/metrics")).get_data(as_text=True)
        line = 'nsqd_log_oldest_segment{channel="c",held_by="channel",topic="t"} 1.0'
        assert line in page.splitlines()
        for name, value in (("first_sequence", 4), ("next_sequence", 10), ("retain_seconds", 0)):
            assert f'nsqd_log_{name}{{topic="t"}} {value:.1f}' in page.splitlines()
