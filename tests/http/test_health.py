"""/live and /ready of nsqd (trionsq.web.diagnostics)."""

from __future__ import annotations

import errno
import json
from typing import Any

from quart_trio import QuartTrio

from tests.http.conftest import StartBroker
from trionsq import httpget
from trionsq.broker.broker import Broker
from trionsq.broker.options import NsqdOptions
from trionsq.broker.runtime import data_folder
from trionsq.http.app import create_app
from trionsq.testing import open_broker
from trionsq.testing.background import InlineBackground
from trionsq.testing.disk import SimulatedDisk


async def ask(app: QuartTrio, path: str) -> tuple[int, Any]:
    """Status and document of the answer."""
    response = await app.test_client().get(path)
    assert response.content_type == "application/json; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    return response.status_code, json.loads(await response.get_data())


async def test_a_running_nsqd_is_live_and_ready(broker: Broker) -> None:
    """Both answer 200."""
    app = create_app(broker)
    assert await ask(app, "/live") == (200, {"status": "live"})
    assert await ask(app, "/ready") == (200, {"status": "ready"})


async def test_it_is_not_ready_with_a_failing_disk_until_that_recovers(
    start_broker: StartBroker,
) -> None:
    """503 with the reason; a restart would not help, so it is live all the while."""
    disk = SimulatedDisk()
    broker = await start_broker(NsqdOptions(mem_queue_size=0), disk)
    app = create_app(broker)
    disk.fail(errno.EIO, only=("write",), name="t.*")
    assert (await app.test_client().post("/pub?topic=t", data=b"x")).status_code >= 500
    status, document = await ask(app, "/ready")
    assert status == 503
    assert document["status"] == "not ready"
    assert document["reason"].startswith("disk: ")
    assert (await ask(app, "/live"))[0] == 200
    assert (await app.test_client().post("/pub?topic=t", data=b"x")).status_code == 200
    assert (await ask(app, "/ready"))[0] == 200


async def test_it_is_not_ready_on_its_way_down(broker: Broker) -> None:
    """The reason tells so, and it still lives."""
    app = create_app(broker)
    broker.stop()
    assert await ask(app, "/ready") == (503, {"status": "not ready", "reason": "exiting"})
    assert (await ask(app, "/live"))[0] == 200


async def test_it_is_not_ready_before_it_runs() -> None:
    """Until topics and channels are there again."""
    options = NsqdOptions()
    broker = Broker(options, data_folder(options, SimulatedDisk(), InlineBackground()))
    assert broker.not_ready_reason == "loading"


async def test_a_real_nsqd_answers_on_its_http_port() -> None:
    """Through the listener and the fast path, which does not know these paths."""
    async with open_broker() as nsqd:
        for path, words in (("/live", b"live"), ("/ready", b"ready"), ("/metrics", b"nsqd_topics")):
            answer = await httpget.get(f"http://{nsqd.http_address}{path}", {}, 5.0, 5.0, 10**6)
            assert answer.status == 200
            assert words in answer.body
