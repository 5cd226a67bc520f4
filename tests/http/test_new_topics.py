"""The request that makes a topic waits until its channels elsewhere are made here too.

Spec: nsqd-internals, section 1 (channel pre-creation).
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.lookupds import Network
from tests.http.ways import way

REQUEST_S = 5.0
REQUESTS = {
    "pub": b"POST /pub?topic=t HTTP/1.1\r\nHost: n\r\nContent-Length: 1\r\n\r\nx",
    "mpub": b"POST /mpub?topic=t HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\r\nx\ny",
    "create": b"POST /topic/create?topic=t HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\n\r\n",
}
PUBLISHED = {"pub": 1, "mpub": 2, "create": 0}


async def answered(stream: trio.SocketStream) -> None:
    """Read a whole answer, which must be a good one."""
    came = b""
    while not came.endswith((b"\r\n\r\nOK", b"\r\n\r\n")) or (
        b"content-length: 2" in came and not came.endswith(b"OK")
    ):
        data = await stream.receive_some()
        assert data, came
        came += data
    assert b" 200 " in came


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("request_name", REQUESTS)
async def test_the_request_that_makes_a_topic_waits_and_no_other(
    autojump_clock: MockClock, fast_path: bool, request_name: str
) -> None:
    """Others publish at once; a second topic on the same connection waits in its turn."""
    async with way(fast_path=fast_path) as server, trio.open_nursery() as nursery:
        broker = server.broker
        network = Network(nursery, ["a", "b"])
        network.connect(broker)
        await wait_all_tasks_blocked()
        network.lookupds["a"].stalls.add("HTTP")
        network.lookupds["b"].channels = ["c"]
        start_s = trio.current_time()
        creator = server.connect()
        await creator.send_all(REQUESTS[request_name])
        await wait_all_tasks_blocked()
        other = server.connect()
        await other.send_all(REQUESTS["pub"])
        await answered(other)
        assert trio.current_time() == start_s
        assert broker.topics["t"].core.message_count == 1
        await answered(creator)
        assert trio.current_time() - start_s == pytest.approx(REQUEST_S, abs=0.1)
        await wait_all_tasks_blocked()
        assert broker.topics["t"].core.message_count == 1 + PUBLISHED[request_name]
        assert broker.topics["t"].channels["c"].core.depth == 1 + PUBLISHED[request_name]
        await creator.send_all(REQUESTS["pub"].replace(b"=t", b"=u"))
        await answered(creator)
        assert trio.current_time() - start_s == pytest.approx(2 * REQUEST_S, abs=0.1)
        await creator.aclose()
        await other.aclose()
        nursery.cancel_scope.cancel()
