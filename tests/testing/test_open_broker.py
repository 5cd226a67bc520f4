"""A real nsqd for tests of users' programs (trionsq.testing.broker and .plugin)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from trionsq import httpget
from trionsq.client import Consumer, Producer
from trionsq.storage.folder import DataPathError
from trionsq.testing import OpenBroker, broker_in_thread, open_broker

LIMIT_S = 60.0

pytest_plugins = ["pytester"]

TEST_OF_A_USER = """
import asyncio
import urllib.request

import pytest


def get(nsqd, path):
    with urllib.request.urlopen(f"http://{nsqd.http_address}{path}") as answer:
        return answer.read()


def test_plain(nsqd):
    assert get(nsqd, "/ping") == b"OK"


def test_asyncio(nsqd):
    async def talk():
        host, port = nsqd.tcp_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"  V2PUB t\\n\\x00\\x00\\x00\\x01x")
        assert (await reader.read(100))[8:] == b"OK"
        writer.close()

    asyncio.run(talk())


@pytest.mark.nsqd(max_msg_size=77)
def test_options(nsqd):
    assert get(nsqd, "/config/tcp_address") != b""
    assert nsqd.broker.options.max_msg_size == 77
"""


async def test_it_listens_on_free_ports() -> None:
    """Two brokers do not disturb each other, and clients can connect."""
    async with open_broker() as one, open_broker() as other:
        assert one.tcp_address != other.tcp_address
        assert (await httpget.get(f"http://{one.http_address}/ping")).body == b"OK"
        async with (
            Producer(one.tcp_address) as producer,
            Consumer("t", "c", nsqd_tcp_addresses=[one.tcp_address]) as consumer,
        ):
            await producer.publish("t", b"x")
            with trio.fail_after(LIMIT_S):
                async for message in consumer:
                    assert message.body == b"x"
                    message.finish()
                    break


async def test_the_folder_goes_unless_it_was_given(tmp_path: Path) -> None:
    """A given folder keeps the messages for the next broker; a temporary one is removed."""
    async with open_broker() as nsqd:
        folder = nsqd.data_path
        assert folder.is_dir()
    assert not folder.exists()
    async with open_broker(tmp_path) as nsqd, Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"kept")
    async with open_broker(tmp_path) as nsqd:
        assert nsqd.broker.topic("t").core.depth == 1
        with pytest.raises(DataPathError):
            async with open_broker(tmp_path):
                pass


async def test_options_are_given_by_name() -> None:
    """Options of nsqd are keyword arguments; an unknown one is a TypeError."""
    async with open_broker(max_msg_size=5) as nsqd:
        assert nsqd.broker.options.max_msg_size == 5
    with pytest.raises(TypeError):
        async with open_broker(no_such_option=1):
            pass


async def test_exceptions_of_the_body_come_out_as_they_are() -> None:
    """A failed assertion is not hidden in a group."""
    with pytest.raises(KeyError, match="mine"):
        async with open_broker():
            raise KeyError("mine")


async def test_cancelling_stops_it_in_order(tmp_path: Path) -> None:
    """Messages are saved although the body was cancelled."""
    with trio.CancelScope() as scope:
        async with open_broker(tmp_path) as nsqd, Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"kept")
            scope.cancel()
            await trio.sleep_forever()
    async with open_broker(tmp_path) as nsqd:
        assert nsqd.broker.topic("t").core.depth == 1


def test_it_runs_in_a_thread(tmp_path: Path) -> None:
    """For programs without trio; errors of the start are raised in the caller."""
    with broker_in_thread(tmp_path) as nsqd:
        answer = trio.run(httpget.get, f"http://{nsqd.http_address}/ping")
        assert answer.body == b"OK"
        with pytest.raises(DataPathError), broker_in_thread(tmp_path):
            pass
    with pytest.raises(TypeError), broker_in_thread(no_such_option=1):
        pass


def test_the_fixture_gives_one_to_any_test(pytester: pytest.Pytester) -> None:
    """For plain and asyncio tests, and with options."""
    pytester.makepyfile(TEST_OF_A_USER)
    result = pytester.runpytest_subprocess("-p", "trionsq.testing.plugin", "-W", "error")
    result.assert_outcomes(passed=3)


def test_the_plugin_imports_no_broker() -> None:
    """Test runs that do not use the fixture do not pay for the import."""
    code = "import sys, trionsq.testing.plugin; print(sorted(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    for name in ("trionsq.broker", "quart", "hypercorn", "trio"):
        assert f"'{name}'" not in modules


def test_the_opened_broker_says_where_it_is(tmp_path: Path) -> None:
    """The repr helps when a test fails."""
    with broker_in_thread(tmp_path) as nsqd:
        assert isinstance(nsqd, OpenBroker)
        assert nsqd.tcp_address in repr(nsqd)
