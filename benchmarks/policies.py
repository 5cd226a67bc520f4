"""Rows with a policy on every topic and channel, beside the same load without one."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.generator import Bench
from benchmarks.onlog import MEMORY, load_server
from benchmarks.rows import Metric, Row, Run

__all__ = ["POLICY_ROWS", "run_with_policy"]

# Bounds that nothing reaches: what they cost is measured, not what they drop.
_POLICY: Final = '[all]\nmax_bytes = 1000000000000\nmessage_ttl = "1h"\n'


def _rate(run: Run) -> float:
    return float(run["timed_messages"] / run["timed_seconds"])


def run_with_policy(bench: Bench, row: Row, messages: int) -> Run:
    """Run a row with the policy; the run without it is in it as `beside`. Raises as `run_row`."""
    beside = load_server(bench, row, MEMORY, messages)
    with bench.kinds.folder() as folder:
        folder.mkdir(exist_ok=True)
        path = folder / "policies.toml"
        path.write_text(_POLICY)
        options = [*MEMORY, f"--policy-file={path}"]
        return {**load_server(bench, row, options, messages), "beside": beside}


def _row(name: str, title: str, **fields: Any) -> Row:
    scenario = "consume" if fields.get("preload") else "publish"
    metrics = (
        Metric("rate", "msg/s", _rate),
        Metric(
            "kept", "of without",
            lambda run: _rate(run) / _rate(run["beside"]), 0.9, absolute=True,
        ),
    )  # fmt: skip
    return Row(
        f"policy-{name}", title, scenario, metrics=metrics, procedure="policy", floor=False,
        **{"pilot": 4_000, **fields},
    )  # fmt: skip


POLICY_ROWS: Final = (
    _row("mpub", "MPUB 200 x 200 B, 2 connections", options={"publishers": 2, "batch": 200}),
    _row(
        "pub-pipelined",
        "PUB, 2 connections x 100 under way",
        options={"publishers": 2, "window": 100},
    ),
    _row("pub-sync-50", "PUB, wait for OK, 50 connections", options={"publishers": 50}),
    _row(
        "consume",
        "consume, 2 connections at RDY 2500",
        options={"consumers": 2, "rdy": 2500},
        preload=True,
        pilot=20_000,
    ),
    _row(
        "consume-10x1",
        "consume, 10 connections at RDY 1",
        options={"consumers": 10, "rdy": 1},
        preload=True,
        pilot=20_000,
    ),
)
