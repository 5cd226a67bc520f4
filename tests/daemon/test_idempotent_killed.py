"""Idempotent publishes to an nsqd that is killed, over connections that break. Real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.repeats import KINDS, publish_through_kills
from tests.soak import by_level, smoke

COUNT = by_level(test=1_000, short=8_000, full=100_000)
KILLS = by_level(test=1, short=4, full=20)


@pytest.mark.parametrize("kind", smoke({name: name for name in KINDS}, "Producer"))
async def test_each_message_is_stored_once(kind: str, tmp_path: Path) -> None:
    """Whatever gets lost: nsqd by kill -9, connections, answers. Each publish is answered at last,
    and at the end each message is there exactly once."""
    account = await publish_through_kills(kind, COUNT, KILLS, tmp_path)
    assert account.answered == COUNT
    assert account.sent > COUNT
    assert len(account.found) == COUNT
    assert set(account.found.values()) == {1}
