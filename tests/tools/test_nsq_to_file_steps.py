"""No step of nsq_to_file's tasks grows with the number of topics or batches: counted, not timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from tests.steps import counted_steps
from trionsq.client import Batch, Config
from trionsq.tools.nsq_to_file import NsqToFile, TopicTask
from trionsq.tools.nsq_to_file_options import NsqToFileOptions
from trionsq.tools.stdio import Progress


@pytest.mark.parametrize("topics", [10, 5000])
async def test_topics_are_begun_in_turns(
    topics: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Each topic has a consumer and work in a thread; nsqlookupd may know thousands of topics."""
    tool = NsqToFile(NsqToFileOptions(topic_pattern=".*", lookupd_http_address=("a:1",)), Config())
    begun: list[str] = []

    async def known() -> set[str]:
        return {f"t{number}" for number in range(topics)}

    monkeypatch.setattr(tool, "_known_topics", known)
    monkeypatch.setattr(tool, "_start_topic", lambda topic, _nursery: begun.append(topic))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tool._discover, nursery)
        with counted_steps(lambda: len(begun)) as steps:
            await trio.sleep(61)
        nursery.cancel_scope.cancel()
    assert len(begun) == topics
    assert steps.most <= 16


@pytest.mark.parametrize("batches", [10, 5000])
async def test_batches_are_finished_in_turns_and_all_of_them(batches: int, tmp_path: Path) -> None:
    """All durable batches are finished, although the tool is cancelled meanwhile."""
    options = NsqToFileOptions(topic=("t",), nsqd_tcp_address=("a:1",), output_dir=str(tmp_path))
    task = TopicTask("t", options, Config(), Progress("messages"))
    finished: list[int] = []
    one = SimpleNamespace(finish=lambda: finished.append(1))
    task._pending = [cast(Batch, one)] * batches
    with counted_steps(lambda: len(finished)) as steps, trio.CancelScope() as scope:
        scope.cancel()
        await task._finish_durable()
    assert len(finished) == batches
    assert not task._pending
    assert steps.most <= 64
