"""The wall clock jumps while nsqlookupd runs: ages and tombstones go by the monotonic clock."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock

from lookupd.daemon import Lookupd
from lookupd.options import NsqlookupdOptions
from lookupd.session import MAGIC, Session
from tests.lookupd.support import IDENTITY, found, identify

HOUR_S = 3600.0


@pytest.mark.parametrize("jump_s", [-HOUR_S, -0.01, 0.01, HOUR_S])
async def test_ages_do_not_see_the_wall_clock(
    jump_s: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer is hidden after --inactive-producer-timeout (5 minutes) without a PING, and shown
    again 45 s after a tombstone: neither earlier nor later, however the clock was set."""
    lookupd = Lookupd(NsqlookupdOptions())
    registry = lookupd.registry
    session = Session(registry, "127.0.0.1:50001", IDENTITY)
    session.receive(MAGIC + identify() + b"REGISTER t c\n", lookupd.now_ns())

    def count() -> int:
        return len(found(registry.lookup("t", lookupd.now_ns())))

    list(registry.tombstone("t", "10.0.0.1:4151", lookupd.now_ns()))
    plain = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: plain() + int(jump_s * 1e9))
    await trio.sleep(44)
    assert count() == 0
    await trio.sleep(2)
    assert count() == 1
    await trio.sleep(253)
    assert count() == 1
    await trio.sleep(2)
    assert count() == 0
    session.receive(b"PING\n", lookupd.now_ns())
    assert count() == 1
