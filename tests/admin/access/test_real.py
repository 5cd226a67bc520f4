"""The command as a process, asked over real sockets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.processes import other_nsqadmin, running_nsqadmin

pytestmark = pytest.mark.skipif(other_nsqadmin() is not None, reason="the original has no sign-in")


def nsqadmin(*words: str, say: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "admin.cli", *words],
        input=say,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


async def test_a_user_is_added_signs_in_and_leaves_a_trace(tmp_path: Path) -> None:
    """--add-user, --users-file, the sign-in form, Basic, and --audit-file, all of it together."""
    users, audit = tmp_path / "users", tmp_path / "audit"
    done = nsqadmin("--add-user=ann:operator", f"--users-file={users}", say="open sesame\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    flags = ["--nsqd-http-address=127.0.0.1:1", f"--users-file={users}", f"--audit-file={audit}"]
    async with running_nsqadmin([*flags, "--log-level=debug"]) as admin:
        base = f"http://{admin.http_address}"
        async with httpx2.AsyncClient(base_url=base) as client:
            body = json.dumps({"topic": "t"})
            assert (await client.post("/api/topics", content=body)).status_code == 401
            auth = ("ann", "open sesame")
            answer = await client.post("/api/topics", content=body, auth=auth)
            assert answer.status_code == 200
            assert (await client.get("/config/log_level", auth=auth)).status_code == 403
            form = {"name": "ann", "password": "open sesame", "next": "/nodes"}
            answer = await client.post("/sign-in", data=form, headers={"Origin": "http://evil"})
            assert answer.status_code == 403
            answer = await client.post("/sign-in", data=form, headers={"Origin": base})
            assert (answer.status_code, answer.headers["location"]) == (303, "/nodes")
            # The cookie alone does nothing.
            assert (await client.post("/api/topics", content=body)).status_code == 403
    said = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(one["user"], one.get("action"), one["status"]) for one in said] == [
        ("ann", "create_topic", 200),
        ("ann", "sign_in", 303),
        ("ann", None, 403),
    ]
    log = "\n".join(admin.log)
    assert f"INFO: ACCESS: users sign in with a password (--users-file={users})" in log
    assert "sesame" not in log + audit.read_text()


async def test_the_password_of_a_run_is_logged_and_right() -> None:
    """Without a users file, on an address that others reach, the log says how to get in."""
    flags = ["--nsqd-http-address=127.0.0.1:1", "--http-address=0.0.0.0:0"]
    async with running_nsqadmin(flags) as admin:
        line = next(line for line in admin.log if "no users file: sign in as admin" in line)
        password = re.fullmatch(r".*, password (\S+)", line)
        assert password is not None
        address = "127.0.0.1:" + admin.http_address.rpartition(":")[2]
        async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/config/log_level")).status_code == 401
            auth = ("admin", password[1])
            assert (await client.get("/config/log_level", auth=auth)).status_code == 200


def test_a_start_that_would_be_open_by_mistake_does_not_happen(tmp_path: Path) -> None:
    """A users file that is not there: one FATAL line, exit 1."""
    done = nsqadmin(
        "--nsqd-http-address=127.0.0.1:1",
        "--http-address=127.0.0.1:0",
        f"--users-file={tmp_path}/none",
    )
    assert done.returncode == 1
    assert "FATAL: failed to instantiate nsqadmin - failed to read --users-file" in done.stderr
