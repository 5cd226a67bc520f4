"""The benchmarks must be runnable, and must not praise a server that loses messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.build import BuildError, Programs, build
from benchmarks.generator import Bench, MeasureError, run_load
from benchmarks.measure import run_row
from benchmarks.report import Result, table
from benchmarks.rows import ROWS, Metric, Row, Run
from benchmarks.servers import FLOOR, ORIGINAL, OURS, ServerError, kinds

MESSAGES = 1_000
# What has not come by then is lost.
LOST_S = 2
PUBLISH: dict[str, int | str | bool] = {"publishers": 2, "window": 10, "messages": MESSAGES}
CONSUME: dict[str, int | str | bool] = {"consumers": 2, "rdy": 20, "messages": MESSAGES}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Generator and floor, compiled anew."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture
def against_floor(programs: Programs, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs one load against a floor that was started with these options."""

    def run(scenario: str, options: dict[str, int | str | bool], *floor: str) -> dict[str, Any]:
        with kinds(programs.floor, None, tmp_path).start(FLOOR, floor) as server:
            where = {"port": server.tcp_port, "pid": server.process.pid}
            return run_load(programs.load, scenario, {"stall": 60, **options, **where})

    return run


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_with_a_floor_measures_it(programs: Programs, row: Row, tmp_path: Path) -> None:
    """Every row that has a floor runs against it and yields each of its figures."""
    if not row.floor:
        assert row.name in {"memory-message", "idle", "receiver"} or row.name.startswith(
            ("disk-", "http-", "client-", "sink", "tls-", "snappy-", "deflate-")
        )
        return
    bench = Bench(programs.load, kinds(programs.floor, None, tmp_path), quick=True)
    run = run_row(bench, row, FLOOR, MESSAGES)
    assert all(metric.of(run) > 0 for metric in row.metrics)
    assert max(run["oks"], run["delivered"]) > 0


def test_idle_connections_are_held(against_floor: Callable[..., dict[str, Any]]) -> None:
    """The idle load reports as many connections as it was told to hold."""
    run = against_floor("idle", {"consumers": 100, "hold": 0})
    assert run["connections"] == 100


def test_a_publisher_counts_every_ok(against_floor: Callable[..., dict[str, Any]]) -> None:
    """A PUB for each message, an OK for each PUB; an MPUB for each batch, the last one shorter."""
    run = against_floor("publish", PUBLISH)
    assert (run["commands"], run["oks"]) == (MESSAGES, MESSAGES)
    run = against_floor("publish", {**PUBLISH, "batch": 300})
    assert (run["commands"], run["oks"]) == (4, 4)


def test_a_consumer_finishes_every_message(against_floor: Callable[..., dict[str, Any]]) -> None:
    """Sizes that differ come back as published, and each message is finished once."""
    sizes = {"size-min": 24, "size-max": 300}
    run = against_floor(
        "consume", {**CONSUME, **sizes}, "--canned=1000", "--size-min=24", "--size-max=300"
    )
    assert (run["delivered"], run["finished"], run["redelivered"]) == (MESSAGES, MESSAGES, 0)


@pytest.mark.parametrize(
    ("scenario", "options", "floor", "complaint"),
    [
        ("publish", PUBLISH, "--drop-ok=700", "999 of 1000 commands answered"),
        ("consume", CONSUME, "--drop-message=700", "999 of 1000 messages delivered"),
        ("consume", CONSUME, "--repeat-message=700", "message 698 was delivered twice"),
    ],
)
def test_lost_work_fails_loudly(
    against_floor: Callable[..., dict[str, Any]],
    scenario: str,
    options: dict[str, int | str | bool],
    floor: str,
    complaint: str,
) -> None:
    """A server that swallows an OK or a message, or repeats one, ends the load with an error."""
    canned = ["--canned=1000"] if scenario == "consume" else []
    with pytest.raises(MeasureError, match=complaint):
        against_floor(scenario, {**options, "stall": LOST_S}, floor, *canned)


def test_a_lost_message_fails_between_publisher_and_consumer(
    against_floor: Callable[..., dict[str, Any]],
) -> None:
    """A message that was answered by OK but never delivered ends the load with an error."""
    options: dict[str, int | str | bool] = {"publishers": 1, "consumers": 1, "rdy": 100}
    options |= {"batch": 10, "messages": MESSAGES, "stall": LOST_S}
    with pytest.raises(MeasureError, match="999 of 1000 messages delivered"):
        against_floor("pubsub", options, "--drop-message=500")


def test_an_error_frame_fails_with_its_text(
    against_floor: Callable[..., dict[str, Any]],
) -> None:
    """What the server answers as an error is in the failure."""
    with pytest.raises(MeasureError, match="E_INVALID invalid command"):
        against_floor("consume", {**CONSUME, "channel": "two\nlines"})


def test_a_missing_server_is_a_failed_row_not_a_crash(programs: Programs, tmp_path: Path) -> None:
    """A server that can't start fails its row with its last words."""
    bench = Bench(programs.load, kinds(programs.floor, None, tmp_path))
    with (
        pytest.raises(ServerError, match="unrecognized option"),
        bench.kinds.start(FLOOR, ["--no-such-option"]),
    ):
        pass


def test_no_compiler_is_said_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a C compiler the error names what to install or to set."""
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="need a C compiler"):
        build(tmp_path)


def test_a_server_that_can_not_start_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured when one of the servers ends at once; its last words are shown."""
    monkeypatch.setattr(command, "build", lambda: build(tmp_path))
    program = tmp_path / "nsqd"
    program.write_text("#!/bin/sh\necho no good >&2; exit 3\n")
    program.chmod(0o755)
    assert command.main([f"--original={tmp_path}", "--servers=original"]) == 2
    assert "ended with 3; its last lines:\nno good" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "more_is_better", "ratio", "met"),
    [
        (1.5, True, 1.6, True),
        (1.5, True, 1.4, False),
        (0.4, False, 0.3, True),
        (None, True, 1, None),
    ],
)
def test_targets(
    target: float | None, more_is_better: bool, ratio: float, met: bool | None
) -> None:
    """A rate must reach its target, a cost must stay below."""
    metric = Metric("figure", "unit", lambda run: 0.0, target, more_is_better)
    assert metric.meets(ratio) is met


def test_the_table_has_medians_ratios_and_failures() -> None:
    """The middle run counts, ratios are ours to the other, a failed row says why."""
    row, other = ROWS[0], ROWS[1]

    def run(seconds: float) -> Run:
        return {
            "messages": 1e6,
            "timed_messages": 1e6,
            "timed_seconds": seconds,
            "seconds": seconds,
            "cpu_seconds": 1.0,
            "generator_cpu_seconds": seconds / 2,
        }

    runs = {OURS: [run(1), run(0.5), run(9)], ORIGINAL: [run(2)], FLOOR: [run(0.1)]}
    text = table([Result(row, runs), Result(other, failure="it lost one")])
    cells = text.splitlines()[1].split()
    assert cells[3:5] == ["1,000,000", "1.00"]
    assert cells[6:] == [
        "10,000,000",
        "0.10",
        "500,000",
        "1.00",
        "2.00",
        "+-94%",
        ">=",
        "1.5",
        "met",
    ]
    assert text.endswith("FAILED mpub-varied: it lost one")


def test_the_command_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m benchmarks` prints a table and writes every raw run with its machine."""
    monkeypatch.setattr(command, "build", lambda: build(tmp_path))
    file = tmp_path / "figures.json"
    arguments = ["--quick", "--seconds=0.02", "--rows=mpub", "--servers=floor", f"--json={file}"]
    assert command.main(arguments) == 0
    assert "mpub" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert document["machine"]["cores"] >= 1
    [row] = document["rows"]
    assert row["servers"][FLOOR]["runs"][0]["oks"] > 0
