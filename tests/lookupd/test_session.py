"""The TCP protocol without sockets (lookupd.session)."""

from __future__ import annotations

import logging
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookupd.registry import Registry
from lookupd.session import MAGIC, MAX_BODY_BYTES, MAX_LINE_BYTES, Session
from tests.lookupd.support import IDENTITY, found, frames, identify, identify_with

PEER = "127.0.0.1:50001"


def begin() -> tuple[Session, Registry]:
    """A session, and the database that it fills."""
    registry = Registry(10**9, 10**9)
    return Session(registry, PEER, IDENTITY), registry


def answers(*pieces: bytes) -> list[bytes]:
    """What a peer is answered who sends the magic and ``pieces``, and then no more."""
    session, _ = begin()
    sent = b"".join(session.receive(piece, 0) for piece in (MAGIC, *pieces))
    return frames(sent + session.end_of_input())


def test_a_producer_is_known_until_its_connection_ends() -> None:
    """IDENTIFY and REGISTER make it found; afterwards the topic and channel stay."""
    session, registry = begin()
    sent = session.receive(MAGIC + identify() + b"REGISTER t c\nPING\n", 5)
    assert frames(sent) == [IDENTITY, b"OK", b"OK"]
    [one] = found(registry.lookup("t", 5))
    assert (one.remote_address, one.node, one.last_update_ns) == (PEER, "10.0.0.1:4151", 5)
    session.receive(b"PING\n", 7)
    assert one.last_update_ns == 7
    session.close()
    assert session.ended
    assert found(registry.lookup("t", 5)) == []
    assert (registry.topics(), list(registry.channels("t"))) == (["t"], ["c"])


def test_what_is_unregistered_is_gone_and_nothing_else() -> None:
    """A channel alone, then the topic with its channels."""
    session, registry = begin()
    session.receive(MAGIC + identify() + b"REGISTER t c\nREGISTER t d\nREGISTER u c\n", 0)

    def keys() -> list[str]:
        while registry.sweep(1):
            pass
        return sorted(key for key, _ in filter(None, registry.everything()))

    assert frames(session.receive(b"UNREGISTER t c\n", 0)) == [b"OK"]
    assert keys() == ["channel:t:d", "channel:u:c", "client::", "topic:t:", "topic:u:"]
    assert frames(session.receive(b"UNREGISTER t\n", 0)) == [b"OK"]
    assert keys() == ["channel:u:c", "client::", "topic:u:"]


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"NOPE\n", b"E_INVALID invalid command NOPE"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"REGISTER\n", b"E_INVALID client must IDENTIFY"),
        (identify(tcp_port=None), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify(version=""), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify_with(b"null"), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify_with(b"[]"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify_with(b"[" * 50_000), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(tcp_port=4150.5), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(tcp_port=True), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(tcp_port=2**63), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n\x00", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\x00\x00\x00\x05{}", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size 2147483647"),
        (b"x" * MAX_LINE_BYTES, b"E_INVALID command line is too long"),
        (b"\xff\xfe'\n", b"E_INVALID invalid command \xff\xfe'"),
    ],
)
def test_a_mistake_is_answered_and_ends_the_connection(sent: bytes, answer: bytes) -> None:
    """What comes after it is not looked at."""
    assert answers(sent) == [answer]
    if b"failed to read" not in answer:
        assert answers(sent, b"\nPING\n") == [answer]


@pytest.mark.parametrize(
    "sent",
    [
        b"NOPE\r[nsqlookupd] FATAL: \x1b[31m" + b"x" * 3000 + b"\n",
        identify(broadcast_address="a\n[nsqlookupd] FATAL: \x1b[31m" + "x" * 3000),
        identify(version="a\n[nsqlookupd] FATAL: \x1b[31m" + "x" * 3000),
    ],
)
def test_the_log_shows_a_tame_part_of_what_was_sent(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of bounded length, whatever a peer calls itself or its command."""
    with caplog.at_level(logging.INFO, "trionsq"):
        answers(sent)
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 500


def test_members_may_be_spelled_in_any_case() -> None:
    """As Go reads JSON; the last of a name counts."""
    body = identify(Tcp_Port=1, VERSION="2", tcp_port=None)
    assert answers(body) == [IDENTITY]


def test_an_empty_body_is_no_json() -> None:
    """Its size is valid, its content is not."""
    assert answers(b"IDENTIFY\n\x00\x00\x00\x00") == [
        b"E_BAD_BODY IDENTIFY failed to decode JSON body"
    ]


def test_the_largest_body_is_taken() -> None:
    """64 KiB is the limit, far beyond what an nsqd sends."""
    body = identify_with(b"{}".ljust(MAX_BODY_BYTES))
    assert answers(body) == [b"E_BAD_BODY IDENTIFY missing fields"]
    over = b"IDENTIFY\n" + struct.pack(">I", MAX_BODY_BYTES + 1)
    assert answers(over) == [b"E_BAD_BODY IDENTIFY invalid body size 65537"]


@pytest.mark.parametrize(
    "line",
    [b"PING\r\n", b"\t PING x \n", " \N{NO-BREAK SPACE}PING\u2003\n".encode(), b"\x85\nPING\n"],
)
def test_white_space_around_a_line_is_trimmed(line: bytes) -> None:
    """All that Unicode calls so, but no byte that merely looks like it."""
    expected = b"E_INVALID invalid command \x85" if line.startswith(b"\x85") else b"OK"
    assert answers(line) == [expected]


def test_an_end_in_between_is_silent() -> None:
    """A connection may end at any time between commands, and in the midst of a line."""
    assert answers() == []
    assert answers(b"PIN") == []
    session, _ = begin()
    assert session.receive(b" ", 0) + session.end_of_input() == b""


def test_the_empty_channel_is_none() -> None:
    """As a trailing space gives it, if something follows."""
    session, registry = begin()
    assert frames(session.receive(MAGIC + identify() + b"REGISTER t  x\n", 0))[1:] == [b"OK"]
    assert (registry.topics(), list(registry.channels("t"))) == (["t"], [])


COMMANDS = st.sampled_from(
    [
        b"PING\n",
        identify(),
        identify(version=None),
        b"REGISTER t c\n",
        b"REGISTER e#ephemeral\n",
        b"UNREGISTER t c\n",
        b"UNREGISTER e#ephemeral\n",
        b"REGISTER $\n",
        b"\n",
    ]
)


@given(st.lists(COMMANDS, max_size=8), st.lists(st.integers(0, 400), max_size=10))
def test_where_reads_end_does_not_matter(commands: list[bytes], cuts: list[int]) -> None:
    """Cut anywhere, the same bytes get the same answers and leave the same database."""
    sent = MAGIC + b"".join(commands)
    whole, whole_registry = begin()
    cut, cut_registry = begin()
    expected = whole.receive(sent, 0) + whole.end_of_input()
    ends = [*sorted(min(end, len(sent)) for end in cuts), len(sent)]
    starts = [0, *ends[:-1]]
    pieces = [sent[start:end] for start, end in zip(starts, ends, strict=True)]
    got = b"".join(cut.receive(piece, 0) for piece in pieces) + cut.end_of_input()
    assert got == expected
    assert sorted(cut_registry.topics()) == sorted(whole_registry.topics())
    assert repr(cut_registry) == repr(whole_registry)


@given(st.lists(st.binary(max_size=60) | COMMANDS, max_size=12))
def test_any_bytes_are_answered_and_held_within_bounds(pieces: list[bytes]) -> None:
    """No input is a defect; answers are whole frames; nothing is kept of an ended connection."""
    session, registry = begin()
    sent = session.receive(MAGIC, 0)
    for piece in pieces:
        sent += session.receive(piece, 0)
    sent += session.end_of_input()
    session.close()
    frames(sent)
    assert repr(session) == f"<Session {PEER} awaits nothing, 0 bytes>"
    assert list(registry.active_producers(0)) == []


def test_a_token_may_be_needed() -> None:
    """Without the right one nsqd is refused, and nothing of the token is in a log or an answer."""
    for token, is_admitted in (("right", True), ("wrong", False), ("", False)):
        registry = Registry(10**9, 10**9)
        session = Session(registry, "10.0.0.9:1", b"{}", lambda sent: sent == "right")
        members = {"auth_token": token} if token else {}
        sent = session.receive(MAGIC + identify(**members) + b"REGISTER t\n", 0)
        if is_admitted:
            assert frames(sent) == [b"{}", b"OK"]
        else:
            assert frames(sent) == [b"E_UNAUTHORIZED IDENTIFY needs the token of an nsqd"]
        assert session.ended is not is_admitted
        assert bool(list(registry.topics())) is is_admitted
        assert not token or token not in repr(session)
