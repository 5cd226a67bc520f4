"""What a node says of itself, on its page."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from admin.options import NsqadminOptions, OptionsError, validated
from admin.pages.node_facts import node_facts
from admin.watch.snapshot import NodeRow
from admin.watch.vitals import Reading, read_metrics, vitals_of
from tests.admin.pages.support import Nodes, pages, topic

NOW_S = 1_790_000_000.0
METRICS = b"""process_resident_memory_bytes 1048576
process_open_fds 20
process_max_fds 1000
nsqd_connections 3
nsqd_http_connections 2
nsqd_connections_refused_total{limit="max_connections"} 4
nsqd_connections_refused_total{limit="max_connection_rate"} 1
nsqd_disk_free_bytes 5e8
nsqd_lookupd_connected{lookupd="a:4160"} 1
nsqd_lookupd_connected{lookupd="b:4160"} 0
nsqd_disk_faults 2
nsqd_event_loop_lag_seconds_bucket{le="0.0025"} 99
nsqd_event_loop_lag_seconds_bucket{le="0.5"} 100
nsqd_event_loop_lag_seconds_bucket{le="+Inf"} 100
"""


def test_facts_are_those_of_metrics() -> None:
    """With their units; what is a problem stands out; what is not told is a dash."""
    reading = Reading()
    read_metrics(METRICS, reading)
    row = NodeRow(node="n:4151", up=True, start_time=int(NOW_S) - 1600, depth=10, backend_depth=4)
    found = node_facts(row, vitals_of(reading, Reading(), NOW_S), NOW_S)
    facts = {fact.name: (fact.value, fact.is_bad) for fact in found.facts}
    assert facts == {
        "Uptime": ("26 min", False),
        "Memory": ("1 MiB", False),
        "Event loop lag": ("\u2264 2.5ms", False),
        "fsync": ("\N{EN DASH}", False),
        "Open files": ("20", False),
        "Disk free": ("477 MiB", True),
        "Messages on disk": ("4", False),
        "Connections": ("3", False),
        "Refused": ("5", True),
        "Unread output": ("\N{EN DASH}", False),
        "nsqlookupd": ("1 of 2", True),
        "Disk faults": ("2", True),
    }
    assert node_facts(None, None, NOW_S).facts == []


async def test_links_by_template(autojump_clock: MockClock) -> None:
    """The address of the node is quoted in each."""
    nodes = Nodes({"one:4151": [topic("orders")]})
    links = ("Logs=https://logs/?q={node}&h={host}", "Graphs=http://g/{port}", "Rules=http://p/r")
    async with pages(nodes, link=links) as found:
        page = await found.page("/nodes/one:4151")
        assert 'href="https://logs/?q=one%3A4151&amp;h=one" rel="noreferrer">Logs</a>' in page
        assert 'href="http://g/4151"' in page
        for path in ("/", "/nodes/one:4151"):
            page = await found.page(path)
            assert page.count('<a href="http://p/r" rel="noreferrer">Rules</a>') == 1
        assert "Graphs" not in await found.page("/")


@pytest.mark.parametrize("link", ["https://logs/", "Logs=javascript:alert(1)", "=https://logs/"])
def test_a_link_that_is_none_is_refused(link: str) -> None:
    """At the start, not when somebody needs it."""
    with pytest.raises(OptionsError, match="--link"):
        validated(NsqadminOptions(nsqd_http_address=("n:4151",), link=(link,)))
