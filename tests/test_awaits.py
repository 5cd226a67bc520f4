"""The lines that a sweep records, and those that the source has, are the same ones."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.awaits import await_lines, main, recorded_lines
from tests.cancellation import CancelAt, run_repeatable


@asynccontextmanager
async def manager() -> AsyncIterator[None]:
    await trio.sleep(
        0.1,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0.1)
        yield


async def numbers() -> AsyncIterator[int]:
    for number in range(2):
        await trio.sleep(0.1)
        yield number


async def incremented(number: int) -> int:
    await trio.sleep(0.1)
    return number + 1


async def waits() -> None:
    async with (
        manager(),
    ):
        pass
    async for _ in numbers():
        pass
    assert [number async for number in numbers()]
    assert await incremented(
        await incremented(1),
    )


async def scenario(cancel_at: CancelAt) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        [cancel_at.root] = nursery.child_tasks


def test_recorded_lines_are_those_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits everywhere is recorded at each line that the tool expects, and no other."""
    monkeypatch.setattr("tests.cancellation.LINES_FILE", "unused")
    cancel_at = CancelAt(0, "parked")
    run_repeatable(scenario, cancel_at)
    recorded = {line for name, line in cancel_at.lines if name == __file__}
    first = inspect.getsourcelines(scenario)[1]
    source = inspect.getsource(sys.modules[__name__])
    assert recorded == {line for line in await_lines(source) if line < first}


def test_share_of_each_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tool counts a recorded line once, and lists the others with their text."""
    file = tmp_path / "lines"
    file.write_text("trionsq/broker/inbox.py:1\n" * 2 + "trionsq/broker/inbox.py:3\n")
    assert recorded_lines([file]) == {"trionsq/broker/inbox.py": {1, 3}}
    main([str(file), "--missing", "--in", "trionsq/broker/inbox.py"])
    *missing, folder, total = capsys.readouterr().out.splitlines()
    assert missing
    assert all("await " in row or "async " in row for row in missing)
    assert folder.split() == ["trionsq/broker", "0", "of", str(len(missing)), "0", "%"]
    assert total.split() == ["all", "0", "of", str(len(missing)), "0", "%"]
