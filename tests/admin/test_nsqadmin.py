"""The command nsqadmin as a process: options, start errors, signals; and its tasks."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import trio

from admin import cli
from admin.app import wanted_coding
from admin.cli import main
from admin.options import NsqadminOptions, OptionsError, validated
from tests.admin.nodes import ask, fake_node, nsqadmin
from tests.golden.http_exchange import exchange_http
from tests.golden.sockets import SocketConnection
from tests.golden.transcripts import Request
from tests.processes import running_nsqadmin as running_process
from trionsq.debug.tasks import TaskNode, task_tree

NODE = "--nsqd-http-address=127.0.0.1:1"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "admin.cli", "--http-address=127.0.0.1:0", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_version_is_printed_before_the_config_is_read() -> None:
    """--version answers with the line that scripts match."""
    done = run("--config=/nonexistent", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nsqadmin v1.3.0 (built w/go1.19.8)\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        (
            [NODE, "--lookupd-http-address=127.0.0.1:1"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            [NODE, "--http-client-tls-cert=x"],
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            [NODE, "--http-client-tls-key=x"],
            "--http-client-tls-cert must be specified with --http-client-tls-key",
        ),
        (
            ["--nsqd-http-address=nowhere"],
            r"failed to resolve --nsqd-http-address \(nowhere\) - .+",
        ),
        (
            ["--lookupd-http-address=x.invalid:1"],
            r"failed to resolve --lookupd-http-address \(x.invalid:1\) - .+",
        ),
        (
            [NODE, "--allow-config-from-cidr=127.0.0.1"],
            r"failed to parse --allow-config-from-cidr \(127.0.0.1\) - .+",
        ),
        ([NODE, "--graphite-url=ftp://x"], "failed to parse --graphite-url - .+"),
        ([NODE, "--http-client-max-requests=0"], "--http-client-max-requests must be at least 1"),
        ([NODE, "--http-address=256.0.0.1:1"], r"listen \(256.0.0.1:1\) failed - .+"),
    ],
)
def test_a_start_error_is_one_fatal_line(
    words: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The original's words; exit code 1."""
    # That of the tests stays.
    monkeypatch.setattr(cli, "prepare_process", lambda: None)
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["--http-address=127.0.0.1:0", *words])
    line = r"\[nsqadmin\] [\d/]{10} [\d:.]{15} FATAL: failed to instantiate nsqadmin - "
    said = capsys.readouterr().err
    assert re.fullmatch(line + reason, said.splitlines()[-1]), said
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_it_with_0(number: signal.Signals) -> None:
    """Also while a connection is open."""
    async with running_process([NODE]) as admin:
        host, port = admin.http_address.split(":")
        async with await trio.open_tcp_stream(host, int(port)):
            admin.process.send_signal(number)
            with trio.fail_after(60):
                assert await admin.process.wait() == 0


@pytest.mark.parametrize(
    ("given", "right"),
    [("", "/"), ("/", "/"), ("admin", "/admin"), ("/a//b/", "/a/b"), ("a/../b", "/b")],
)
def test_the_base_path_is_cleaned(given: str, right: str) -> None:
    """It begins with a slash and ends without one."""
    options = NsqadminOptions(base_path=given, nsqd_http_address=("127.0.0.1:1",))
    assert validated(options).base_path == right


def test_the_network_of_config_may_be_of_ipv6() -> None:
    """And need not begin at a network's first address."""
    options = NsqadminOptions(allow_config_from_cidr="fe80::1/64", nsqd_http_address=("a:1",))
    validated(options)
    with pytest.raises(OptionsError):
        validated(NsqadminOptions(allow_config_from_cidr="x/8", nsqd_http_address=("a:1",)))


@pytest.mark.parametrize(("network", "status"), [("127.0.0.1/8", 400), ("", 200)])
async def test_a_unix_socket_has_no_address(network: str, status: int, tmp_path: Path) -> None:
    """/config is refused there unless it is open to all; the rest is answered."""
    path = str(tmp_path / "socket")
    options = {"http_address": path, "nsqd_http_address": ("127.0.0.1:1",)}
    async with nsqadmin(**options, allow_config_from_cidr=network):
        for asked, expected in (("/ping", 200), ("/config/log_level", status)):
            stream = await trio.open_unix_socket(path)
            request = Request("GET", asked, {}, b"")
            assert (await exchange_http(SocketConnection(stream), request)).status == expected


async def test_answers_are_compressed_as_asked_for() -> None:
    """gzip and raw deflate, of short and long answers; not what is refused by q=0."""
    topics = [f"topic_{number}" for number in range(20_000)]
    document = json.dumps({"topics": topics}).encode()
    async with (
        fake_node(lambda asked: (200, document)) as node,
        nsqadmin(lookupd_http_address=(node.address,)) as dashboard,
    ):
        plain = await ask(dashboard, "GET", "/api/topics")
        zipped = await ask(dashboard, "GET", "/api/topics", Accept_Encoding="br, gzip")
        deflated = await ask(dashboard, "GET", "/api/topics", Accept_Encoding="deflate, gzip")
        assert json.loads(plain.body)["topics"] == sorted(topics)
        assert gzip.decompress(zipped.body) == plain.body
        assert zlib.decompress(deflated.body, -zlib.MAX_WBITS) == plain.body
        assert len(zipped.body) < len(plain.body) / 4


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("", ""),
        ("br", ""),
        ("GZIP;q=0.5", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip; q=0.000", ""),
        ("*", ""),
    ],
)
def test_the_first_coding_that_is_named(header: str, coding: str) -> None:
    """Of those that there are."""
    assert wanted_coding(header) == coding


@pytest.mark.parametrize(
    "path",
    [
        "/static/../secret.js",
        "/static/%2e%2e/secret.js",
        "/static/..%2fsecret.js",
        "/static/in/..%2f..%2fsecret.js",
        "/fonts/..%2f..%2fsecret.js",
        "/static/.hidden.js",
        "/static/in/.hidden.js",
        "/static/shown.js%00",
        "/static/in",
        "/static/unknown.type",
    ],
)
async def test_static_files_stay_in_their_folder(path: str, tmp_path: Path) -> None:
    """Nothing but files of a known type in the folder, whatever the path."""
    folder = trio.Path(tmp_path) / "static"
    await (folder / "in").mkdir(parents=True)
    names = ["../secret.js", ".hidden.js", "in/.hidden.js", "in/shown.js", "unknown.type"]
    for name in names:
        await (folder / name).write_text("secret")
    options = {"dev_static_dir": str(folder), "nsqd_http_address": ("127.0.0.1:1",)}
    async with nsqadmin(**options) as dashboard:
        shown = await ask(dashboard, "GET", "/static/in/shown.js")
        assert (shown.status, shown.body) == (200, b"secret")
        answer = await ask(dashboard, "GET", path)
        assert answer.status in (301, 404)
        assert b"secret" not in answer.body.replace(b"secret.js", b"")


async def test_each_task_has_a_name_for_its_user() -> None:
    """No task of a busy nsqadmin is shown by the name of a function of ours."""
    async with fake_node(lambda asked: None) as node:
        url = f"http://{node.address}/"
        options = {"lookupd_http_address": (node.address,), "notification_http_endpoint": url}
        async with nsqadmin(**options) as dashboard, trio.open_nursery() as nursery:
            nursery.start_soon(ask, dashboard, "GET", "/api/topics?inactive=true")
            while not node.asked:  # noqa: ASYNC110 - it is another task's
                await trio.sleep(0.01)
            tree = await task_tree(limit=1000, stacks=False)
            nursery.cancel_scope.cancel()
    names = {task.name for task in nodes(tree.root)}
    expected = {"nsqadmin notifications", "nsqadmin poller", "event loop lag", "http request"}
    assert expected <= names
    assert f"nsqadmin request to {node.address}" in names
    assert not [name for name in names if re.match(r"(admin|trionsq)\.", name)]


def nodes(task: TaskNode) -> list[TaskNode]:
    """The task and all below it."""
    below = [child for nursery in task.nurseries for child in nursery.tasks]
    return [task, *(node for child in below for node in nodes(child))]
