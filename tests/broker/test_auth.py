"""AUTH, and what it guards, with auth servers that answer, lie, stall and die.

Spec: tcp-protocol, section 9.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.auth_stub import EVERYTHING, GRANTED, AuthStub, authorized, granting, http
from tests.broker.statistics import document_of
from tests.broker.support import check_balances, check_nobody_left, connect, publish
from tests.cancellation import CancelAt, When, sweep_awaits
from tests.soak import more_in_soak
from trionsq.broker import auth as auth_module
from trionsq.broker.broker import Broker
from trionsq.debug.tasks import task_tree, text_pieces
from trionsq.testing.conversation import Conversation, UnexpectedFrame
from trionsq.testing.memory import nsqd_in_memory
from trionsq.wire import commands

ONE: dict[str, Any] = {"auth_http_address": ("auth1.test:80",)}
TWO: dict[str, Any] = {"auth_http_address": ("auth1.test:80", "http://auth2.test:81/mine")}
REQUEST_TIMEOUT_S = 5
FAILED = "E_AUTH_FAILED AUTH failed"
PUBLISHER = {"topic": "^mine", "channels": [".*"], "permissions": ["publish"]}
SUBSCRIBER = {"topic": "^mine", "channels": ["^c$"], "permissions": ["subscribe"]}

ASK: dict[str, object] = {"feature_negotiation": True, "idempotent_publish": True}

COMMANDS = {
    "PUB": commands.publish("mine", b"x"),
    "DPUB": commands.publish_deferred("mine", 10, b"x"),
    "MPUB": commands.publish_many("mine", [b"x", b"y"]),
    "SUB": commands.subscribe("mine", "c"),
}


async def ask(broker: Broker, *said: bytes) -> Conversation:
    """A connection that sends AUTH, and what follows, and reads nothing yet."""
    talk = Conversation.begin(broker)
    await talk.say(commands.auth("s"), *said)
    return talk


async def test_auth_answers_with_the_identity_and_stats_show_it(
    autojump_clock: MockClock,
) -> None:
    """The keys are there for who is authorized, and only what is not empty."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(
            broker, granting(EVERYTHING, EVERYTHING, identity="ann", identity_url="u"), granting()
        )
        for expected in (b'{"identity":"ann","identity_url":"u","permission_count":2}', GRANTED):
            talk = await ask(broker)
            await talk.response(expected)
            await talk.subscribe("t", "c")
        clients = (await document_of(broker))["topics"][0]["channels"][0]["clients"]
        shown: list[Any] = [
            {key: value for key, value in client.items() if key.startswith("auth")}
            for client in clients or []
        ]
        assert shown == [
            {"authed": True, "auth_identity": "ann", "auth_identity_url": "u"},
            {"authed": True},
        ]
        assert list(clients[0])[14:18] == [
            "user_agent",
            "authed",
            "auth_identity",
            "auth_identity_url",
        ]
        query = {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": ["s"], "tls": ["false"]}
        assert await stub.query() == query
        assert stub.dialled == [("auth1.test", 80)] * 2


async def test_without_auth_servers_nothing_is_checked() -> None:
    """AUTH is refused, everything else goes as ever, and stats say nothing of it."""
    async with nsqd_in_memory() as broker:
        talk = Conversation.begin(broker)
        await talk.say(commands.publish("t", b"x"))
        await talk.response()
        producers = (await document_of(broker))["producers"]
        assert "authed" not in producers[0]
        await talk.say(commands.auth("s"))
        assert await talk.error() == "E_AUTH_DISABLED AUTH disabled"


async def test_a_post_sends_json() -> None:
    """--auth-http-request-method=post."""
    async with nsqd_in_memory(**ONE, auth_http_request_method="post") as broker:
        stub = AuthStub(broker, granting())
        await authorized(broker)
        head, _, body = (await stub.request()).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /auth HTTP/1.1\r\n")
        assert b"Content-Length: %d" % len(body) in head
        assert json.loads(body)["secret"] == ["s"]


# What an auth server may do to us


@pytest.mark.parametrize(
    "answer",
    [
        http(200, b"x" * 10_000_000),
        http(200, json.dumps({"ttl": 60, "authorizations": [EVERYTHING] * 100_000}).encode()),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        http(200, b""),
        http(200, b'{"ttl": 60, "authorizations": ['),
        http(200, b"[1, 2]"),
        http(200, b'{"ttl": "60", "authorizations": []}'),
        granting(ttl=0),
        granting({"topic": "(", "channels": [".*"], "permissions": ["publish"]}),
        granting({"topic": ".*", "channels": [".*"], "permissions": ["root"]}),
        http(500, granting().partition(b"\r\n\r\n")[2]),
        http(204, b""),
        http(302, b""),
        http(403, b'{"message": "FORBIDDEN"}'),
        granting()[:-1],
        b"\x00\x00\x00\x06OK",
        b"",
        None,
    ],
)
async def test_whatever_an_auth_server_answers_the_door_stays_shut(
    answer: bytes | None, autojump_clock: MockClock
) -> None:
    """AUTH fails, the connection is closed, and what was sent after AUTH is not done."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, answer)
        talk = await ask(broker, COMMANDS["PUB"])
        assert await talk.error() == FAILED
        assert await talk.end() == []
        assert not broker.topics
        assert len(stub.dialled) == 1
        await stub.request()  # ends: the connection to it is closed
        await trio.sleep(2)
        check_nobody_left(broker)
        assert broker.client_failures == 0


async def test_an_empty_list_is_no_authorization() -> None:
    """It has its own error."""
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, http(200, b'{"ttl": 60}'))
        talk = await ask(broker)
        assert await talk.error() == "E_UNAUTHORIZED AUTH no authorizations found"
        assert await talk.end() == []


@pytest.mark.parametrize("first", [http(500, b""), http(200, b"{"), b"", None])
async def test_on_an_error_the_next_server_is_asked(
    first: bytes | None, autojump_clock: MockClock
) -> None:
    """Each at most once, a hanging one for as long as its time-out."""
    async with nsqd_in_memory(**TWO) as broker:
        stub = AuthStub(broker, first, granting())
        await authorized(broker)
        assert sorted(stub.dialled) == [("auth1.test", 80), ("auth2.test", 81)]


async def test_a_full_url_is_asked_as_it_is() -> None:
    """With the query after it; an unreachable server is passed over."""
    async with nsqd_in_memory(**TWO) as broker:
        stub = AuthStub(broker, granting())
        stub.unreachable.add("auth1.test")
        await authorized(broker)
        assert (await stub.request()).startswith(b"GET /mine?common_name=&remote_ip=127.0.0.1&")


async def test_questions_begin_at_a_random_server() -> None:
    """So the load is shared among servers that are well."""
    async with nsqd_in_memory(**TWO) as broker:
        stub = AuthStub(broker, granting())
        for _ in range(20):
            await authorized(broker)
        assert {host for host, _ in stub.dialled} == {"auth1.test", "auth2.test"}
        assert len(stub.dialled) == 20


async def test_slow_bytes_do_not_hold_a_client_for_ever(autojump_clock: MockClock) -> None:
    """The time-out is for the whole answer, however much of it has come."""
    async with nsqd_in_memory(**ONE) as broker, trio.open_nursery() as nursery:
        stub = AuthStub(broker, None)
        trickled = 0

        async def trickle() -> None:
            nonlocal trickled
            await wait_all_tasks_blocked()
            for byte in granting():
                await trio.sleep(0.1)
                stub.ends[0].send_nowait(bytes([byte]))
                trickled += 1

        talk = await ask(broker)
        nursery.start_soon(trickle)
        begun_s = trio.current_time()
        assert await talk.error() == FAILED
        assert trio.current_time() - begun_s <= REQUEST_TIMEOUT_S + 0.1
        assert trickled > 10
        nursery.cancel_scope.cancel()


async def test_others_flow_while_one_waits(autojump_clock: MockClock) -> None:
    """A server that hangs costs only those who ask it."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, granting())
        other = await authorized(broker)
        stub.answers = [None]
        waiting = await ask(broker)
        await wait_all_tasks_blocked()
        before_s = trio.current_time()
        await other.subscribe("mine", "c", ready=10)
        for _ in range(10):
            await other.say(COMMANDS["PUB"])
            await other.response()
            message = await other.message()
            await other.say(commands.finish(message.message_id))
        assert trio.current_time() == before_s
        assert await waiting.error() == FAILED


async def test_a_crowd_does_not_pile_up_at_a_server_that_hangs(autojump_clock: MockClock) -> None:
    """Some dozens are asked for at a time; the others wait, and not for long."""
    crowd = 300
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, None)
        talks = [await ask(broker) for _ in range(crowd)]
        await wait_all_tasks_blocked()
        servers = broker.auth_servers
        assert servers is not None
        at_once = auth_module._MAX_REQUESTS
        assert len(stub.dialled) == servers.active_requests == at_once
        assert servers.waiting_requests == crowd - at_once
        for talk in talks:
            assert await talk.error() == FAILED
        assert len(stub.dialled) <= 3 * at_once
        assert trio.current_time() <= 3 * REQUEST_TIMEOUT_S
        stub.answers = [granting()]
        await authorized(broker)
        assert (servers.active_requests, servers.waiting_requests) == (0, 0)


async def test_a_crowd_comes_through_a_server_that_answers(autojump_clock: MockClock) -> None:
    """Whoever waits for a turn gets it."""
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, granting())
        for talk in [await ask(broker) for _ in range(300)]:
            await talk.response(GRANTED)


@pytest.mark.parametrize("status", [200, 403])
async def test_a_long_answer_is_read_beside_the_event_loop(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, in a thread, for it takes long; a short one here and now."""
    read_by: list[tuple[bool, bool]] = []
    under_way = threading.Semaphore(1)
    name = {200: "read_grant", 403: "https_retry_url"}[status]
    read = getattr(auth_module, name)

    def noting(*arguments: Any) -> Any:
        alone = under_way.acquire(blocking=False)
        try:
            read_by.append((threading.current_thread() is threading.main_thread(), alone))
            return read(*arguments)
        finally:
            if alone:
                under_way.release()

    monkeypatch.setattr(auth_module, name, noting)
    padding = "x" * auth_module._MAX_INLINE_BYTES
    body = {"ttl": 5, "authorizations": [EVERYTHING]}
    long, short = [json.dumps(body | more).encode() for more in ({"padding": padding}, {})]
    async with nsqd_in_memory(**ONE) as broker:
        for said, count in ((short, 1), (long, 5)):
            AuthStub(broker, http(status, said))
            for talk in [await ask(broker) for _ in range(count)]:
                await (talk.response(GRANTED) if status == 200 else talk.error())
    assert read_by == [(True, True)] + [(False, True)] * 5


# A client that goes


async def test_a_client_that_goes_is_not_asked_for_any_longer(autojump_clock: MockClock) -> None:
    """Neither while the server is asked nor while it waits for its turn."""
    crowd = 60
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, None)
        talks = [await ask(broker) for _ in range(crowd)]
        await wait_all_tasks_blocked()
        before_s = trio.current_time()
        for talk in reversed(talks):
            talk.close()
            await wait_all_tasks_blocked()
        check_nobody_left(broker)
        assert trio.current_time() == before_s
        assert len(stub.dialled) < crowd
        assert b"secret=s" in await stub.request(0)
        assert broker.auth_servers is not None
        assert (broker.auth_servers.active_requests, broker.auth_servers.waiting_requests) == (0, 0)


async def test_a_connection_that_breaks_is_not_asked_for(autojump_clock: MockClock) -> None:
    """A reset ends it like a close."""
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, None)
        talk, _, _ = connect(broker)
        await talk.say(commands.auth("s"))
        await wait_all_tasks_blocked()
        talk.stream.outgoing.reset()
        await wait_all_tasks_blocked()
        check_nobody_left(broker)
        assert broker.client_failures == 0


async def test_what_was_sent_after_auth_is_done_also_after_a_half_close(
    autojump_clock: MockClock,
) -> None:
    """A client that has said all it wanted is no client that is gone."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, None)
        talk = await ask(broker)
        await wait_all_tasks_blocked()
        await talk.say(COMMANDS["PUB"])
        await wait_all_tasks_blocked()
        talk.stream.end_sending()
        await wait_all_tasks_blocked()
        stub.ends[0].send_nowait(granting())
        stub.ends[0].end_sending()
        await talk.response(GRANTED)
        await talk.response()
        assert broker.topics["mine"].core.message_count == 1


async def test_the_broker_stops_while_a_server_hangs(autojump_clock: MockClock) -> None:
    """Nobody waits for an answer that nobody needs any more."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, None)
        await ask(broker)
        await wait_all_tasks_blocked()
        assert stub.dialled
        before_s = trio.current_time()
    assert trio.current_time() == before_s


# What AUTH guards


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_before_auth_is_refused(command: str) -> None:
    """Fatally, without asking anybody, and no topic is made."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, granting())
        talk = Conversation.begin(broker)
        await talk.say(COMMANDS[command])
        assert await talk.error() == f"E_AUTH_FIRST AUTH required before {command}"
        assert await talk.end() == []
        assert not broker.topics
        assert not stub.dialled


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("entry", [PUBLISHER, SUBSCRIBER, PUBLISHER | {"topic": "^other"}])
async def test_a_command_needs_its_permission(
    entry: dict[str, Any], command: str, autojump_clock: MockClock
) -> None:
    """publish for the three that publish, subscribe for SUB; a refusal names both names."""
    permission = "subscribe" if command == "SUB" else "publish"
    allowed = permission in entry["permissions"] and entry["topic"] == "^mine"
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, granting(entry))
        talk = await authorized(broker)
        await talk.say(COMMANDS[command])
        if allowed:
            await talk.response()
            assert "mine" in broker.topics
            return
        channel = "c" if command == "SUB" else ""
        refusal = f'E_UNAUTHORIZED AUTH failed for {command} on "mine" "{channel}"'
        assert await talk.error() == refusal
        assert await talk.end() == []
        assert not broker.topics


@pytest.mark.parametrize("command", ["PUB", "DPUB", "MPUB"])
async def test_who_has_published_to_a_topic_may_not_subscribe_to_it(
    command: str, autojump_clock: MockClock
) -> None:
    """The verdict on a topic that a publisher repeats is none on its channels."""
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, granting(PUBLISHER))
        talk = await authorized(broker)
        for _ in range(2):
            await talk.say(COMMANDS[command])
            await talk.response()
        await talk.say(COMMANDS["SUB"])
        assert await talk.error() == 'E_UNAUTHORIZED AUTH failed for SUB on "mine" "c"'
        assert not broker.topics["mine"].channels


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"PUB $\n", 'E_BAD_TOPIC PUB topic name "$" is not valid'),
        (b"PUB mine\n\0\0\0\0", "E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"DPUB $ 1\n", 'E_BAD_TOPIC DPUB topic name "$" is not valid'),
        (b"DPUB mine 1\n\0\0\0\0", "E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"MPUB $\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "$" is not valid'),
        (b"MPUB mine\n", "E_AUTH_FIRST AUTH required before MPUB"),
        (b"MPUB mine\n\0\0\0\0", "E_AUTH_FIRST AUTH required before MPUB"),
        (b"SUB mine $\n", 'E_BAD_CHANNEL SUB channel name "$" is not valid'),
        (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
    ],
)
async def test_the_check_has_its_place_among_the_others(said: bytes, error: str) -> None:
    """After the names; for PUB and DPUB after the body, for MPUB before it."""
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, granting())
        talk = Conversation.begin(broker)
        await talk.say(said)
        assert await talk.error() == error
        assert not broker.topics


async def test_auth_is_for_once() -> None:
    """A second one is fatal."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, granting())
        talk = await authorized(broker)
        await talk.say(commands.auth("s"))
        assert await talk.error() == "E_INVALID AUTH already set"
        assert len(stub.dialled) == 1


# Time to live


async def test_after_its_time_a_grant_is_asked_for_again(autojump_clock: MockClock) -> None:
    """With the same secret, once, at the next command that needs it; answers stay in order."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, granting(ttl=10), granting(PUBLISHER, ttl=10))
        talk = await authorized(broker, "s&1")
        await talk.say(*COMMANDS.values())
        for _ in range(4):
            await talk.response()
        await trio.sleep(9)
        await talk.say(COMMANDS["PUB"])
        await talk.response()
        assert len(stub.dialled) == 1
        await trio.sleep(2)
        await talk.say(COMMANDS["PUB"], COMMANDS["MPUB"], b"PUB theirs\n\0\0\0\1x")
        await talk.response()
        await talk.response()
        assert await talk.error() == 'E_UNAUTHORIZED AUTH failed for PUB on "theirs" ""'
        assert len(stub.dialled) == 2
        assert (await stub.query())["secret"] == ["s&1"]
        assert "theirs" not in broker.topics


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http(403, b"{}"), FAILED),
        (None, FAILED),
        (http(200, b'{"ttl": 60}'), "E_UNAUTHORIZED AUTH failed for {} on .*"),
    ],
)
async def test_a_grant_that_is_not_renewed_is_none(
    command: str, answer: bytes | None, error: str, autojump_clock: MockClock
) -> None:
    """The command that needed it is refused, whatever was allowed before."""
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, granting(ttl=1), answer)
        talk = await authorized(broker)
        await trio.sleep(1)
        await talk.say(COMMANDS[command])
        assert re.fullmatch(error.format(command), await talk.error())
        assert await talk.end() == []
        assert not broker.topics


async def test_a_subscription_outlives_its_grant(autojump_clock: MockClock) -> None:
    """Only the four commands are checked: messages flow and are finished after its time."""
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, granting(ttl=1), http(403, b""))
        talk = await authorized(broker)
        await talk.subscribe("mine", "c", ready=1)
        await trio.sleep(10)
        publish(broker, "mine", b"x")
        message = await talk.message()
        await talk.say(commands.finish(message.message_id))
        await wait_all_tasks_blocked()
        assert broker.topics["mine"].channels["c"].core.finish_count == 1
        assert len(stub.dialled) == 1


async def test_an_mpub_is_checked_once(autojump_clock: MockClock) -> None:
    """Before its body; that may take longer than the grant holds. The next one is checked anew."""
    whole = COMMANDS["MPUB"]
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(broker, granting(ttl=5), http(403, b""))
        talk = await authorized(broker)
        await talk.say(whole[:-1])
        await trio.sleep(6)
        await talk.say(whole[-1:])
        await talk.response()
        assert len(stub.dialled) == 1
        await talk.say(whole)
        assert await talk.error() == FAILED
        assert broker.topics["mine"].core.message_count == 2


KEYED = {
    "PUB": commands.publish("mine", b"x", b"k"),
    "DPUB": commands.publish_deferred("mine", 10, b"x", b"k"),
    "MPUB": commands.publish_many("mine", [b"x", b"y"], b"k"),
}


@pytest.mark.parametrize("command", KEYED)
async def test_a_publish_with_a_key_needs_its_permission(
    command: str, autojump_clock: MockClock
) -> None:
    """As one without; an MPUB is checked once, and a repeat is checked again."""
    said, options = KEYED[command], commands.identify(ASK)
    async with nsqd_in_memory(**ONE) as broker:
        AuthStub(broker, granting(PUBLISHER, ttl=5), granting(SUBSCRIBER), http(403, b""))
        talk = Conversation.begin(broker)
        await talk.say(options, said)
        await talk.frame()
        assert await talk.error() == f"E_AUTH_FIRST AUTH required before {command}"
        talk = await authorized(broker)
        await talk.say(options)
        await talk.frame()
        await talk.say(said[:-1])
        await wait_all_tasks_blocked()
        await talk.say(said[-1:], said)
        await talk.response()
        await talk.response()
        count = broker.topics["mine"].core.message_count
        assert count == (2 if command == "MPUB" else 1)
        other = await authorized(broker)
        await other.say(options)
        await other.frame()
        await other.say(said)
        assert (await other.error()).startswith("E_UNAUTHORIZED")
        assert broker.topics["mine"].core.message_count == count


async def test_heartbeats_go_on_while_a_server_hangs(autojump_clock: MockClock) -> None:
    """Whoever waits for AUTH is not closed for being silent."""
    timeout_ns = 100 * 10**9
    async with nsqd_in_memory(**ONE, http_client_request_timeout_ns=timeout_ns) as broker:
        AuthStub(broker, None)
        talk = await ask(broker)
        talk.shows_heartbeats = True
        for _ in range(3):
            assert "_heartbeat_" in repr(await talk.frame())
        assert await talk.error() == FAILED


# Secrets


async def test_a_secret_is_nowhere_to_be_seen(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """Not in the log whatever fails, not in a repr, not among the tasks of /debug."""
    caplog.set_level(logging.DEBUG)
    secret = "hushhushhush"
    echo = f"HTTP/1.1 {secret}\r\n\r\n".encode()
    quoting = json.dumps({"ttl": 60, "authorizations": [{"topic": f"({secret}"}]}).encode()
    async with nsqd_in_memory(**ONE) as broker:
        stub = AuthStub(
            broker, echo, http(403, secret.encode()), http(200, quoting), None, granting()
        )
        for _ in range(4):
            talk, client, _ = connect(broker)
            await talk.say(commands.auth(secret))
            await wait_all_tasks_blocked()
            tree = await task_tree(limit=1000, stacks=True)
            assert secret not in "".join(text_pieces(tree))
            assert await talk.error() == FAILED
        talk, client, _ = connect(broker)
        await talk.say(commands.auth(secret))
        await talk.response(GRANTED)
        assert secret.encode() in await stub.request()
        assert secret not in repr((client, client.auth, client.parser, broker.auth_servers))
    assert "AUTH: asking http://auth1.test:80/auth failed" in caplog.text
    assert secret not in caplog.text


# Cancellation


async def _live(cancel_at: CancelAt) -> None:
    """AUTH, commands, a renewal, commands; closed at one await."""
    async with nsqd_in_memory(**TWO) as broker:
        AuthStub(broker, http(500, b""), granting(ttl=1), http(500, b""), granting())
        assert broker._connections is not None
        talk, client, _ = connect(broker)
        [cancel_at.root] = broker._connections.child_tasks
        cancel_at.cancel = client.close
        came_through = False
        with suppress(UnexpectedFrame, trio.BrokenResourceError):
            await talk.say(commands.auth("s"))
            await talk.response(GRANTED)
            await trio.sleep(1.5)
            await talk.say(*COMMANDS.values())
            for _ in COMMANDS:
                await talk.response()
            came_through = True
        assert came_through or cancel_at.has_fired
        talk.close()
        await trio.sleep(2)
        check_nobody_left(broker)
        check_balances(broker)
        servers = broker.auth_servers
        assert servers is not None
        assert (servers.active_requests, servers.waiting_requests) == (0, 0)
        assert broker.client_failures == 0


@more_in_soak
@pytest.mark.parametrize("when", ["parked", "woken"])
def test_every_await_of_auth_can_be_cancelled(when: When, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step the client is closed at, its turn is given back and nothing is left."""
    monkeypatch.setattr("trionsq.broker.auth._MAX_INLINE_BYTES", 10)
    sweep_awaits(_live, when, least=20, one_in=2)
