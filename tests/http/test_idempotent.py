"""Idempotency-Key at /pub and /mpub."""

from __future__ import annotations

import pytest

from tests.http.ways import both_ways
from trionsq.http.app import create_app
from trionsq.testing.disk import SimulatedDisk
from trionsq.testing.memory import nsqd_in_memory


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_a_repeat_is_stored_once_and_says_so(storage: str) -> None:
    """At /pub, with a delay, and at both kinds of /mpub; the second answer has one header more."""
    async with nsqd_in_memory(storage=storage) as broker:
        client = create_app(broker).test_client()
        for number, (target, body, count) in enumerate(
            [
                ("/pub?topic=t", b"x", 1),
                ("/put?topic=t&defer=1000", b"x", 1),
                ("/mpub?topic=t", b"x\nyy\n", 2),
                ("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\1x", 1),
            ]
        ):
            before = broker.topics["t"].core.message_count if "t" in broker.topics else 0
            headers = {"Idempotency-Key": f'"key-{number}"'}
            first = await client.post(target, data=body, headers=headers)
            again = await client.post(
                target, data=body, headers={"Idempotency-Key": f"key-{number}"}
            )
            assert (first.status_code, again.status_code) == (200, 200)
            assert (await first.get_data(), await again.get_data()) == (b"OK", b"OK")
            assert "Idempotent-Replayed" not in first.headers
            assert again.headers["Idempotent-Replayed"] == "true"
            assert broker.topics["t"].core.message_count == before + count


@pytest.mark.parametrize(
    ("target", "body"),
    [("/pub?topic=t", b"y"), ("/pub?topic=t&defer=1", b"x"), ("/mpub?topic=t", b"x\nx")],
)
async def test_a_key_of_other_messages_is_refused(target: str, body: bytes) -> None:
    """With 422, and nothing is stored."""
    async with nsqd_in_memory() as broker:
        client = create_app(broker).test_client()
        headers = {"Idempotency-Key": "k"}
        await client.post("/pub?topic=t", data=b"x", headers=headers)
        refused = await client.post(target, data=body, headers=headers)
        assert refused.status_code == 422
        assert await refused.get_json() == {"message": "IDEMPOTENCY_KEY_REUSED"}
        assert broker.topics["t"].core.message_count == 1


@pytest.mark.parametrize("key", ["", '""', "k" * 65, "a key", "k\\", '"k', "\xe9"])
async def test_an_invalid_key_is_refused(key: str) -> None:
    """With 400: without its key a publish might be stored twice."""
    async with nsqd_in_memory() as broker:
        client = create_app(broker).test_client()
        response = await client.post("/pub?topic=t", data=b"x", headers={"Idempotency-Key": key})
        assert response.status_code == 400
        assert await response.get_json() == {"message": "INVALID_IDEMPOTENCY_KEY"}
        assert not broker.topics["t"].core.message_count


async def test_keys_are_ignored_if_the_window_is_0() -> None:
    """As by the original."""
    async with nsqd_in_memory(idempotency_window_ns=0) as broker:
        client = create_app(broker).test_client()
        for _ in range(2):
            response = await client.post(
                "/pub?topic=t", data=b"x", headers={"Idempotency-Key": "k" * 99}
            )
            assert response.status_code == 200
            assert "Idempotent-Replayed" not in response.headers
        assert broker.topics["t"].core.message_count == 2


async def test_after_a_refusal_the_repeat_is_a_new_publish() -> None:
    """A 503 stored nothing, so the key is free again."""
    disk = SimulatedDisk()
    async with nsqd_in_memory(disk=disk, storage="log", durability="always") as broker:
        client = create_app(broker).test_client()
        broker.topic("t")
        disk.fail(28, forever=True)
        headers = {"Idempotency-Key": "k"}
        response = await client.post("/pub?topic=t", data=b"x", headers=headers)
        assert response.status_code == 503
        disk.heal()
        response = await client.post("/pub?topic=t", data=b"x", headers=headers)
        assert response.status_code == 200
        assert "Idempotent-Replayed" not in response.headers
        assert broker.topics["t"].core.message_count == 1


def test_a_key_is_seen_on_a_connection_that_had_none_before() -> None:
    """Publishes without a key take a short way, which knows no keys; one with a key leaves it."""
    plain = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
    keyed = plain.replace(b"Host", b"idempotency-KEY: k\r\nHost")
    for outcome in both_ways([plain + keyed + plain + keyed + plain]):
        assert outcome.answers.count(b" 200 OK") == 5
        assert outcome.answers.lower().count(b"idempotent-replayed: true") == 1
        assert outcome.topics == {"t": (4, 4)}
