"""The pytest plugin: the fixture `nsqd`. pytest loads it wherever trionsq is installed.

It imports the broker only when a test uses the fixture: see `trionsq.testing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trionsq.testing.broker import OpenBroker

__all__ = ["nsqd", "pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``nsqd``."""
    config.addinivalue_line(
        "markers", "nsqd(**options): options of the broker that the fixture nsqd starts"
    )


@pytest.fixture
def nsqd(request: pytest.FixtureRequest) -> Iterator[OpenBroker]:
    """An empty nsqd on free ports, for one test: see `trionsq.testing.broker.OpenBroker`.

    It runs in a thread of its own, so the test may use trio, asyncio or neither. A marker sets its
    options: ``@pytest.mark.nsqd(mem_queue_size=0)``.
    """
    from trionsq.testing.broker import broker_in_thread

    marker = request.node.get_closest_marker("nsqd")
    with broker_in_thread(**(marker.kwargs if marker else {})) as opened:
        yield opened
