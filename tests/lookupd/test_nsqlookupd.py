"""The command nsqlookupd as a process: options, start errors, signals; and its tasks."""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from lookupd import cli
from lookupd.daemon import Lookupd, running_nsqlookupd
from lookupd.options import NsqlookupdOptions
from lookupd.session import MAGIC
from tests.lookupd.support import frames, identify
from tests.processes import nsqlookupd_command, split_address
from tests.processes import running_nsqlookupd as running_process
from trionsq.debug.tasks import TaskNode, task_tree
from trionsq.durations import SECOND_NS

LOCAL = NsqlookupdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
LIMIT_S = 60.0


def nsqlookupd(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*nsqlookupd_command(), *words], capture_output=True, text=True, timeout=180, check=False
    )


def test_version_is_printed_before_the_config_is_read() -> None:
    """--version answers with the line that scripts match."""
    done = nsqlookupd("--config=/nonexistent", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nsqlookupd v1.3.0 (built w/go1.19.8)\n"


def test_the_defaults_are_those_of_the_original() -> None:
    """Addresses, and the times after which a producer is hidden or shown again."""
    options = NsqlookupdOptions()
    assert (options.tcp_address, options.http_address) == ("0.0.0.0:4160", "0.0.0.0:4161")
    assert options.inactive_producer_timeout_ns == 300 * SECOND_NS
    assert options.tombstone_lifetime_ns == 45 * SECOND_NS
    assert options.log_prefix == "[nsqlookupd] "


def test_without_arguments_those_of_the_process_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but its name, in their order."""
    monkeypatch.setattr(sys, "argv", ["nsqlookupd", "--first", "--version"])
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main()
    assert "-first" in capsys.readouterr().err


def test_a_usage_error_exits_with_2() -> None:
    """A bad flag: message and usage on stderr, nothing on stdout."""
    done = nsqlookupd("--tombstone-lifetime=45")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('invalid value "45" for flag -tombstone-lifetime')
    assert "Usage of nsqlookupd:\n" in done.stderr


def test_a_start_error_is_one_fatal_line(tmp_path: Path) -> None:
    """A bad config file, or an address in use: exit 1."""
    line = r"\[nsqlookupd\] [\d/]{10} [\d:.]{15} FATAL: failed to load config file .*\n"
    done = nsqlookupd(f"--config={tmp_path}/none")
    assert done.returncode == 1
    assert re.fullmatch(line, done.stderr)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = nsqlookupd(f"--tcp-address={address}", "--http-address=127.0.0.1:0")
    assert done.returncode == 1
    assert f"FATAL: failed to instantiate nsqlookupd - listen ({address}) failed - " in done.stderr


def test_the_file_gives_what_the_command_line_does_not(tmp_path: Path) -> None:
    """Every option but version, config and verbose has its key."""
    done = nsqlookupd("--help")
    flags = set(re.findall(r"^  --([a-z-]+)", done.stdout, re.MULTILINE))
    assert flags >= {
        *("version", "config", "verbose", "log-level", "log-prefix", "tcp-address"),
        *("http-address", "broadcast-address", "inactive-producer-timeout", "tombstone-lifetime"),
    }
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text(
        'log_prefix = "[x] "\nlog_level = "INFO"\ntcp_address = "nope:nope"\n'
        'http_address = "127.0.0.1:0"\nbroadcast_address = "b"\n'
        'inactive_producer_timeout = "1m"\ntombstone_lifetime = 1000\n'
    )
    done = nsqlookupd(f"--config={config}", f"--tcp-address={tmp_path}")
    assert done.returncode == 1
    assert re.match(rf"\[x\] .* FATAL: .* listen \({tmp_path}\) failed", done.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_it_with_connections_open(number: signal.Signals) -> None:
    """Connections are closed at once, and the exit code is 0."""
    with trio.fail_after(LIMIT_S):
        async with running_process() as process:
            nsqd = await trio.open_tcp_stream(*split_address(process.tcp_address))
            idle = await trio.open_tcp_stream(*split_address(process.http_address))
            async with nsqd, idle:
                await nsqd.send_all(MAGIC + b"PING\n")
                assert frames(bytes(await nsqd.receive_some())) == [b"OK"]
                process.process.send_signal(number)
                assert await process.process.wait() == 0
                assert await nsqd.receive_some() == b""
        assert "Traceback" not in process.log_tail(300)


async def test_it_may_have_as_many_connections_as_the_system_allows() -> None:
    """The soft limit of open files is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        async with running_process() as process:
            limits = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits == (hard, hard)


async def test_the_answer_to_identify_tells_the_real_ports() -> None:
    """Also when it was asked to listen on any free ones."""
    options = replace(LOCAL, broadcast_address="here")
    async with running_nsqlookupd(options) as lookupd, await connect(lookupd) as stream:
        await stream.send_all(MAGIC + identify())
        [answer] = frames(bytes(await stream.receive_some()))
    shown = re.sub(rb'("hostname":)"[^"]*"', rb"\1_", answer).decode()
    assert shown == (
        f'{{"broadcast_address":"here","hostname":_,"http_port":{lookupd.http_port},'
        f'"tcp_port":{lookupd.tcp_port},"version":"1.3.0"}}'
    )


async def test_a_defect_costs_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes on, the log has the trace, the producer is gone."""
    async with (
        running_nsqlookupd(LOCAL) as lookupd,
        await connect(lookupd) as stream,
        await connect(lookupd) as other,
    ):
        await stream.send_all(MAGIC + identify())
        await stream.receive_some()
        with monkeypatch.context() as patch:
            patch.setattr(lookupd.registry, "register", None)
            await stream.send_all(b"REGISTER t\n")
            assert await stream.receive_some() == b""
        await trio.testing.wait_all_tasks_blocked()
        assert list(lookupd.registry.active_producers(lookupd.now_ns())) == []
        assert "TypeError" in caplog.text
        await other.send_all(MAGIC + b"PING\n")
        assert frames(bytes(await other.receive_some())) == [b"OK"]


async def test_a_connection_that_is_lost_at_once_is_closed() -> None:
    """Its peer has no address any more: it is not served, and no descriptor stays open."""
    with socket.socket() as lost:
        await Lookupd(LOCAL).serve_socket(lost)
        assert lost.fileno() == -1


async def test_each_task_has_a_name_for_its_user() -> None:
    """No task of a busy nsqlookupd is shown by the name of a function of ours."""
    async with running_nsqlookupd(LOCAL) as lookupd:
        http = await trio.open_tcp_stream("127.0.0.1", lookupd.http_port)
        async with await connect(lookupd) as stream, http:
            await stream.send_all(MAGIC)
            await http.send_all(b"GET /debug/pprof/profile?seconds=60 HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked(0.05)
            tree = await task_tree(limit=1000, stacks=False)
    names = {node.name for node in nodes(tree.root)}
    assert {f"http server 127.0.0.1:{lookupd.http_port}", "event loop lag", "http request"} <= names
    assert any(name.startswith("nsqlookupd client 127.0.0.1:") for name in names)
    assert not [name for name in names if re.match(r"(lookupd|trionsq)\.", name)]


def nodes(task: TaskNode) -> list[TaskNode]:
    """The task and all below it."""
    below = [child for nursery in task.nurseries for child in nursery.tasks]
    return [task, *(node for child in below for node in nodes(child))]


async def connect(lookupd: Lookupd) -> trio.SocketStream:
    """A connection to its TCP port."""
    return await trio.open_tcp_stream("127.0.0.1", lookupd.tcp_port)
