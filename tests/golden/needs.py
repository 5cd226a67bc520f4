"""What a case needs of the broker, and which needs are not built yet (needs.toml).

A case with such a need is deselected and counted by it; of an HTTP case only the steps that
have it are left out, as far as the rest still makes sense.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace

from tests.golden.transcripts import (
    HERE,
    HTTP_FILE,
    HTTP_INSTEAD_FILE,
    TCP_FILE,
    TCP_INSTEAD_FILE,
    Exchange,
    Expect,
    HttpCase,
    HttpStep,
    RemoveDataPath,
    Server,
    TcpCase,
    TcpStep,
    Upgrade,
    load_http_cases,
    load_tcp_cases,
)
from tests.processes import other_binary

NEEDS_FILE = HERE / "needs.toml"
DEVIATIONS_FILE = HERE / "deviations.toml"

COMPRESSION_TEXT = "cannot enable both deflate and snappy"
OPTION_NEEDS = {
    "--mem-queue-size=0": "disk",
    "--e2e-processing-latency-percentile": "e2e",
}
PATH_NEEDS = {"/config": "config", "/debug": "debug"}


@dataclass(frozen=True, slots=True)
class Deviation:
    """A recorded case that we do not keep to, and the case that holds instead."""

    suite: str
    case: str
    reason: str
    checked_instead: str


def not_built() -> dict[str, str]:
    """Why, by need; empty when another binary than ours is tested."""
    if other_binary():
        return {}
    table = tomllib.loads(NEEDS_FILE.read_text())
    return {entry["need"]: entry["why"] for entry in table.get("not_built", [])}


def deviations() -> list[Deviation]:
    """All deviations; see ``deviating_cases`` for those in force."""
    table = tomllib.loads(DEVIATIONS_FILE.read_text())
    return [Deviation(**entry) for entry in table["deviation"]]


def deviating_cases(suite: str) -> frozenset[str]:
    """Names of the suite's cases that are not replayed as recorded; none for another binary."""
    if other_binary():
        return frozenset()
    return frozenset(entry.case for entry in deviations() if entry.suite == suite)


def tcp_cases() -> list[TcpCase]:
    """The recorded TCP cases, then for our own nsqd those that hold where we deviate."""
    instead = [] if other_binary() else load_tcp_cases(TCP_INSTEAD_FILE)
    return load_tcp_cases(TCP_FILE) + instead


def http_cases() -> list[HttpCase]:
    """The recorded HTTP cases, then for our own nsqd those that hold where we deviate."""
    instead = [] if other_binary() else load_http_cases(HTTP_INSTEAD_FILE)
    return load_http_cases(HTTP_FILE) + instead


def tcp_needs(case: TcpCase) -> set[str]:
    """All that the case needs beyond a plain broker in memory."""
    needs = _server_needs(case.server)
    if case.auth is not None:
        needs.add("auth")
    for step in case.steps:
        needs |= _tcp_step_needs(step)
    return needs


def http_case_needs(case: HttpCase) -> set[str]:
    """What the whole case needs; see ``without_unbuilt_steps`` for the rest."""
    needs = _server_needs(case.server)
    if any(isinstance(step, RemoveDataPath) for step in case.steps):
        needs.add("disk")
    return needs


def http_step_need(step: HttpStep) -> str | None:
    """The need of one step that can be left out by itself."""
    if not isinstance(step, Exchange):
        return None
    path = step.request.path
    for start, need in PATH_NEEDS.items():
        if path.startswith(start):
            return need
    is_stats = path.partition("?")[0] == "/stats"
    if is_stats and "format=json" not in path and step.request.method == "GET":
        return "stats_text"
    return None


def without_unbuilt_steps(case: HttpCase, unbuilt: frozenset[str]) -> tuple[HttpCase, list[str]]:
    """The case less the steps that need something unbuilt, and the need of each left out."""
    left_out = [need for step in case.steps if (need := http_step_need(step)) in unbuilt]
    kept = tuple(step for step in case.steps if http_step_need(step) not in unbuilt)
    return replace(case, steps=kept), [need for need in left_out if need]


def checks_anything(case: HttpCase) -> bool:
    """Whether a step with an expected answer is left."""
    return any(isinstance(step, Exchange) and step.response is not None for step in case.steps)


def _server_needs(server: Server) -> set[str]:
    needs = {"tls"} if server.tls else set()
    for flag in server.args:
        needs |= {need for start, need in OPTION_NEEDS.items() if flag.startswith(start)}
    return needs


def _tcp_step_needs(step: TcpStep) -> set[str]:
    match step:
        case Upgrade(layer="tls"):
            return {"tls"}
        case Upgrade():
            return {"compression"}
        case RemoveDataPath():
            return {"disk"}
        case Expect() if COMPRESSION_TEXT in step.text:
            return {"compression"}
    return set()
