"""`make run`: data flows, and Ctrl-C leaves nothing behind."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import trio

from trionsq.cli import demo

TIMEOUT_S = 40


async def test_data_flows_until_ctrl_c(tmp_path: Path) -> None:
    """The demo reports what it consumed, says what to try, and stops nsqd at SIGINT with 0."""
    lines: list[str] = []
    with trio.fail_after(TIMEOUT_S):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trionsq.cli.demo"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        try:
            assert process.stdout is not None
            text = ""
            told = False
            async for chunk in process.stdout:
                text += chunk.decode()
                if not told and re.search(r"consumed [1-9]", text):
                    told = True
                    process.send_signal(signal.SIGINT)
            lines = text.splitlines()
            assert await process.wait() == 0, text
        finally:
            if process.returncode is None:
                process.kill()
    assert (tmp_path / demo.DATA_PATH / "nsqd.dat").exists()
    assert any("curl -d 'hello'" in line for line in lines)
    assert re.fullmatch(r"stopped; published [1-9][\d,]*, consumed [1-9][\d,]*", lines[-1])


def test_a_port_in_use_is_not_asked_for() -> None:
    """Where another program listens on the usual port, nsqd is given any free one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert demo.port_or_any(port) == 0
    assert demo.port_or_any(port) == port
