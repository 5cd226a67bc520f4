"""The programs of an installation, tried as a user does: each is started and asked over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.processes import (
    OTHER_ADMIN_VARIABLE,
    OTHER_BINARY_VARIABLE,
    OTHER_LOOKUPD_VARIABLE,
    DaemonProcess,
    NsqdFailedError,
    running_nsqadmin,
    running_nsqd,
    running_nsqlookupd,
)

__all__ = ["InstallError", "try_programs"]

LIMIT_S = 60.0
TOPIC = "greetings"
BODY = b"hello from the wheel"


class InstallError(Exception):
    """An installed program does not do what it should. The text says which, and what it said."""


_EXPECTED = (
    InstallError,
    NsqdFailedError,
    OSError,
    subprocess.SubprocessError,
    trio.TooSlowError,
)


def try_programs(programs: Path, folder: Path) -> None:
    """Start nsqlookupd, nsqd and nsqadmin, ask each over HTTP, and pass on one message.

    Args:
        programs: where the installation has them (``bin`` of its environment).
        folder: nsqd's data is put there.

    Raises:
        InstallError: a program does not start, answers wrongly, or warns of something.
    """
    with _programs_of(programs):
        try:
            trio.run(_try_programs, programs, folder)
        except BaseExceptionGroup as group:
            expected, rest = group.split(_EXPECTED)
            if expected is None or rest is not None:
                raise
            raise InstallError("\n".join(map(_told, _leaves(expected)))) from group


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _told(error: BaseException) -> str:
    said: bytes = getattr(error, "stderr", None) or b""
    return f"{error}\n{said.decode(errors='replace')}".rstrip()


@contextmanager
def _programs_of(programs: Path) -> Iterator[None]:
    """Have `tests.processes` start these. No path of ours reaches them, and they warn loudly."""
    changed = {
        OTHER_BINARY_VARIABLE: str(programs / "nsqd"),
        OTHER_LOOKUPD_VARIABLE: str(programs / "nsqlookupd"),
        OTHER_ADMIN_VARIABLE: str(programs / "nsqadmin"),
        "PYTHONWARNINGS": "default",
        "PYTHONPATH": "",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


async def _try_programs(programs: Path, folder: Path) -> None:
    async with running_nsqlookupd() as lookupd:
        known = f"--lookupd-tcp-address={lookupd.tcp_address}"
        async with (
            running_nsqd(folder, [known]) as nsqd,
            running_nsqadmin([f"--lookupd-http-address={lookupd.http_address}"]) as admin,
        ):
            await _ask(lookupd, "/ping", b"OK")
            await _ask(nsqd, "/ping", b"OK")
            await _ask(admin, "/ping", b"OK")
            flags = [f"--topic={TOPIC}", f"--nsqd-tcp-address={nsqd.tcp_address}"]
            await _run([str(programs / "to_nsq"), *flags], BODY + b"\n")
            tail = [str(programs / "nsq_tail"), *flags, "--channel=check", "-n", "1"]
            said = await _run(tail, b"")
            if BODY not in said:
                raise InstallError(f"nsq_tail: {said!r} instead of {BODY!r}")
            told = json.loads(await _ask(nsqd, "/stats?format=json", b"{"))
            (topic,) = told["topics"]
            if (topic["topic_name"], topic["message_count"]) != (TOPIC, 1):
                raise InstallError(f"nsqd: /stats has {topic}")
            await _ask(nsqd, "/metrics", b"nsqd_")
            await _ask(lookupd, f"/lookup?topic={TOPIC}", b'"producers":[{')
            await _ask(admin, "/api/topics", f'"{TOPIC}"'.encode())
            await _ask(admin, f"/topics/{TOPIC}", b"</html>")
            await _run([str(programs / "trionsq"), "--help"], b"")
            for name, daemon in (("nsqlookupd", lookupd), ("nsqd", nsqd), ("nsqadmin", admin)):
                if warnings := [line for line in daemon.log if "Warning" in line]:
                    raise InstallError(f"{name}: {warnings}")


async def _ask(daemon: DaemonProcess, path: str, expected: bytes) -> bytes:
    """The answer to a GET, which has to be 200 and to contain something."""

    def ask() -> bytes:
        url = f"http://{daemon.http_address}{path}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as response:
            return bytes(response.read())

    answer = await trio.to_thread.run_sync(ask)
    if expected not in answer:
        raise InstallError(f"{path}: no {expected!r} in {answer[:500]!r}")
    return answer


async def _run(command: list[str], stdin: bytes) -> bytes:
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command, stdin=stdin, capture_stdout=True, capture_stderr=True
        )
    return bytes(done.stdout)
