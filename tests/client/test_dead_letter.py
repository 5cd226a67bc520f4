"""`Message.dead_letter` against a real nsqd, over sockets."""

from __future__ import annotations

import json

import pytest
import trio

from trionsq.client import Config, Consumer, Producer
from trionsq.httpget import get
from trionsq.testing import open_broker


@pytest.mark.parametrize("storage", ["default", "log"])
async def test_a_message_becomes_a_dead_letter(storage: str) -> None:
    """With the reason that the program names, without a policy, and only that message."""
    async with open_broker(storage=storage) as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish_many("t", [b"good", b"bad"])
        config = Config(max_in_flight=2)
        addresses = [nsqd.tcp_address]
        answers = []
        async with Consumer("t", "c", nsqd_tcp_addresses=addresses, config=config) as consumer:
            async for message in consumer:
                with pytest.raises(ValueError, match="reason"):
                    message.dead_letter("")
                with pytest.raises(ValueError, match="reason"):
                    message.dead_letter("a\nb")
                assert message.is_open
                if message.body == b"bad":
                    answers.append(message.dead_letter("no such customer", delay_s=0))
                    assert not message.finish()
                else:
                    answers.append(message.finish())
                if len(answers) == 2:
                    break
        assert answers == [True, True]
        url = f"http://{nsqd.http_address}/deadletter?topic=t&channel=c"
        with trio.fail_after(60):
            while True:
                found = json.loads((await get(url, request_timeout_s=60)).body)
                if found["count"]:
                    break
        [letter] = found["deadletters"]
        assert (letter["body"], letter["reason"], letter["attempts"]) == (
            "bad",
            "no such customer",
            1,
        )
