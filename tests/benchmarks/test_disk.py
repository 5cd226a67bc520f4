"""The disk rows measure a disk, on data folders that are fresh, and fail where there is none."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import folders
from benchmarks.build import Programs, build
from benchmarks.checks import check_on_disk
from benchmarks.disk import free_port
from benchmarks.generator import SLOW, TOPIC, Bench, MeasureError, run_load
from benchmarks.measure import run_row
from benchmarks.report import Result, table
from benchmarks.rows import ROWS, Metric, Row
from benchmarks.servers import FLOOR, OURS, Kinds, ServerError, TopicStats, kinds
from tests.processes import nsqd_command
from tests.soak import smoke

DISK_ROWS = {row.name: row for row in ROWS if row.name.startswith("disk-")}
# Says where it listens, on nothing; ends by SIGTERM with $END, or at once without one.
PRETENDER = """#!/bin/sh
trap 'exit %d' TERM
echo "$@" > "%s/arguments"
for each in "$@"; do case $each in --data-path=*) ls "${each#*=}" > "%s/found"; esac; done
echo "TCP: listening on 127.0.0.1:1" >&2
echo "HTTP: listening on 127.0.0.1:1" >&2
while :; do sleep 0.01; done
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Generator and floor, compiled anew."""
    return build(tmp_path_factory.mktemp("build"))


def _pretender(folder: Path, exit_code: int) -> Kinds:
    program = folder / "pretender"
    program.write_text(PRETENDER % (exit_code, folder, folder))
    program.chmod(0o755)
    (folder / "data").mkdir()
    return Kinds({OURS: (str(program),)}, folder / "data")


@pytest.mark.parametrize("row", smoke(DISK_ROWS, "disk-read", in_short=("disk-through",)))
def test_each_disk_row_measures_an_nsqd(programs: Programs, row: Row, tmp_path: Path) -> None:
    """Every disk row runs against a real nsqd, adds up, yields its figures, keeps the backlog."""
    servers = Kinds({OURS: nsqd_command()}, tmp_path)
    bench = Bench(programs.load, servers, quick=True)
    backlog = bench.backlog(row) if row.backlog else tmp_path
    before = {path.name: path.read_bytes() for path in backlog.iterdir()}
    run = run_row(bench, row, OURS, 10_000)
    assert all(metric.of(run) >= 0 for metric in row.metrics)
    assert {path.name: path.read_bytes() for path in backlog.iterdir()} == before
    left = [path.name for path in tmp_path.iterdir()]
    assert left == (["backlog-100000"] if row.backlog else [])


def _records(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at < len(data):
        nbytes, _, attempts, name = struct.unpack_from(">iqH16s", data, at)
        yield name, attempts, data[at + 30 : at + 4 + nbytes]
        at += 4 + nbytes


def test_a_backlog_is_what_nsqd_leaves_on_disk(programs: Programs, tmp_path: Path) -> None:
    """nsqd.dat names the channel, the meta file counts, the records are whole and distinct."""
    options: dict[str, int | str] = {"topic": TOPIC, "channel": SLOW, "messages": 500}
    options |= {"size-max": 300}
    run_load(programs.load, "backlog", {**options, "data-path": str(tmp_path)})
    [topic] = json.loads((tmp_path / "nsqd.dat").read_text())["topics"]
    assert (topic["name"], [each["name"] for each in topic["channels"]]) == (TOPIC, [SLOW])
    stem = f"{TOPIC}:{SLOW}.diskqueue"
    assert (tmp_path / f"{stem}.meta.dat").read_text() == "500\n0,0\n1,0\n"
    records = list(_records((tmp_path / f"{stem}.000000.dat").read_bytes()))
    assert [int.from_bytes(body[:8], "little") for _, _, body in records] == list(range(500))
    assert len({name for name, _, _ in records}) == 500
    assert {attempts for _, attempts, _ in records} == {0}
    sizes = {len(body) for _, _, body in records}
    assert min(sizes) >= 200
    assert len(sizes) > 50


def test_a_backlog_is_written_once_for_all_runs(programs: Programs, tmp_path: Path) -> None:
    """The second run finds the files of the first; no half-made folder is left."""
    bench = Bench(programs.load, kinds(programs.floor, None, tmp_path), quick=True)
    row = DISK_ROWS["disk-slow-channel"]
    first = bench.backlog(row)
    written = {path.name: path.stat().st_ino for path in first.iterdir()}
    assert bench.backlog(row) == first
    assert {path.name: path.stat().st_ino for path in first.iterdir()} == written
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_the_first_message_of_a_server_being_started(programs: Programs) -> None:
    """The generator asks until somebody listens, and counts from the given time."""
    port, since_ns = free_port(), time.monotonic_ns()
    options = {"port": port, "consumers": 1, "rdy": 1, "messages": 5, "stall": 60}
    runs: list[dict[str, Any]] = []
    load = threading.Thread(
        target=lambda: runs.append(
            run_load(programs.load, "first", {**options, "since-ns": since_ns})
        )
    )
    load.start()
    with socket.create_server(("127.0.0.1", port)) as listener:
        client, _ = listener.accept()
        with client, client.makefile("rb") as stream:
            accepted_s = (time.monotonic_ns() - since_ns) / 1e9
            _serve_one(client, stream)
    load.join(60)
    [run] = runs
    assert (run["delivered"], run["finished"]) == (1, 1)
    assert accepted_s <= run["answered_seconds"] <= run["timed_seconds"] <= run["seconds"]


def _serve_one(client: socket.socket, stream: Any) -> None:
    """IDENTIFY, SUB, RDY, one message, FIN, CLS: as an nsqd answers them."""

    def answer(kind: int, data: bytes) -> None:
        client.sendall(struct.pack(">iI", len(data) + 4, kind) + data)

    assert stream.read(4) == b"  V2"
    assert stream.readline() == b"IDENTIFY\n"
    stream.read(*struct.unpack(">I", stream.read(4)))
    answer(0, b"{}")
    assert stream.readline().startswith(b"SUB ")
    answer(0, b"OK")
    assert stream.readline() == b"RDY 1\n"
    check = struct.pack("<Q", 3 ^ 0x9E3779B97F4A7C15)
    body = struct.pack("<QQ", 3, 0) + b"n" * 176 + check
    answer(2, bytes(8) + b"\0\1" + b"0123456789abcdef" + body)
    assert stream.readline() == b"FIN 0123456789abcdef\n"
    assert stream.readline() == b"CLS\n"
    answer(0, b"CLOSE_WAIT")


def test_a_publisher_that_may_not_run_ahead(programs: Programs, tmp_path: Path) -> None:
    """With --ahead each message still comes once, in whole commands but for the last."""
    options = {"publishers": 2, "consumers": 1, "rdy": 100, "batch": 30, "ahead": 100}
    with kinds(programs.floor, None, tmp_path).start(FLOOR, ()) as server:
        run = run_load(
            programs.load, "pubsub", {**options, "port": server.tcp_port, "messages": 1_000}
        )
    assert (run["delivered"], run["commands"]) == (1_000, 34)


def test_a_publisher_stops_when_nothing_is_delivered(programs: Programs, tmp_path: Path) -> None:
    """No more commands go out than --ahead allows while the consumer gets nothing."""
    options: dict[str, int | str] = {"publishers": 2, "consumers": 1, "rdy": 1, "batch": 10}
    options |= {"ahead": 100, "messages": 1_000, "stall": 2}
    with (
        kinds(programs.floor, None, tmp_path).start(FLOOR, ["--canned=1"]) as server,
        pytest.raises(MeasureError, match=r"1[01] of 1[01] commands answered, 1 of 1000"),
    ):
        run_load(programs.load, "pubsub", {**options, "port": server.tcp_port})


def test_a_slow_consumer_finishes_nothing(programs: Programs, tmp_path: Path) -> None:
    """It takes what its one credit brings, and neither finishes it nor counts it as delivered."""
    options: dict[str, int | str] = {"consumers": 1, "rdy": 20, "slow": 1, "messages": 100}
    with (
        kinds(programs.floor, None, tmp_path).start(FLOOR, ["--canned=100"]) as server,
        pytest.raises(MeasureError, match="99 of 100 messages delivered"),
    ):
        run_load(programs.load, "consume", {**options, "port": server.tcp_port, "stall": 2})


def test_every_run_gets_an_empty_data_folder(tmp_path: Path) -> None:
    """--data-path is passed, the folder is empty at the start and gone at the end."""
    servers = _pretender(tmp_path, 0)
    for _ in range(2):
        with servers.start(OURS, ["--sync-every=1"]):
            pass
        assert "--sync-every=1" in (tmp_path / "arguments").read_text()
        assert (tmp_path / "found").read_text() == ""
        assert list(servers.data.iterdir()) == []


def test_a_given_data_folder_stays(tmp_path: Path) -> None:
    """A restart finds what was there before."""
    servers = _pretender(tmp_path, 0)
    with servers.folder() as folder:
        (folder / "nsqd.dat").write_text("{}")
        with servers.start(OURS, (), folder):
            pass
        assert (tmp_path / "found").read_text() == "nsqd.dat\n"
    assert not folder.exists()


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_stop_must_be_clean(exit_code: int, tmp_path: Path) -> None:
    """The time of a stop counts only if the server ended with 0."""
    with _pretender(tmp_path, exit_code).start(OURS, ()) as server:
        if exit_code == 0:
            assert server.stop(60) > 0
        else:
            with pytest.raises(ServerError, match="exit code 3"):
                server.stop(60)


def test_a_stop_that_does_not_end_fails(tmp_path: Path) -> None:
    """A server that ignores SIGTERM is a failure, not a wait without end."""
    with _pretender(tmp_path, 0).start(OURS, ()) as server:
        os.kill(server.process.pid, 19)
        with pytest.raises(ServerError, match=r"no clean stop within 0\.1 s"):
            server.stop(0.1)


def test_a_server_without_stats_is_a_failed_row(tmp_path: Path) -> None:
    """/stats that does not answer ends the row, not the command."""
    with (
        _pretender(tmp_path, 0).start(OURS, ()) as server,
        pytest.raises(ServerError, match="/stats does not answer"),
    ):
        server.topic_stats(TOPIC)


@pytest.mark.parametrize(
    "name", smoke({name: name for name in DISK_ROWS}, "disk-read", in_short=())
)
def test_a_row_that_a_server_can_not_do_is_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes no connection makes each disk row a FAILED line and exit code 1."""
    monkeypatch.setattr(command, "build", lambda: build(tmp_path))
    (tmp_path / "pretend").mkdir()
    servers = _pretender(tmp_path / "pretend", 0)
    monkeypatch.setattr(command, "kinds", lambda *_: servers)
    assert command.main(["--quick", "--servers=ours", f"--rows={name}"]) == 1
    assert f"FAILED {name}: " in capsys.readouterr().out


class _Stats:
    def __init__(self, on_disk: int) -> None:
        self._on_disk = on_disk

    def topic_stats(self, topic: str, channel: str | None = None) -> TopicStats:
        stats: Any = {"backend_depth": self._on_disk, "channels": [{"backend_depth": 7}]}
        return stats  # type: ignore[no-any-return]


def test_what_is_not_on_disk_is_no_disk_figure() -> None:
    """A row that should go through disk fails when the server says that it did not."""
    server: Any = _Stats(99)
    check_on_disk(server, None, 99)
    check_on_disk(server, "channel", 7)
    with pytest.raises(MeasureError, match="of 100 messages that should be on disk 99 are"):
        check_on_disk(server, None, 100)
    with pytest.raises(MeasureError, match="of 8 messages that should be on disk 7 are"):
        check_on_disk(server, "channel", 8)


MOUNTS = """/dev/root / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/sdb /tmp/with\\040space xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/var/data", ("ext4", "/dev/root")),
        ("/tmp/x", ("tmpfs", "tmpfs")),
        ("/tmpx", ("ext4", "/dev/root")),
        ("/tmp/with space/x", ("xfs", "/dev/sdb")),
    ],
)
def test_the_file_system_of_a_folder(folder: str, found: tuple[str, str]) -> None:
    """The mount that is nearest above it, not just one whose name begins alike."""
    assert folders.file_system(Path(folder), MOUNTS) == found


def test_data_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A temporary folder in memory is passed over unless it is asked for by name."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(folders, "on_disk", lambda folder: folder != tmp_path)
    assert folders.data_base(None) != tmp_path
    assert folders.data_base(tmp_path) == tmp_path
    monkeypatch.setattr(folders, "on_disk", lambda folder: True)
    assert folders.data_base(None) == tmp_path


def test_an_absolute_target_is_met_by_the_figure_itself() -> None:
    """`kept` is judged without the original, and whatever the original kept."""
    metric = Metric("kept", "of alone", lambda run: float(run["kept"]), 0.6, absolute=True)
    row = Row("slow", "", "pubsub", {}, (metric,))
    base = {"messages": 1, "cpu_seconds": 1.0, "generator_cpu_seconds": 1.0, "seconds": 1.0}
    for kept, verdict in ((0.7, "met"), (0.5, "MISSED")):
        text = table([Result(row, {OURS: [{**base, "kept": kept}]})])
        assert text.splitlines()[1].endswith(f"ours >= 0.6  {verdict}")
