"""Answers to publishes that are not safe yet: their order, their bound, and how they end."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.rounds import nsqd_with_rounds
from tests.broker.support import check_balances, check_nobody_left, connect, publish
from tests.core.helpers import segment
from trionsq.broker.answers import OwedAnswer, OwedAnswers
from trionsq.core.round import Round
from trionsq.testing.conversation import Conversation
from trionsq.transports.transport import BrokenStreamError
from trionsq.wire import commands
from trionsq.wire.client import ErrorFrame, Frame, MessageFrame, Response

UNKNOWN = b"0" * 16
"""The id of a message that is not in flight."""


def shown(frames: list[Frame]) -> list[str]:
    """Frames as a test compares them."""
    texts = []
    for frame in frames:
        if isinstance(frame, Response):
            texts.append(frame.data[:20].decode())
        elif isinstance(frame, ErrorFrame):
            texts.append(str(frame.as_error()))
        else:
            texts.append(f"message {frame.body.decode()}")
    return texts


async def test_an_answer_waits_until_its_messages_are_safe(autojump_clock: MockClock) -> None:
    """No OK before the round has ended, and none is needed for what follows to be read and run."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, _ = connect(broker)
        await talk.say(commands.publish("t", b"a"))
        await talk.silence(1)
        await talk.say(commands.publish("t", b"b"), commands.publish_many("u", [b"c", b"d"]))
        await wait_all_tasks_blocked()
        assert (client.pub_counts["t"], client.pub_counts["u"]) == (2, 2)
        assert broker.topic("t").core.depth == 0
        rounds.finish("t")
        await talk.response()
        await talk.response()
        await talk.silence(1)
        rounds.finish("u")
        await talk.response()
        assert getattr(client, "owed") is None  # noqa: B009
        assert broker.topic("t").core.depth == 2


async def test_all_answers_keep_the_order_of_the_commands(autojump_clock: MockClock) -> None:
    """A refused FIN, the answer to CLS: all wait behind an answer that is owed."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker)
        await talk.subscribe("own", "c", ready=1)
        await talk.say(
            commands.finish(UNKNOWN),
            commands.publish("t", b"a"),
            commands.finish(UNKNOWN),
            commands.publish("u", b"b"),
            commands.touch(UNKNOWN),
            b"CLS\n",
        )
        assert (await talk.error()).startswith("E_FIN_FAILED")
        await talk.silence(1)
        rounds.finish("u")  # the later one first
        await talk.silence(1)
        rounds.finish("t")
        await talk.response()
        assert (await talk.error()).startswith("E_FIN_FAILED")
        await talk.response()
        assert (await talk.error()).startswith("E_TOUCH_FAILED")
        await talk.response(b"CLOSE_WAIT")


async def test_messages_and_heartbeats_do_not_wait(autojump_clock: MockClock) -> None:
    """A consumer that also publishes goes on consuming while its answers are owed."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker)
        await talk.say(commands.identify({"heartbeat_interval": 1000}))
        await talk.frame()
        await talk.subscribe("own", "c", ready=1)
        publish(broker, "own", b"one", b"two")
        rounds.finish("own")
        first = await talk.message()
        await talk.say(commands.publish("t", b"a"), commands.finish(first.message_id))
        second = await talk.message()
        assert [first.body, second.body] == [b"one", b"two"]
        await talk.say(commands.finish(second.message_id))
        await talk.silence(3)
        assert talk.heartbeats >= 2
        assert broker.topic("own").channel("c").core.finish_count == 2
        rounds.finish("t")
        await talk.response()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (commands.publish("t", b"bad"), "PUB"),
        (commands.publish_many("t", [b"bad"]), "MPUB"),
        (commands.publish_deferred("t", 1000, b"bad"), "DPUB"),
    ],
)
async def test_a_failed_round_ends_the_connection(
    command: bytes, name: str, autojump_clock: MockClock
) -> None:
    """Answers of before go out, then the refusal; what came after it is not answered."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, _ = connect(broker)
        await talk.say(commands.publish("u", b"a"), command, commands.publish("u", b"b"))
        await wait_all_tasks_blocked()
        rounds.finish("t", "no space left on device")
        await talk.silence(1)
        rounds.finish("u")
        assert shown(await talk.end()) == [
            "OK",
            f"E_{name}_FAILED {name} failed no space left on device",
        ]
        assert client not in broker.clients
        talk.close()
        await trio.sleep(1.1)
        check_nobody_left(broker)
    assert broker.client_failures == 0


async def test_a_refusal_arrives_at_a_client_that_still_sends(autojump_clock: MockClock) -> None:
    """The connection ends like one that is refused at once: the frame is not lost in a reset."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, transport = connect(broker)
        await talk.say(commands.publish("t", b"bad"))
        await wait_all_tasks_blocked()
        await talk.say(b"PUB t\n\x00\x00\x40\x00" + b"x" * 100)  # half a command
        rounds.finish("t", "broken")
        assert (await talk.error()) == "E_PUB_FAILED PUB failed broken"
        await talk.say(b"x" * 100)
        assert await talk.end() == []
        talk.close()
        await trio.sleep(1.1)
        assert transport.is_closed
    assert broker.client_failures == 0


async def test_a_fatal_error_comes_after_what_is_owed(autojump_clock: MockClock) -> None:
    """Its connection gets no more messages, and is closed only when the round has ended."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, transport = connect(broker)
        await talk.subscribe("own", "c", ready=1)
        await talk.say(commands.publish("t", b"a"), commands.finish(UNKNOWN), b"NONSENSE\n")
        await wait_all_tasks_blocked()
        assert not broker.topic("own").channel("c").clients
        await trio.sleep(10)
        assert not transport.is_closed
        rounds.finish("t")
        frames = shown(await talk.end())
        assert frames[0] == "OK"
        assert [text.split()[0] for text in frames[1:]] == ["E_FIN_FAILED", "E_INVALID"]
        assert client.owed is None


async def test_a_refusal_replaces_a_later_fatal_error(autojump_clock: MockClock) -> None:
    """Only the first error that ends a connection is sent, in the order of the commands."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker)
        await talk.say(commands.publish("t", b"bad"), b"NONSENSE\n")
        await wait_all_tasks_blocked()
        rounds.finish("t", "broken")
        assert shown(await talk.end()) == ["E_PUB_FAILED PUB failed broken"]


@pytest.mark.parametrize(
    ("last", "error"),
    [(b"", []), (b"PUB t\n\x00\x00", ["E_BAD_MESSAGE"]), (b"x" * 20_000, [])],
    ids=["end", "half a command", "long line"],
)
async def test_a_half_closed_connection_gets_what_it_is_owed(
    last: bytes, error: list[str], autojump_clock: MockClock
) -> None:
    """A client that ends its sending, in whatever way, is answered before it is closed."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, transport = connect(broker)
        await talk.say(commands.publish("t", b"a"), last)
        await talk.stream.send_eof()
        await trio.sleep(10)
        assert not transport.is_closed
        rounds.finish("t")
        frames = shown(await talk.end())
        assert [text.split()[0] for text in frames] == ["OK", *error]
        talk.close()
        await trio.sleep(1.1)
        check_nobody_left(broker)


@pytest.mark.parametrize("error", [None, "broken"])
async def test_a_client_that_has_gone_gets_nothing(
    error: str | None, autojump_clock: MockClock
) -> None:
    """The end of its round does no harm, nor does the connection stay."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, transport = connect(broker)
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        talk.close()
        await wait_all_tasks_blocked()
        rounds.finish("t", error)
        await trio.sleep(1.1)
        assert transport.is_closed
        check_nobody_left(broker)
        check_balances(broker)
    assert broker.client_failures == 0


@pytest.mark.parametrize("error", [None, "broken"])
async def test_a_round_that_ends_after_the_connection(
    error: str | None, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that nsqd itself closed is answered no more."""
    caplog.set_level("DEBUG", "trionsq")
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, transport = connect(broker)
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        client.close()
        assert await talk.end() == []
        assert transport.is_closed
        rounds.finish("t", error)
        await trio.sleep(1.1)
        check_nobody_left(broker)
    assert broker.client_failures == 0
    assert "connection lost" not in caplog.text


@pytest.mark.parametrize(
    "command", [commands.finish(UNKNOWN), commands.publish("t", b"b"), b"NONSENSE\n"]
)
async def test_commands_that_come_with_the_refusal(
    command: bytes, autojump_clock: MockClock
) -> None:
    """Whatever is read in the moment in which a round fails is not answered any more."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, _ = connect(broker)
        await talk.subscribe("own", "c")
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        seen = client.parser.commands
        talk.stream.send_nowait(command)
        rounds.finish("t", "broken")
        assert shown(await talk.end()) == ["E_PUB_FAILED PUB failed broken"]
        assert client.parser.commands == seen + 1
    assert broker.client_failures == 0


async def test_nothing_comes_after_a_refusal(autojump_clock: MockClock) -> None:
    """Not even what is safe already, nor a command that waits until nothing is owed."""
    written: list[tuple[bytes, bool]] = []
    ends: list[bool] = []
    owed = OwedAnswers(lambda *answers: written.append(answers), lambda: ends.append(True))
    failed, safe = Round(), Round()
    safe.finish()
    owed.add(OwedAnswer(failed, b"one", "PUB", 1))
    failed.finish("broken")
    owed.add(OwedAnswer(safe, b"two", "PUB", 1))
    owed.add_replies(b"three")
    assert (written, ends, str(owed.error)) == ([], [True], "E_PUB_FAILED PUB failed broken")
    with trio.move_on_after(10):
        await owed.wait_released()
        pytest.fail("it went on")


async def test_a_broken_stream_gets_what_it_is_owed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a layer can't be read on, the answers to what it brought before still go out."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, transport = connect(broker)
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()

        def receive_nowait(_max_bytes: int) -> bytes:
            raise BrokenStreamError("no snappy")

        monkeypatch.setattr(transport, "receive_nowait", receive_nowait)
        await talk.say(b"?")
        await trio.sleep(10)
        assert not transport.is_closed
        rounds.finish("t")
        assert shown(await talk.end()) == ["OK"]
        assert transport.is_closed


@pytest.mark.parametrize("is_half_closed", [False, True])
async def test_answers_that_a_client_reads_slowly(
    is_half_closed: bool, autojump_clock: MockClock
) -> None:
    """All of them arrive, whether nsqd waits for commands or the client has said its last one."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker, 100)
        for _ in range(30):
            talk.stream.send_nowait(commands.publish("t", b"a"))
            await wait_all_tasks_blocked()
        if is_half_closed:
            await talk.stream.send_eof()
            await wait_all_tasks_blocked()
        rounds.finish("t")
        for _ in range(30):
            await talk.response()
        if is_half_closed:
            assert await talk.end() == []


async def test_a_broken_connection_at_the_end_of_a_round(autojump_clock: MockClock) -> None:
    """A socket that takes no answer ends its connection, and no other."""
    async with nsqd_with_rounds() as (broker, rounds):
        broken, _, transport = connect(broker)
        other, _, _ = connect(broker)
        for talk in (broken, other):
            await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        transport.outgoing.break_with(ConnectionResetError("reset"))
        rounds.finish("t")
        await other.response()
        await wait_all_tasks_blocked()
        assert transport.is_closed
        assert len(broker.clients) == 1
    assert broker.client_failures == 0


async def test_a_stop_with_answers_owed(autojump_clock: MockClock) -> None:
    """nsqd ends although a round does not, and a round that ends later does no harm."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker)
        await talk.say(commands.publish("t", b"a"), b"NONSENSE\n")
        await wait_all_tasks_blocked()
        broker.stop()
        with trio.fail_after(100):
            await broker.wait_ended()
        assert await talk.end() == []
        check_nobody_left(broker)
        rounds.finish("t", "exiting")
    assert broker.client_failures == 0


async def test_a_client_that_waits_for_a_slow_disk_is_not_silent(
    autojump_clock: MockClock,
) -> None:
    """It has nothing to say before its answer; afterwards its silence counts again."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, _ = connect(broker)
        await talk.say(commands.identify({"heartbeat_interval": 1000}))
        await talk.frame()
        talk.shows_heartbeats = True  # it answers none
        await talk.say(commands.publish("t", b"a"))
        await trio.sleep(20)
        assert client in broker.clients
        rounds.finish("t")
        await trio.sleep(3)
        assert client not in broker.clients
        frames = shown(await talk.end())
        assert frames.count("OK") == 1
        assert frames.index("OK") >= 10


async def test_identify_and_sub_wait_for_what_is_owed(autojump_clock: MockClock) -> None:
    """No message can come before the answer to SUB, nor a layer before that to IDENTIFY."""
    async with nsqd_with_rounds(deflate=True) as (broker, rounds):
        talk, client, _ = connect(broker)
        publish(broker, "own", b"one")
        rounds.finish("own")
        await talk.say(
            commands.publish("t", b"a"),
            commands.identify({"client_id": "x"}),
            commands.publish("t", b"b"),
            commands.subscribe("own", "c"),
            commands.ready(1),
        )
        await talk.silence(1)
        assert client.identity.client_id != "x"
        rounds.finish("t")
        await talk.response()
        assert isinstance(await talk.frame(), Response)
        await talk.silence(1)
        assert client.channel is None
        rounds.finish("t")
        await talk.response()
        await talk.response()
        assert (await talk.message()).body == b"one"


async def test_what_is_owed_is_bounded_in_bytes(autojump_clock: MockClock) -> None:
    """Beyond 8 MiB of bodies that are not safe the connection is not read; then it goes on."""
    mib = 1024 * 1024
    async with nsqd_with_rounds(max_msg_size=2 * mib) as (broker, rounds):
        talk, client, transport = connect(broker, 16 * mib)
        for _ in range(7):
            await talk.say(commands.publish("t", bytes(mib)), b"NOP\n")
            await wait_all_tasks_blocked()
        assert len(transport.incoming) == 0
        await talk.say(commands.publish("t", bytes(mib + 1)), b"NOP\n")
        await wait_all_tasks_blocked()
        rounds["t"].next_round()
        await talk.say(commands.publish("u", b"x"))
        await wait_all_tasks_blocked()
        assert len(transport.incoming) > 0
        assert "u" not in rounds
        rounds.finish("t")
        for _ in range(8):
            await talk.response()
        await wait_all_tasks_blocked()
        assert len(transport.incoming) == 0
        rounds.finish("u")
        await talk.response()
        assert client.owed is None


async def test_what_is_owed_is_bounded_in_answers(autojump_clock: MockClock) -> None:
    """Beyond 10,000 answers the connection is not read, and a later round does not help."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, transport = connect(broker, 1024 * 1024)
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        await talk.say(commands.publish("u", b"a") * 10_000)
        await wait_all_tasks_blocked()
        await talk.say(commands.publish("v", b"a"))
        await wait_all_tasks_blocked()
        assert len(transport.incoming) > 0
        while rounds["u"].rounds:
            rounds.finish("u")
        await wait_all_tasks_blocked()
        assert "v" not in rounds
        rounds.finish("t")
        for _ in range(10_001):
            await talk.response()
        await wait_all_tasks_blocked()
        rounds.finish("v")
        await talk.response()


async def test_refused_fins_count_in_what_is_owed(autojump_clock: MockClock) -> None:
    """A flood of commands that are refused is not answered in memory without end."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, transport = connect(broker, 1024 * 1024)
        await talk.subscribe("own", "c")
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        await talk.say(commands.finish(UNKNOWN) * 3000)
        await wait_all_tasks_blocked()
        await talk.say(commands.publish("u", b"a"))
        await wait_all_tasks_blocked()
        assert "u" not in rounds
        assert len(transport.incoming) > 0
        rounds.finish("t")
        await talk.response()
        for _ in range(3000):
            await talk.error()
        await wait_all_tasks_blocked()
        rounds.finish("u")
        await talk.response()


async def test_a_client_that_takes_no_answers_is_not_read_on(autojump_clock: MockClock) -> None:
    """Answers that a round released and the client does not read bound what it may publish."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, client, transport = connect(broker, 100)
        for _ in range(40):
            talk.stream.send_nowait(commands.publish("t", b"a"))
            await wait_all_tasks_blocked()
            rounds.finish_all()
            if len(transport.incoming):
                break
        else:
            pytest.fail("it was read on and on")
        published = client.pub_counts["t"]
        for _ in range(published):
            await talk.response()
        await wait_all_tasks_blocked()
        assert client.pub_counts["t"] == published + 1
        rounds.finish_all()
        await talk.response()


async def test_one_connection_waits_for_rounds_of_many_topics(
    autojump_clock: MockClock,
) -> None:
    """Whatever the order in which they end, answers go out up to the first that is not safe."""
    topics = "abcdef"
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker)
        for topic in topics * 2:
            await talk.say(commands.publish(topic, b"x"))
        await wait_all_tasks_blocked()
        for topic in "fedcb":
            rounds.finish(topic)
        await talk.silence(1)
        rounds.finish("a")
        for _ in range(12):
            await talk.response()


async def test_a_refusal_at_once_comes_after_what_is_owed(autojump_clock: MockClock) -> None:
    """A publish that is refused without a round waits behind the answers before it."""
    async with nsqd_with_rounds() as (broker, rounds):
        talk, _, _ = connect(broker)
        await talk.say(commands.publish("t", b"a"))
        await wait_all_tasks_blocked()
        rounds["t"].refuses = True
        await talk.say(commands.publish("t", b"b"))
        await talk.silence(1)
        rounds.finish("t")
        assert shown(await talk.end()) == [
            "OK",
            "E_PUB_FAILED PUB failed no space left on device",
        ]


async def test_publishers_wait_only_while_the_disk_is_behind(autojump_clock: MockClock) -> None:
    """Room in memory is no question where the backend takes all that is published."""
    async with nsqd_with_rounds(mem_queue_size=1) as (broker, rounds):
        topic = broker.topic("t")
        publish(broker, "t", b"a")
        topic.channel("c")
        topic.core.store.memory.append(segment(0, 1))  # what a deleted channel left behind
        assert not topic.should_wait(1000)
        rounds["t"].behind = True
        assert topic.should_wait(1)
        talk, client, _ = connect(broker)
        await talk.say(commands.publish("t", b"b"))
        await wait_all_tasks_blocked()
        assert client.pub_counts["t"] == 0
        rounds["t"].behind = False
        rounds["t"].caught_up()
        await wait_all_tasks_blocked()
        rounds.finish("t")
        await talk.response()


async def test_consumers_get_what_is_safe(autojump_clock: MockClock) -> None:
    """A message is delivered when its round has ended well, and never if it has failed."""
    async with nsqd_with_rounds() as (broker, rounds):
        consumer = Conversation.begin(broker)
        await consumer.subscribe("t", "c", ready=10)
        publish(broker, "t", b"safe")
        rounds["t"].next_round()
        publish(broker, "t", b"lost")
        await consumer.silence(1)
        rounds.finish("t")
        message = await consumer.message()
        assert isinstance(message, MessageFrame)
        assert message.body == b"safe"
        rounds.finish("t", "broken")
        await consumer.silence(1)
        await consumer.say(commands.finish(message.message_id))
        await wait_all_tasks_blocked()
        check_balances(broker)
