"""Bodies of /mpub with very many messages: read in turns, both ways."""

from __future__ import annotations

from struct import pack

import pytest
import trio

from tests.http.conftest import StartBroker
from trionsq.broker.chores import in_turns
from trionsq.broker.options import NsqdOptions
from trionsq.http.publish import PublishRules
from trionsq.wire.bodies import Bodies

COUNTS = [10, 200_000]
# Not all of one size: those are read in one go.
LINES = {count: b"a\nbc\n" * (count // 2) for count in COUNTS}
COUNTED = {count: pack(">i", count) + b"\0\0\0\x01a\0\0\0\x02bc" * (count // 2) for count in COUNTS}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("binary", [b"0", b"1"])
async def test_a_step_reads_few_messages(
    start_broker: StartBroker, count: int, binary: bytes
) -> None:
    """The steps grow with the messages, what one of them reads does not."""
    rules = PublishRules(await start_broker(NsqdOptions()))
    body = LINES[count] if binary == b"0" else COUNTED[count]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        bodies: Bodies | None = await in_turns(rules.messages({b"binary": binary}, body))
        nursery.cancel_scope.cancel()
    assert bodies is not None
    assert bodies.count == count
    assert list(bodies.slice(0, 4)) == [b"a", b"bc"] * 2
    assert list(bodies.slice(count - 2, count)) == [b"a", b"bc"]
    assert count / (turns + 1) <= 110_000
