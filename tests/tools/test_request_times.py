"""How long requests take, as log lines."""

from __future__ import annotations

import logging

import pytest

from trionsq.tools.forwarding import RequestLog, RequestTimes


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The tools' log from INFO on."""
    caplog.set_level(logging.INFO, "trionsq.tools")
    monkeypatch.setattr(logging.getLogger("trionsq"), "propagate", True)
    return caplog


def test_percentiles(log: pytest.LogCaptureFixture) -> None:
    """A line after each hundred, about the last hundred."""
    times = RequestTimes("x", 100)
    for ms in range(1, 101):
        assert _lines(log) == []
        times.add(ms / 1000)
    assert _lines(log) == ["[x]: finished 100 - 99th: 100.00ms - 95th: 96.00ms - avg: 50.50ms"]
    times.add(0.001, 99)
    assert _lines(log) == []
    times.add(0.001)
    assert _lines(log) == ["[x]: finished 200 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms"]


def test_many_at_once(log: pytest.LogCaptureFixture) -> None:
    """However many requests end at once, it is one line."""
    times = RequestTimes("x", 10)
    times.add(0.002, 35)
    times.add(0.002, 4)
    times.add(0.002, 1)
    assert [line.partition(" - ")[0] for line in _lines(log)] == [
        "[x]: finished 35",
        "[x]: finished 40",
    ]


def test_off(log: pytest.LogCaptureFixture) -> None:
    """0: never a line."""
    times = RequestLog(["a", "b"], 0)
    times.add("a", 0.1, 1000)
    assert _lines(log) == []


@pytest.mark.parametrize(
    ("addresses", "names"), [(["a"], {"aggregate"}), (["a", "b", "a"], {"a", "b", "aggregate"})]
)
def test_each_address(log: pytest.LogCaptureFixture, addresses: list[str], names: set[str]) -> None:
    """All together, and if there are several addresses each of them."""
    times = RequestLog(addresses, 2)
    for address in addresses:
        times.add(address, 0.1, 2)
    assert {line.partition("]")[0].lstrip("[") for line in _lines(log)} == names
