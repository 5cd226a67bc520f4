"""The rows of client libraries: ours on each event loop and in threads, and those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.client import READER
from benchmarks.rows import Metric, Row, Run, client_cpu_us

__all__ = ["CLIENT_ROWS", "FOREIGN"]

FOREIGN: Final[Mapping[str, str]] = {
    "pynsq": "nsq",
    "gnsq": "gnsq",
    "ansq": "ansq",
    "asyncnsq": "asyncnsq",
}
"""Clients of others by name, and the modules they are; those that are installed are measured."""
_WORLDS: Final = ("asyncio", "uvloop")


def _rate(run: Run) -> float:
    return float(run["timed_messages"] / run["timed_seconds"])


def _of_reader(run: Run) -> float:
    return _rate(run) / _rate(run["beside"][READER])


def _ahead(name: str) -> Callable[[Run], float]:
    return lambda run: _rate(run["beside"][name]) / _rate(run)


def _row(name: str, scenario: str, title: str, metrics: tuple[Metric, ...], **fields: Any) -> Row:
    figures = (
        Metric("rate", "msg/s", _rate),
        Metric("client-cpu", "us/msg", client_cpu_us, more_is_better=False),
        *metrics,
    )
    options = {"consumers": 1, "rdy": 2500, "size-min": 200, "size-max": 200}
    return Row(name, title, scenario, options, figures, procedure="client", floor=False, **fields)


def _consumes(way: str, title: str, target: float | None) -> Row:
    metric = Metric("of-reader", "of C reader", _of_reader, target, absolute=True)
    return _row(
        f"client-{way}", "consume", title, (metric,), client=way, beside=(READER,), pilot=100_000
    )


def _consumes_in(way: str, world: str) -> Row:
    title = f"our consumer by {way}, on {world}, at RDY 2500"
    return _row(
        f"client-{way}-{world}", "consume", title, (), client=f"{way}:{world}", pilot=100_000
    )


def _publishes(name: str, client: str, title: str) -> Row:
    return _row(
        f"client-publish{name}",
        "publish",
        f"{title} publishes, 100 under way",
        (),
        client=client,
        pilot=5_000,
    )


def _of_others(name: str) -> tuple[Row, Row]:
    ahead = tuple(
        Metric(f"{way}-ahead", "times", _ahead(way), more_is_better=False)
        for way in ("batches", "messages")
    )
    return (
        _row(
            f"client-{name}",
            "consume",
            f"{name} consumes at RDY 2500",
            ahead,
            client=f"with_{name}",
            beside=("batches", "messages"),
            pilot=20_000,
        ),
        _publishes(f"-{name}", f"with_{name}:publish", name),
    )


CLIENT_ROWS: Final = (
    _consumes("batches", "our consumer.batches() at RDY 2500", 0.3),
    _consumes("messages", "our consumer, message by message, at RDY 2500", None),
    *(_consumes_in(way, world) for world in _WORLDS for way in ("batches", "messages")),
    _consumes("threads", "our blocking consumer, one thread, at RDY 2500", None),
    _publishes("", "publish", "our producer"),
    *(_publishes(f"-{world}", f"publish:{world}", f"our producer on {world}") for world in _WORLDS),
    _publishes("-threads", "threads:publish", "our blocking producer, 100 threads"),
    *(row for name, module in FOREIGN.items() if find_spec(module) for row in _of_others(name)),
)
