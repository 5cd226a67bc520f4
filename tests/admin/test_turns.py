"""No poll, page or answer holds up the event loop because there are many topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

import admin
from admin.api.responses import encode_json
from admin.cluster.shapes import NodeStats
from admin.cluster.turns import MAX_INLINE, PIECE_BYTES, PIECE_TOPICS, compute, node_stats
from admin.upstream import UpstreamError
from admin.watch.health import problems
from admin.watch.history import History
from admin.watch.snapshot import ChannelRow, Snapshot, TopicRow
from tests.admin.pages.support import Nodes, channel, pages, topic
from tests.soak import by_level, more_in_soak
from tests.work import longest_step

FOLDER = f"{Path(admin.__file__).parent}/"
FEW, MANY = 10, by_level(test=1_000, short=1_000, full=3_000)
# One step of 250 rows, the most that a page shows, has fewer lines than this; MANY have far more.
LINES_MAX = 50_000


def wide(count: int) -> dict[str, list[dict[str, Any]] | None]:
    """Two nodes with as many topics, and one topic with as many channels."""
    topics = [topic(f"topic{number}", channel("c", depth=number)) for number in range(count)]
    topics.append(topic("deep", *(channel(f"channel{number}") for number in range(count))))
    return {"one:4151": topics, "two:4151": topics}


@more_in_soak
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/counter",
        "/topics",
        "/topics?show=channels&sort=-depth",
        "/topics?q=topic1&size=250",
        "/topics?group=yes",
        "/topics?q=/1$/&as=json",
        "/search?q=topic1",
        "/clients?size=250",
        "/topics/deep",
        "/nodes/one:4151",
        "/api/nodes/one:4151",
        "/api/topics/deep",
        "/api/counter",
    ],
)
async def test_a_page_is_made_in_turns(path: str) -> None:
    """However many topics and channels: no step of a page, or of the polls beside it, is long."""
    lines = list[int]()
    for count in (FEW, MANY):
        async with pages(Nodes(wide(count))) as found:

            async def look(found: Any = found) -> None:
                assert await found.page(path)

            lines.append(await longest_step(look, FOLDER))
    assert lines[0] > 0
    assert lines[1] < LINES_MAX


async def test_health_is_judged_in_turns() -> None:
    """Each channel has a trouble, and no step looks at more than some of them."""
    snapshot = Snapshot(1, 0.0)
    for number in range(MANY):
        name = f"t{number}"
        snapshot.topics[name] = TopicRow(topic=name, depth=5)
        snapshot.channels[name, "c"] = ChannelRow(topic=name, channel="c", depth=500, clients=1)
    found = list[object]()

    async def judge() -> None:
        found.extend(await problems(snapshot, History(3600.0, 5.0)))

    assert await longest_step(judge, "/admin/watch/") < LINES_MAX
    assert len(found) == MANY


async def test_a_topic_with_many_channels_shows_them_page_by_page() -> None:
    """Fifty rows, and the way to the others."""
    async with pages(Nodes(wide(300))) as found:
        page = await found.page("/topics/deep")
        assert page.count('href="/topics/deep/channel') == 50
        assert "of 301" not in page
        assert "of 300" in page
        assert "channel299</a>" in await found.page("/topics/deep?q=channel299")


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 1000])
def test_long_documents_are_what_short_ones_are(count: int) -> None:
    """JSON that is encoded in pieces is the JSON of the whole."""
    names = [f"<{number}>" for number in range(count)]
    document = {"names": names, "members": dict.fromkeys(names, 1), "none": None, "text": "a&b"}
    assert json.loads(encode_json(document)) == document
    assert b"<" not in encode_json(document)


async def test_statistics_are_decoded_topic_by_topic() -> None:
    """The same as in one go; what makes no sense anywhere in it is an error of the node."""
    stats = {"version": "1.3.0", "health": "OK", "start_time": 7, "topics": wide(MANY)["one:4151"]}
    found = await node_stats("one:4151", json.dumps(stats).encode())
    assert isinstance(found, NodeStats)
    assert (found.version, found.start_time, len(found.topics or ())) == ("1.3.0", 7, MANY + 1)
    for body in (b"{", b"[]", b'{"topics":[{}]}', b'{"topics":[{"topic_name":1}]}'):
        with pytest.raises(UpstreamError, match="one:4151 answered no statistics"):
            await node_stats("one:4151", body)


@pytest.mark.parametrize(("count", "nbytes"), [(10 * PIECE_TOPICS, 1), (20, PIECE_BYTES // 2)])
async def test_an_answer_is_decoded_in_turns(count: int, nbytes: int) -> None:
    """Many small topics as well as few large ones."""
    topics = [topic(f"t{number}" + "x" * nbytes) for number in range(count)]
    body = json.dumps({"version": "1", "health": "OK", "start_time": 1, "topics": topics}).encode()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        found = await node_stats("n", body)
        nursery.cancel_scope.cancel()
    assert len(found.topics or ()) == count
    assert turns >= 9


@pytest.mark.parametrize("rows", [0, MAX_INLINE, MAX_INLINE + 1])
async def test_each_computation_lets_others_run(rows: int) -> None:
    """Whatever its size: many small ones in a row hold up nobody."""
    with trio.testing.assert_checkpoints():
        assert await compute(rows, lambda: 7) == 7
