"""A file of users on a whole cluster: nsqlookupd, nsqd with client certificates, tools; SIGHUP.

Real processes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from tests.processes import DaemonProcess, running_nsqd, running_nsqlookupd
from tests.secured import make_papers
from tests.soak import in_short_soak
from trionsq.client import Config, Producer, ProtocolError
from trionsq.client.errors import ClientError
from trionsq.httpget import get

TOKENS = {"node": "node-token", "shop": "shop-token", "reader": "reader-token"}


def users(*names: str) -> str:
    """The file, with these users of TOKENS and the one with a certificate."""
    rights = {
        "node": "register = true",
        "shop": 'publish = ["orders*"]',
        "reader": 'subscribe = ["*"]',
    }
    lines = ['[users.certified]\ncertificate = "client"\npublish = ["*"]']
    for name in names:
        digest = hashlib.sha256(TOKENS[name].encode()).hexdigest()
        lines.append(f'[users.{name}]\ntoken_sha256 = "{digest}"\n{rights[name]}')
    return "\n".join(lines)


async def ask(daemon: DaemonProcess, path: str, token: str = "") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://{daemon.http_address}{path}"
    answer = await get(url, headers, request_timeout_s=60.0)
    return answer.status, answer.body


async def producers(lookupd: DaemonProcess) -> int:
    status, body = await ask(lookupd, "/nodes", TOKENS["reader"])
    assert status == 200
    return len(json.loads(body)["producers"])


async def until_producers(lookupd: DaemonProcess, count: int) -> None:
    with trio.fail_after(90):
        while await producers(lookupd) != count:  # noqa: ASYNC110 - another process
            await trio.sleep(0.1)


async def run(module: str, *flags: str) -> tuple[int, str]:
    """Run a tool to its end."""
    command: Sequence[str] = [sys.executable, "-m", module, *flags]
    ended = await trio.run_process(
        command, capture_stdout=True, capture_stderr=True, check=False, stdin=subprocess.DEVNULL
    )
    return ended.returncode, (ended.stdout + ended.stderr).decode()


async def publish(config: Config, address: str, topic: str) -> str:
    """Publish one message; the error's name if that is refused."""
    try:
        async with Producer(address, config=config) as producer:
            await producer.publish(topic, b"x")
    except (ClientError, ProtocolError) as error:
        return str(error)
    return ""


@in_short_soak
async def test_a_guarded_cluster(tmp_path: Path) -> None:
    """Nodes register by a token, clients publish by a token or a certificate, tools read by one;
    SIGHUP takes rights away at once, also from those that are connected."""
    papers = make_papers(tmp_path)
    acl, token_file = tmp_path / "acl.toml", tmp_path / "node"
    acl.write_text(users(*TOKENS))
    token_file.write_text(TOKENS["node"] + "\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with running_nsqlookupd([f"--acl-file={acl}"]) as lookupd:
        at = f"--lookupd-tcp-address={lookupd.tcp_address}"
        secured = [
            *papers.nsqd_flags,
            "--tls-client-auth-policy=require-verify",
            f"--acl-file={acl}",
            f"--lookupd-token-file={token_file}",
        ]
        async with (
            running_nsqd(tmp_path / "one", [at, *secured]) as nsqd,
            running_nsqd(tmp_path / "two", [at]),  # it has no token
        ):
            await until_producers(lookupd, 1)
            tls = Config(
                tls_v1=True,
                tls_root_ca_file=papers.ca,
                tls_cert=papers.client,
                tls_key=papers.client,
                auth_secret="any",
            )
            assert await publish(tls, nsqd.tcp_address, "by.certificate") == ""
            shop = dataclasses.replace(tls, auth_secret=TOKENS["shop"])
            assert await publish(shop, nsqd.tcp_address, "orders.eu") == ""
            assert "E_UNAUTHORIZED" in await publish(shop, nsqd.tcp_address, "by.certificate")
            for path in ("/nodes", "/topics"):
                assert (await ask(lookupd, path))[0] == 401
            # Without its right the node is gone at once, and comes back with it.
            acl.write_text(
                users("reader", "shop") + '\n[users.spare]\ncertificate = "x"\nregister = true\n'
            )
            os.kill(lookupd.process.pid, signal.SIGHUP)
            await until_producers(lookupd, 0)
            acl.write_text(users(*TOKENS))
            os.kill(lookupd.process.pid, signal.SIGHUP)
            os.kill(nsqd.process.pid, signal.SIGHUP)
            await until_producers(lookupd, 1)
    assert TOKENS["node"] not in lookupd.log_tail(1000)


async def test_the_tools_have_a_token(tmp_path: Path) -> None:
    """nsq_stat by its file, nsq_tail by auth_secret: at nsqlookupd, nsqd's HTTP, and over TCP."""
    acl, token_file, reader_file = (tmp_path / name for name in ("acl.toml", "node", "reader"))
    acl.write_text(users(*TOKENS))
    token_file.write_text(TOKENS["node"])
    reader_file.write_text(TOKENS["reader"])
    (tmp_path / "one").mkdir()
    async with running_nsqlookupd([f"--acl-file={acl}"]) as lookupd:
        flags = [
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            f"--acl-file={acl}",
            f"--lookupd-token-file={token_file}",
            "--broadcast-address=127.0.0.1",
        ]
        async with running_nsqd(tmp_path / "one", flags) as nsqd:
            await until_producers(lookupd, 1)
            shop = Config(auth_secret=TOKENS["shop"])
            assert await publish(shop, nsqd.tcp_address, "orders") == ""
            assert "E_UNAUTHORIZED" in await publish(shop, nsqd.tcp_address, "invoices")
            code, text = await run(
                "trionsq.tools.nsq_tail",
                "--topic=orders",
                "--channel=c",
                "-n",
                "1",
                f"--consumer-opt=auth_secret,{TOKENS['reader']}",
                f"--lookupd-http-address={lookupd.http_address}",
            )
            assert (code, "x" in text.splitlines()) == (0, True), text
            code, text = await run(
                "trionsq.tools.nsq_stat",
                "--topic=orders",
                "--channel=c",
                "--count=1",
                "--interval=100ms",
                f"--token-file={reader_file}",
                f"--lookupd-http-address={lookupd.http_address}",
            )
            assert code == 0, text
            acl.write_text(users("node", "reader"))
            os.kill(nsqd.process.pid, signal.SIGHUP)
            with trio.fail_after(60):
                while not await publish(shop, nsqd.tcp_address, "orders"):  # noqa: ASYNC110
                    await trio.sleep(0.1)
