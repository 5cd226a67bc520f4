"""The original's programs, where somebody has them: in PATH, or in the folder ``ORIGINAL``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from trionsq import httpget

__all__ = [
    "OriginalLookupd",
    "binary",
    "found_in",
    "needs_original",
    "original_nsqlookupd",
    "request",
    "until",
]

PROGRAMS = ("nsqd", "nsqlookupd", "nsqadmin")
PATIENCE_S = 10.0
_LISTENING = re.compile(rb"(TCP|HTTP): listening on (\S+)")


def found_in(folder: str, path: str | None) -> dict[str, str]:
    """The path of each of the original's programs, by name.

    Args:
        folder: where they are; "" if nobody said so.
        path: as the variable PATH. There all of them must be found, else none is taken. Scripts are
            passed over: those are ours, of a virtual environment.

    Raises:
        pytest.UsageError: one of them is not in ``folder``.
    """
    if folder:
        named = {name: Path(folder, name).resolve() for name in PROGRAMS}
        if missing := [str(file) for file in named.values() if not file.is_file()]:
            raise pytest.UsageError(f"ORIGINAL={folder} lacks {', '.join(missing)}")
        return {name: str(file) for name, file in named.items()}
    found: dict[str, str] = {}
    for name in PROGRAMS:
        for place in (path or "").split(os.pathsep):
            program = shutil.which(name, path=place)
            if program and not _is_script(program):
                found.setdefault(name, str(Path(program).resolve()))
    return found if len(found) == len(PROGRAMS) else {}


def _is_script(program: str) -> bool:
    with open(program, "rb") as file:
        return file.read(2) == b"#!"


_FOUND: Final = found_in(os.environ.get("ORIGINAL", ""), os.environ.get("PATH"))

needs_original = pytest.mark.skipif(
    not _FOUND,
    reason="the original's nsqd, nsqlookupd and nsqadmin are not in PATH: ORIGINAL=<their folder>",
)


def binary(name: str) -> str:
    """The path of one of its programs."""
    return _FOUND[name]


@dataclass(frozen=True, slots=True)
class OriginalLookupd:
    """A running nsqlookupd: where it listens."""

    tcp_address: str
    http_address: str

    async def channels(self, topic: str) -> list[str]:
        """Those that it knows."""
        answer = await request(f"http://{self.http_address}/channels?topic={topic}")
        return sorted(answer["channels"])

    async def producers(self, topic: str) -> list[int]:
        """The TCP ports of the nsqds that have the topic, sorted; none if it does not know it."""
        try:
            answer = await request(f"http://{self.http_address}/lookup?topic={topic}")
        except KeyError:
            return []
        return sorted(producer["tcp_port"] for producer in answer["producers"])


async def request(url: str) -> Any:
    """What a GET says; raises KeyError for 404."""
    answer = await httpget.get(url, {"Accept": "application/vnd.nsq; version=1.0"})
    if answer.status == 404:
        raise KeyError(url)
    assert answer.status == 200, answer
    return json.loads(answer.body)


async def until(what: Callable[[], Awaitable[object]], expected: object) -> None:
    """Ask again and again until that is the answer."""
    got: object = None
    with trio.move_on_after(PATIENCE_S):
        while (got := await what()) != expected:  # noqa: ASYNC110 - it is another process's
            await trio.sleep(0.05)
    assert got == expected


@asynccontextmanager
async def original_nsqlookupd(
    tcp_address: str = "127.0.0.1:0", http_address: str = "127.0.0.1:0"
) -> AsyncIterator[OriginalLookupd]:
    """The original's nsqlookupd, killed when left: it unregisters nobody then."""
    process = await trio.lowlevel.open_process(
        [
            binary("nsqlookupd"),
            f"--tcp-address={tcp_address}",
            f"--http-address={http_address}",
            "--broadcast-address=127.0.0.1",
        ],
        stderr=subprocess.PIPE,
    )
    stderr = process.stderr
    assert stderr is not None
    found: dict[bytes, str] = {}
    log = b""
    async with trio.open_nursery() as nursery:
        try:
            with trio.fail_after(PATIENCE_S):
                while len(found) < 2:
                    data = await stderr.receive_some()
                    assert data, log
                    log += data
                    found = {kind: where.decode() for kind, where in _LISTENING.findall(log)}
            nursery.start_soon(_drain, stderr)
            yield OriginalLookupd(found[b"TCP"], found[b"HTTP"])
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
            nursery.cancel_scope.cancel()


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass
