"""`make run`: data flows, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import trio

TIMEOUT_S = 180


async def run_demo(folder: Path, *flags: str, stop_at: str) -> tuple[int, list[str]]:
    """Run it until its output matches, then send SIGINT; the exit code and the lines."""
    with trio.fail_after(TIMEOUT_S):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trionsq.local.demo", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            assert process.stdout is not None
            text = ""
            told = False
            async for chunk in process.stdout:
                text += chunk.decode()
                if not told and re.search(stop_at, text):
                    told = True
                    process.send_signal(signal.SIGINT)
            return await process.wait(), text.splitlines()
        finally:
            if process.returncode is None:
                process.kill()


async def test_data_flows_until_ctrl_c(tmp_path: Path) -> None:
    """It reports what it consumed, says what to try, and stops the cluster at SIGINT with 0."""
    flags = ["--port=0", "--lookupd-port=0", "--admin-port=0", "--nsqd=2"]
    code, lines = await run_demo(tmp_path, *flags, stop_at=r"consumed [1-9]")
    assert code == 0, lines
    for number in (1, 2):
        assert (tmp_path / f"run/nsqd-{number}/nsqd.dat").exists()
    dashboard = re.compile(r"Look at it in a browser: http://127.0.0.1:\d+")
    assert any(dashboard.fullmatch(line) for line in lines)
    assert any("curl -d 'hello'" in line for line in lines)
    assert any("nsq_tail --topic=demo --lookupd-http-address=127" in line for line in lines)
    assert not [line for line in lines if "ERROR" in line or "Traceback" in line]
    assert re.fullmatch(r"stopped; published [1-9][\d,]*, consumed [1-9][\d,]*", lines[-1])


async def test_a_busy_port(tmp_path: Path) -> None:
    """Where another program listens on the usual port, one line says what to do; exit 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = [f"--port={port}", "--lookupd-port=0", "--admin-port=0"]
        code, lines = await run_demo(tmp_path, *flags, stop_at="never")
    assert code == 1
    [line] = [line for line in lines if "FATAL" in line]
    assert f"nsqd-1: listen (127.0.0.1:{port}) failed" in line
    assert "choose other ports by --port" in line
