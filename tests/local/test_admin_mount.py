"""`nsqd --admin`: nsqadmin's pages below /admin of a real nsqd."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from tests.processes import NsqdProcess, other_binary, running_nsqd
from tests.soak import in_short_soak
from tests.transports.ends import client_context, write_ca, write_pair
from trionsq.broker.options import NsqdOptions
from trionsq.local import mount
from trionsq.local.mount import Mount
from trionsq.local.nsqd_daemon import running_nsqd as nsqd_inside

pytestmark = pytest.mark.skipif(other_binary() is not None, reason="the original has no --admin")

LIMIT_S = 180.0


@asynccontextmanager
async def nsqd(
    folder: Path, *flags: str, https: bool = False
) -> AsyncIterator[tuple[NsqdProcess, httpx2.AsyncClient]]:
    """An nsqd with the dashboard, and a client of its HTTP port (with ``https``: of that)."""
    with trio.fail_after(LIMIT_S):
        async with running_nsqd(folder, ["--admin", *flags], https=https) as process:
            address = process.https_address if https else process.http_address
            base = f"{'https' if https else 'http'}://127.0.0.1:{address.rpartition(':')[2]}"
            verify: Any = client_context() if https else True
            async with httpx2.AsyncClient(base_url=base, verify=verify) as client:
                yield process, client


def password_of(process: NsqdProcess) -> str:
    """The one in the log."""
    [found] = [re.fullmatch(r".*sign in as admin, password (\S+)", line) for line in process.log
               if "sign in as admin" in line]  # fmt: skip
    assert found is not None
    return found[1]


async def test_pages_and_api_are_about_this_nsqd(tmp_path: Path) -> None:
    """Pages, JSON API and actions work at /admin; the nsqd's own paths are what they were."""
    async with nsqd(tmp_path) as (process, client):
        assert (await client.post("/pub?topic=orders", content=b"one")).text == "OK"
        topic = (await client.get("/admin/api/topics/orders")).json()
        assert (topic["message_count"], topic["message"]) == (1, "")
        [node] = (await client.get("/admin/api/nodes")).json()["nodes"]
        assert f"{node['broadcast_address']}:{node['http_port']}" == process.http_address
        page = await client.get("/admin/topics/orders")
        assert page.headers["content-type"].startswith("text/html")
        assert "orders" in page.text
        assert not re.search(r'(href|src|action)="/(?!admin)', page.text)
        body = '{"action": "pause"}'
        answer = await client.post("/admin/api/topics/orders", content=body)
        assert (answer.status_code, answer.json()["message"]) == (200, "")
        stats = (await client.get("/stats?format=json")).json()
        assert [(t["topic_name"], t["paused"]) for t in stats["topics"]] == [("orders", True)]
        assert (await client.get("/adminx")).json() == {"message": "NOT_FOUND"}
        assert (await client.get("/ping")).text == "OK"
        assert "nsqadmin_upstream_failures_total" in (await client.get("/admin/metrics")).text


async def test_what_is_published_on_a_page_is_peeked_at_on_another(tmp_path: Path) -> None:
    """Bodies of any length that a page takes get to the nsqd as they are, and back."""
    async with nsqd(tmp_path) as (process, client):
        page = (await client.get("/admin/publish?topic=orders")).text
        token = re.search(r'name="csrf_token" value="([^"]+)"', page)
        assert token is not None
        for body in ("first <b>", "x" * 500_000):
            form = {"csrf_token": token[1], "topic": "orders", "node": process.http_address}
            answer = await client.post(
                "/admin/do/publish",
                data={**form, "format": "text", "body": body},
                headers={"Origin": str(client.base_url).rstrip("/")},
            )
            assert answer.status_code == 303, answer.text
        stats = (await client.get("/stats?format=json&topic=orders")).json()
        assert stats["topics"][0]["message_bytes"] == 9 + 500_000
        shown = (await client.get("/admin/peek?topic=orders")).text
        assert "first &lt;b&gt;" in shown


async def test_live_pages_end_with_the_nsqd(tmp_path: Path) -> None:
    """A stream of events tells of the node; SIGTERM ends it, and nsqd ends with 0 as ever."""
    async with nsqd(tmp_path) as (process, client):
        async with client.stream("GET", "/admin/events") as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if line.startswith("data:"):
                    assert '"nodes_up":1' in line
                    break
            process.process.terminate()
            async for _ in lines:
                pass
        assert await process.process.wait() == 0
        assert "Traceback" not in "\n".join(process.log)


async def test_who_comes_from_elsewhere_signs_in(tmp_path: Path) -> None:
    """On an address that others reach there is a password, in the log; nsqd's API needs none."""
    async with nsqd(tmp_path, "--http-address=0.0.0.0:0") as (process, client):
        assert (await client.get("/ping")).text == "OK"
        assert (await client.get("/admin/api/topics")).status_code == 401
        answer = await client.get("/admin/topics", headers={"Accept": "text/html"})
        assert answer.headers["location"] == "/admin/sign-in?next=/admin/topics"
        form = {"name": "admin", "password": password_of(process), "next": "/admin/topics"}
        origin = {"Origin": str(client.base_url).rstrip("/")}
        answer = await client.post("/admin/sign-in", data=form, headers=origin)
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin/topics")
        port = process.http_address.rpartition(":")[2]
        cookie = answer.headers["set-cookie"]
        assert re.match(rf"nsqadmin_session_{port}=\S+; HttpOnly; Path=/admin;", cookie)
        assert (await client.get("/admin/topics")).status_code == 200


async def test_users_of_a_file(tmp_path: Path) -> None:
    """--admin-users-file: who stands there signs in, also on loopback."""
    users = tmp_path / "users"
    await trio.run_process(
        [sys.executable, "-m", "admin.cli", "--add-user=ann:viewer", f"--users-file={users}"],
        stdin=b"open sesame\n",
    )
    async with nsqd(tmp_path, f"--admin-users-file={users}") as (_, client):
        assert (await client.get("/admin/api/topics")).status_code == 401
        ann = ("ann", "open sesame")
        assert (await client.get("/admin/api/topics", auth=ann)).status_code == 200
        body = '{"topic": "t"}'
        answer = await client.post("/admin/api/topics", content=body, auth=ann)
        assert answer.status_code == 403


async def test_where_tls_is_required(tmp_path: Path) -> None:
    """HTTP refuses the dashboard as all else, HTTPS shows it, with a cookie for HTTPS only."""
    cert, key = write_pair(tmp_path)
    flags = [f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-root-ca-file={write_ca(tmp_path)}"]
    secured = [*flags, "--tls-required=true", "--admin-access=password"]
    async with nsqd(tmp_path, *secured, https=True) as (process, client):
        async with httpx2.AsyncClient(base_url=f"http://{process.http_address}") as plain:
            for path in ("/admin", "/admin/api/topics"):
                answer = await plain.get(path)
                assert answer.status_code == 403
                assert answer.json()["message"] == "TLS_REQUIRED"
        auth = ("admin", password_of(process))
        await client.post("/topic/create?topic=orders")
        answer = await client.get("/admin/api/topics/orders", auth=auth)
        assert answer.json()["message"] == ""
        form = {"name": auth[0], "password": auth[1]}
        origin = {"Origin": str(client.base_url).rstrip("/")}
        answer = await client.post("/admin/sign-in", data=form, headers=origin)
        assert "; Secure" in answer.headers["set-cookie"]


@in_short_soak
async def test_http_and_https_at_once(tmp_path: Path) -> None:
    """With a certificate and no requirement, both show it."""
    cert, key = write_pair(tmp_path)
    flags = [f"--tls-cert={cert}", f"--tls-key={key}"]
    async with nsqd(tmp_path, *flags, https=True) as (process, client):
        assert (await client.get("/admin/api/nodes")).status_code == 200
        async with httpx2.AsyncClient(base_url=f"http://{process.http_address}") as plain:
            assert (await plain.get("/admin/api/nodes")).status_code == 200


async def test_without_it_there_is_nothing(tmp_path: Path) -> None:
    """No path, and none of its modules is loaded."""
    async with running_nsqd(tmp_path) as process, httpx2.AsyncClient() as client:
        answer = await client.get(f"http://{process.http_address}/admin")
        assert answer.json() == {"message": "NOT_FOUND"}
    code = "import sys, trionsq.local.nsqd; print([m for m in sys.modules if m[:5] == 'admin'])"
    done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--http-address="], "--admin needs an --http-address that is host:port"),
        (["--http-address=http.sock"], "--admin needs an --http-address that is host:port"),
        (
            ["--tls-required", "--tls-cert=x", "--tls-key=x", "--https-address="],
            "--admin with --tls-required needs an --https-address",
        ),
        (
            ["--admin-users-file=x", "--admin-access=none"],
            "--admin-users-file has no meaning with --admin-access=none",
        ),
        (
            ["--admin-users-file=missing"],
            "--admin: failed to read --users-file (missing) - No such file or directory",
        ),
    ],
)
def test_what_cannot_be_is_one_line(flags: list[str], reason: str, tmp_path: Path) -> None:
    """At start, exit 1; nothing has been touched."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trionsq.local.nsqd", "--admin"),
            *("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *flags),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"FATAL: failed to instantiate nsqd - {reason}")
    assert "Traceback" not in done.stderr


async def test_its_defects_are_not_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task of the dashboard that fails is logged; the nsqd goes on."""
    failed = trio.Event()

    class Failing(Mount):
        async def run(self, task: object) -> None:
            async def fail() -> None:
                failed.set()
                raise RuntimeError("broken")

            await super().run(fail)

    monkeypatch.setattr(mount, "Mount", Failing)
    options = NsqdOptions(
        admin=True,
        data_path=str(tmp_path),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
    )
    with trio.fail_after(LIMIT_S):
        async with nsqd_inside(options) as broker, httpx2.AsyncClient() as client:
            await failed.wait()
            base = f"http://127.0.0.1:{broker.ports.http}"
            assert (await client.post(f"{base}/pub?topic=t", content=b"x")).text == "OK"
            assert (await client.get(f"{base}/admin/api/topics/t")).status_code == 200
    assert "a task of the dashboard failed" in caplog.text
