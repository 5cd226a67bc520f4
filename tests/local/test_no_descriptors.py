"""nsqd and a client on sockets in a process without free descriptors (EMFILE)."""

from __future__ import annotations

import errno
import os

import pytest
import trio

from tests.descriptors import no_free_descriptors
from trionsq import httpget
from trionsq.client import ConnectError, Consumer, Producer, ProtocolError
from trionsq.durations import SECOND_NS
from trionsq.http import serve
from trionsq.testing import open_broker

LIMIT_S = 60.0


async def test_what_is_open_goes_on_and_the_rest_comes_back() -> None:
    """Without descriptors open connections are served, new ones and new files are refused with an
    error that says why; with descriptors everything works again, and every message that was
    acknowledged comes."""
    with trio.fail_after(LIMIT_S):
        async with (
            open_broker(mem_queue_size=0, sync_timeout_ns=3600 * SECOND_NS) as nsqd,
            Producer(nsqd.tcp_address) as producer,
        ):
            url = f"http://{nsqd.http_address}/ping"
            await producer.publish("old", b"1")
            # A sync would need a descriptor.
            await nsqd.broker.folder.background.wait_idle()
            with no_free_descriptors():
                await producer.publish("old", b"2")
                with pytest.raises(httpget.GetConnectError):
                    await httpget.get(url)
                async with Producer(nsqd.tcp_address) as other:
                    with pytest.raises(ConnectError):
                        await other.publish("old", b"refused")
                with pytest.raises(ProtocolError, match="E_PUB_FAILED"):
                    await producer.publish("new", b"refused")
            await producer.publish("new", b"3")
            assert (await httpget.get(url)).status in (200, 500)  # 500: the disk is tried again
            for topic, expected in (("old", {b"1", b"2"}), ("new", {b"3"})):
                bodies = set()
                async with Consumer(topic, "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
                    async for message in consumer:
                        bodies.add(message.body)
                        message.finish()
                        if bodies == expected:
                            break


async def test_the_rest_of_http_is_loaded_when_descriptors_are_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd imports what serves /stats after its start. Without descriptors it tries again, says so
    once, and does not end; requests wait meanwhile."""
    load, tries = serve._import_framework, 0

    def load_later() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            error = OSError if tries % 2 else ImportError
            raise error(errno.EMFILE, os.strerror(errno.EMFILE))
        load()

    monkeypatch.setattr(serve, "_import_framework", load_later)
    monkeypatch.setattr(serve, "_RETRY_S", 0.01)
    with trio.fail_after(LIMIT_S):
        async with open_broker() as nsqd:
            answer = await httpget.get(f"http://{nsqd.http_address}/stats")
    assert answer.status == 200
    assert tries == 4
    [line] = [text for text in caplog.messages if "only publishing works" in text]
    assert "Too many open files" in line
