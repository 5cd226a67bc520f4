"""Each await of the endpoints that read and administer is cancelled once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from tests.broker.support import numbered, publish
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.http.talk import HttpTalk, get, post
from tests.http.test_cancellation import Place, Session, cut_offs, end_amid_a_session
from trionsq.storage.metadata import load_metadata
from trionsq.testing.conversation import Conversation
from trionsq.testing.disk import SimulatedDisk
from trionsq.wire import commands

# After how much a page gives other tasks a turn.
SHORT_TURNS = (
    "trionsq.http.debug._MAX_READS",
    "trionsq.http.metrics._MAX_READS",
    "trionsq.http.peek._TURN_BYTES",
    "trionsq.http.peek._TURN_CONSUMERS",
    "trionsq.broker.statistics._ROWS_PER_TURN",
)


@contextmanager
def quick_pages() -> Iterator[None]:
    """Pages give others a turn after each row; /debug looks by trio's clock, and counts nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SHORT_TURNS:
            patch.setattr(name, 1)
        patch.setattr(
            "trionsq.debug.loop.perf_counter_ns", lambda: int(trio.current_time() * 10**9)
        )
        patch.setattr("trionsq.debug.process.census", lambda top: [])
        yield


async def look(here: Place, talk: HttpTalk) -> None:
    """Every page that waits for something; then a change of an option."""
    for target in (
        "/stats?format=json",
        "/stats",
        "/metrics",
        "/topic/peek?topic=u",
        "/channel/peek?topic=t&channel=c",
        "/channel/peek?topic=t&channel=c&state=in_flight",
        "/channel/peek?topic=t&channel=c&state=deferred",
        "/debug/checks",
        "/debug/loop?seconds=0.05",
    ):
        await talk.ask(get(target))
    await talk.ask(post("/config/log_level", b"warn", method=b"PUT"))
    for target in (
        "/debug/tasks",
        "/debug/heap",
        "/debug/profile?seconds=0.01",
        "/debug/profile?seconds=0.01&format=pprof",
        "/debug/pprof/profile?seconds=1",
        "/debug/pprof/heap",
        "/debug/pprof/goroutine",
    ):
        await talk.ask(get(target))
    await talk.ask(post("/debug/freememory"))


async def fill(here: Place) -> None:
    """Messages in flight, deferred, and waiting on disk at the channel; others on disk at
    a topic alone."""
    publish(here.broker, "t", *numbered(8))
    publish(here.broker, "t", b"later", defer_ms=60_000)
    publish(here.broker, "u", *numbered(8))
    await trio.sleep(1)
    consumer = Conversation.begin(here.broker)
    await consumer.subscribe("t", "c", ready=2)
    await consumer.messages(2)
    await consumer.say(commands.ready(0))
    core = here.broker.topics["t"].channels["c"].core
    assert (core.in_flight_count, core.deferred_count) == (2, 1)
    assert core.store.backend.depth
    assert here.broker.topics["u"].core.store.backend.depth


async def administer(here: Place, talk: HttpTalk) -> None:
    """Every action on topics and channels."""
    for target in (
        "/topic/create?topic=made",
        "/channel/create?topic=made&channel=d",
        "/topic/pause?topic=made",
        "/topic/unpause?topic=made",
        "/channel/pause?topic=made&channel=d",
        "/channel/unpause?topic=made&channel=d",
        "/topic/empty?topic=t",
        "/channel/empty?topic=t&channel=c",
        "/channel/delete?topic=made&channel=d",
        "/topic/delete?topic=made",
    ):
        assert await talk.ask(post(target)) == b""
        if "pause" in target:
            # Even a kill leaves it so.
            name = "made:d" if "channel" in target else "made"
            is_paused = name in saved_pauses(here.disk.after_kill())
            assert is_paused == ("unpause" not in target)
    assert "made" not in here.broker.topics


async def administer_logs(here: Place, talk: HttpTalk) -> None:
    """Every action that is for topics with a log, but the backup, which needs a real disk."""
    here.visits += 1
    new = f"n{here.visits}"
    assert await talk.ask(post("/topic/create?topic=l&storage=log")) == b""
    assert await talk.ask(post("/channel/create?topic=l&channel=c")) == b""
    first = here.broker.topics["l"].core.message_count
    assert await talk.ask(post("/mpub?topic=l", b"one\ntwo")) == b"OK"
    target = f"/channel/create?topic=l&channel={new}&from=1"
    assert json.loads(await talk.ask(post(target)))["sequence"] == 1
    for to, sequence in (("beginning", 0), ("1", 1), ("2000-01-01T00:00:00Z", 0)):
        answer = await talk.ask(post(f"/channel/seek?topic=l&channel=c&to={to}"))
        assert json.loads(answer)["sequence"] == sequence
    end = json.loads(await talk.ask(post("/channel/seek?topic=l&channel=c&to=end")))
    assert end["time"] is None
    assert end["sequence"] >= first + 2
    assert here.broker.topics["l"].channels["c"].core.depth == 0
    await talk.ask(post("/topic/settings?topic=l&durability=always&retain=1h&retain_bytes=9"))
    assert json.loads(await talk.ask(get("/topic/settings?topic=l")))["retain_bytes"] == 9
    await talk.ask(get("/topic/settings"))
    await talk.ask(post("/topic/note_damage?topic=l"))
    await talk.ask(get("/channel/peek?topic=l&channel=c"))
    await talk.ask(post(f"/topic/create?topic={new}&storage=default"))
    await talk.ask(post(f"/topic/move?topic={new}&storage=log"))
    assert here.broker.topics[new].has_log
    await talk.ask(post("/channel/delete?topic=l&channel=c"))


def saved_pauses(disk: SimulatedDisk) -> set[str]:
    """The paused topics and channels that the next nsqd finds."""
    topics = load_metadata(disk)
    channels = {
        f"{each.name}:{part.name}" for each in topics for part in each.channels if part.paused
    }
    return channels | {each.name for each in topics if each.paused}


async def end_amid_requests(cancel_at: CancelAt, *, session: Session, how: str) -> None:
    """Requests of one connection that ends at one await; then all of them on another one."""
    with quick_pages():
        await end_amid_a_session(
            cancel_at, session=session, again=session, fast_path=False, how=how, prepare=fill
        )


@pytest.mark.parametrize(
    ("session", "how", "when"),
    [
        *cut_offs(administer, in_test="closed"),
        *cut_offs(administer_logs, in_test="closed"),
        *cut_offs(look),
    ],
)
def test_endpoints_cut_off_at_any_await(session: Session, how: str, when: When) -> None:
    """No task, lock or error is left: the same requests succeed at once on another connection."""
    sweep_awaits(partial(end_amid_requests, session=session, how=how), when, least=100)
