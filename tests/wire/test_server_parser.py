"""nsqd's parser against a plain reading of the protocol (trionsq.wire.server)."""

from __future__ import annotations

import struct
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.reference import TOO_LONG, Feeder, Outcome, Reference, parse
from trionsq.wire import mpub
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import Finish, Identify, Publish, PublishMany, PublishManyBegins
from trionsq.wire.lines import CommandLimits, LineTooLong
from trionsq.wire.server import ServerParser
from trionsq.wire.states import ConnectionState

LIMITS = CommandLimits(max_msg_size=40, max_body_size=200)
MAGIC = b"  V2"
SUB = b"SUB t c\n"
ID = b"0123456789abcdef"


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def mpub_body(bodies: list[bytes], stated: int | None = None) -> bytes:
    records = pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return pack(">i", len(records) if stated is None else stated) + records


# Streams of commands: runs, odd forms, and faults.

hex_ids = st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex().encode())
odd_ids = st.text("FIN 0af\r\nXé", min_size=14, max_size=18).map(lambda text: text.encode("latin1"))
ids = st.one_of(hex_ids, hex_ids, hex_ids, odd_ids)
ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b" \n", b" surplus\n", b"  \r\n"])
topics = st.sampled_from([b"t", b"t", b"other", b"a.b-c_d#ephemeral"])
bodies = st.one_of(
    st.just(b"same size"), st.binary(min_size=1, max_size=40), st.just(b"PUB t\n\x00\x00\x00\x01a")
)
fin_lines = st.builds(lambda id_: b"FIN " + id_ + b"\n", hex_ids)
fin_runs = st.lists(fin_lines, min_size=1, max_size=60).map(b"".join)
pubs = st.builds(lambda topic, end, body: b"PUB " + topic + end + sized(body), topics, ends, bodies)
pub_runs = st.builds(
    lambda line, run: b"".join(line + sized(body) for body in run),
    st.builds(lambda topic, end: b"PUB " + topic + end, topics, ends),
    st.lists(bodies, min_size=1, max_size=12),
)
mpubs = st.builds(
    lambda topic, end, run, stated: b"MPUB " + topic + end + mpub_body(run, stated),
    topics,
    ends,
    st.lists(st.one_of(st.just(b"equal"), st.binary(min_size=1, max_size=12)), min_size=1),
    st.sampled_from([None, None, 1, 200]),
)
equal_mpubs = st.builds(
    lambda size, count: b"MPUB t\n" + mpub_body([b"x" * size] * count),
    st.integers(1, 9),
    st.integers(1, 15),
)
dpubs = st.builds(
    lambda topic, delay, end, body: b"DPUB " + topic + b" " + delay + end + sized(body),
    topics,
    st.sampled_from([b"0", b"", b"007", b"3600000"]),
    ends,
    bodies,
)
one_id = st.builds(
    lambda name, id_, end: name + b" " + id_ + end,
    st.sampled_from([b"FIN", b"TOUCH"]),
    ids,
    ends,
)
reqs = st.builds(
    lambda id_, delay, end: b"REQ " + id_ + b" " + delay + end,
    ids,
    st.sampled_from([b"0", b"", b"1", b"99999999", b"9" * 40, b"0" * 30 + b"5"]),
    ends,
)
readies = st.builds(
    lambda text, end: b"RDY" + text + end,
    st.sampled_from([b"", b" ", b" 0", b" 7", b" 2500"]),
    st.sampled_from([b"\n", b"\r\n"]),
)
plain = st.builds(
    lambda name, end: name + end, st.sampled_from([b"NOP", b"NOP", b"CLS", b"NOP NOP"]), ends
)
usual = st.one_of(
    fin_runs, fin_runs, pub_runs, pub_runs, mpubs, equal_mpubs, dpubs, one_id, reqs, readies, plain
)
starts = st.sampled_from(
    [
        SUB,
        SUB,
        SUB,
        SUB,
        b"",
        b"IDENTIFY\n" + sized(b"{}"),
        b"AUTH\n" + sized(b"secret") + SUB,
        b"IDENTIFY a b\r\n" + sized(b"{}") + b"SUB t#ephemeral c extra\r\n",
    ]
)
faults = st.sampled_from(
    [
        b"",
        b"\n",
        b"nop\n",
        b" NOP\n",
        b"FIN\n",
        b"FIN 0123456789abcde\nfFIN",
        b"REQ " + ID + b"\n",
        b"REQ " + ID + b" -1\n",
        b"RDY -1\n",
        b"RDY 2501\n",
        b"RDY 123456789012345678\n",
        b"PUB\n",
        b"PUB \n",
        b"PUB t!\n",
        b"PUB t\n" + pack(">i", 0),
        b"PUB t\n" + pack(">i", -1),
        b"PUB t\n" + pack(">i", 41),
        b"DPUB t x\n",
        b"DPUB t 3600001\n",
        b"DPUB t 1\n" + pack(">i", 41),
        b"MPUB t\n" + pack(">i", 0),
        b"MPUB t\n" + pack(">i", 201),
        b"MPUB t\n" + pack(">ii", 200, 40),
        b"MPUB t\n" + pack(">ii", 200, 0),
        b"MPUB t\n" + pack(">iii", 200, 2, 1) + b"a" + pack(">i", -3),
        b"MPUB t\n" + pack(">iii", 200, 3, 1) + b"a" + sized(b"b") + pack(">i", 41),
        b"AUTH x\n",
        b"IDENTIFY\n" + pack(">i", 201),
        b"SUB t c\n",
        b"y" * 16384,
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Mostly good commands; perhaps two bytes swapped, a fault in the middle, the end cut off."""
    parts = [MAGIC, draw(starts), *draw(st.lists(usual, max_size=8))]
    if draw(st.booleans()):
        parts += [draw(faults), *draw(st.lists(usual, max_size=2))]
    data = bytearray(b"".join(parts))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        other = draw(st.integers(0, min(len(data) - 1, at + 22)))
        data[at], data[other] = data[other], data[at]
    if draw(st.integers(0, 3)) == 0:
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


cuts = st.one_of(st.just([2**30]), st.lists(st.integers(1, 90), min_size=1, max_size=20))


@given(streams(), cuts, st.integers(0, 9))
@settings(deadline=None, max_examples=600)
def test_any_stream_means_what_a_plain_reading_says(
    data: bytes, sizes: list[int], options: int
) -> None:
    """Commands, fatal error and the answer to an end of input do not depend on the cutting."""
    heartbeats, tls_required = options != 8, options == 9
    expected = Reference(data, LIMITS, heartbeats, tls_required).outcome
    assert parse(data, sizes, LIMITS, heartbeats, tls_required) == expected


@given(streams())
@settings(deadline=None, max_examples=60)
def test_any_stream_byte_by_byte(data: bytes) -> None:
    """The same, when each byte comes alone."""
    assert parse(data, [1], LIMITS) == Reference(data, LIMITS).outcome


@given(
    st.lists(st.one_of(st.integers(1, 300), st.integers(60_000, 200_000)), min_size=1, max_size=5),
    st.integers(3_000, 150_000),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_large_bodies_are_gathered_from_many_reads(
    sizes: list[int], read_size: int, as_one: bool
) -> None:
    """What is larger than a read is put together again, and the commands behind it are intact."""
    run = [b"%06d" % index + b"x" * size for index, size in enumerate(sizes)]
    if as_one:
        publish = b"MPUB t\n" + mpub_body(run)
    else:
        publish = b"".join(b"PUB t\n" + sized(body) for body in run)
    fins = b"FIN " + ID + b"\n"
    data = MAGIC + SUB + fins + publish + fins * 300 + publish + b"RDY 5\n"
    limits = CommandLimits()
    assert parse(data, [read_size], limits) == Reference(data, limits).outcome


# Every error text.

SUBSCRIBED = SUB
CLOSING = SUB + b"CLS\n"
STATE_ERRORS = [
    (before, command, "E_INVALID", b"cannot %b in current state" % command.split()[0])
    for before, commands in {
        b"": (b"RDY 1", b"FIN x", b"REQ", b"TOUCH", b"CLS"),
        SUBSCRIBED: (b"IDENTIFY", b"AUTH", b"SUB t c"),
        CLOSING: (b"IDENTIFY", b"AUTH", b"SUB", b"CLS"),
    }.items()
    for command in (one + b"\n" for one in commands)
]
ERRORS = [
    *STATE_ERRORS,
    (b"", b"\n", "E_INVALID", b"invalid command "),
    (b"", b"\r\n", "E_INVALID", b"invalid command "),
    (b"", b" PUB t\n", "E_INVALID", b"invalid command "),
    (b"", b"pub t\n", "E_INVALID", b"invalid command pub"),
    (b"", b"BOGUS a b\n", "E_INVALID", b"invalid command BOGUS"),
    (b"", b"\xe9\n", "E_INVALID", b"invalid command \xe9"),
    (b"", b"IDENTIFY\n" + pack(">i", 201), "E_BAD_BODY", b"IDENTIFY body too big 201 > 200"),
    (b"", b"IDENTIFY\n" + pack(">i", 0), "E_BAD_BODY", b"IDENTIFY invalid body size 0"),
    (b"", b"IDENTIFY\n" + pack(">i", -9), "E_BAD_BODY", b"IDENTIFY invalid body size -9"),
    (b"", b"AUTH x\n", "E_INVALID", b"AUTH invalid number of parameters"),
    (b"", b"AUTH \n", "E_INVALID", b"AUTH invalid number of parameters"),
    (b"", b"AUTH\n" + pack(">i", 201), "E_BAD_BODY", b"AUTH body too big 201 > 200"),
    (b"", b"AUTH\n" + pack(">i", 0), "E_BAD_BODY", b"AUTH invalid body size 0"),
    (b"", b"SUB t\n", "E_INVALID", b"SUB insufficient number of parameters"),
    (b"", b"SUB t! c\n", "E_BAD_TOPIC", b'SUB topic name "t!" is not valid'),
    (b"", b"SUB  c\n", "E_BAD_TOPIC", b'SUB topic name "" is not valid'),
    (b"", b"SUB t c\x01\n", "E_BAD_CHANNEL", b'SUB channel name "c\\x01" is not valid'),
    (b"", b"SUB t " + b"c" * 65 + b"\n", "E_BAD_CHANNEL",
     b'SUB channel name "' + b"c" * 65 + b'" is not valid'),
    (SUB, b"RDY x\n", "E_INVALID", b"RDY could not parse count x"),
    (SUB, b"RDY -1\n", "E_INVALID", b"RDY could not parse count -1"),
    (SUB, b"RDY +1\n", "E_INVALID", b"RDY could not parse count +1"),
    (SUB, b"RDY 2501\n", "E_INVALID", b"RDY count 2501 out of range 0-2500"),
    (SUB, b"FIN\n", "E_INVALID", b"FIN insufficient number of params"),
    (SUB, b"FIN \n", "E_INVALID", b"invalid message ID"),
    (SUB, b"FIN " + ID + b"0\n", "E_INVALID", b"invalid message ID"),
    (SUB, b"REQ " + ID + b"\n", "E_INVALID", b"REQ insufficient number of params"),
    (SUB, b"REQ x 1\n", "E_INVALID", b"invalid message ID"),
    (SUB, b"REQ " + ID + b" -1\n", "E_INVALID", b"REQ could not parse timeout -1"),
    (SUB, b"TOUCH\n", "E_INVALID", b"TOUCH insufficient number of params"),
    (CLOSING, b"TOUCH x\n", "E_INVALID", b"invalid message ID"),
    (b"", b"PUB\n", "E_INVALID", b"PUB insufficient number of parameters"),
    (b"", b"PUB  t\n", "E_BAD_TOPIC", b'PUB topic name "" is not valid'),
    (b"", b'PUB a"b\n', "E_BAD_TOPIC", b'PUB topic name "a\\"b" is not valid'),
    (b"", b"PUB t\n" + pack(">i", 0), "E_BAD_MESSAGE", b"PUB invalid message body size 0"),
    (b"", b"PUB t\n" + pack(">i", -1), "E_BAD_MESSAGE", b"PUB invalid message body size -1"),
    (b"", b"PUB t\n" + pack(">i", 41), "E_BAD_MESSAGE", b"PUB message too big 41 > 40"),
    (b"", b"DPUB t\n", "E_INVALID", b"DPUB insufficient number of parameters"),
    (b"", b"DPUB # x\n", "E_BAD_TOPIC", b'DPUB topic name "#" is not valid'),
    (b"", b"DPUB t x\n", "E_INVALID", b"DPUB could not parse timeout x"),
    (b"", b"DPUB t -1\n", "E_INVALID", b"DPUB could not parse timeout -1"),
    (b"", b"DPUB t 3600001\n", "E_INVALID", b"DPUB timeout 3600001 out of range 0-3600000"),
    (b"", b"DPUB t 1\n" + pack(">i", 0), "E_BAD_MESSAGE", b"DPUB invalid message body size 0"),
    (b"", b"DPUB t 1\n" + pack(">i", 41), "E_BAD_MESSAGE", b"DPUB message too big 41 > 40"),
    (b"", b"MPUB\n", "E_INVALID", b"MPUB insufficient number of parameters"),
    (b"", b"MPUB !\n", "E_BAD_TOPIC", b'E_BAD_TOPIC MPUB topic name "!" is not valid'),
    (b"", b"MPUB t\n" + pack(">i", 0), "E_BAD_BODY", b"MPUB invalid body size 0"),
    (b"", b"MPUB t\n" + pack(">i", -1), "E_BAD_BODY", b"MPUB invalid body size -1"),
    (b"", b"MPUB t\n" + pack(">i", 2**31 - 1), "E_BAD_BODY",
     b"MPUB body too big 2147483647 > 200"),
    (b"", b"MPUB t\n" + pack(">ii", 9, 0), "E_BAD_BODY", b"MPUB invalid message count 0"),
    (b"", b"MPUB t\n" + pack(">ii", 9, -1), "E_BAD_BODY", b"MPUB invalid message count -1"),
    (b"", b"MPUB t\n" + pack(">ii", 9, 40), "E_BAD_BODY", b"MPUB invalid message count 40"),
    (b"", b"MPUB t\n" + pack(">iii", 9, 2, 0), "E_BAD_MESSAGE",
     b"MPUB invalid message(0) body size 0"),
    (b"", b"MPUB t\n" + pack(">iii", 9, 2, 1) + b"a" + pack(">i", -1), "E_BAD_MESSAGE",
     b"MPUB invalid message(1) body size -1"),
    (b"", b"MPUB t\n" + pack(">iii", 9, 2, 41), "E_BAD_MESSAGE",
     b"MPUB message too big 41 > 40"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2**20])
@pytest.mark.parametrize(("before", "command", "code", "text"), ERRORS)
def test_refusals(before: bytes, command: bytes, code: str, text: bytes, size: int) -> None:
    """Each fault has its code and text, as soon as it can be seen, however the bytes come."""
    assert parse(MAGIC + before + command, [size], LIMITS).failure == (code, text)


ENDINGS = [
    (b"IDENTIFY\n\x00\x00\x00", "E_BAD_BODY", b"IDENTIFY failed to read body size"),
    (b"IDENTIFY\n" + pack(">i", 2) + b"{", "E_BAD_BODY", b"IDENTIFY failed to read body"),
    (b"AUTH\n", "E_BAD_BODY", b"AUTH failed to read body size"),
    (b"AUTH\n" + pack(">i", 2), "E_BAD_BODY", b"AUTH failed to read body"),
    (b"PUB t\n", "E_BAD_MESSAGE", b"PUB failed to read message body size"),
    (b"PUB t\n" + pack(">i", 2) + b"a", "E_BAD_MESSAGE", b"PUB failed to read message body"),
    (b"DPUB t 1\n", "E_BAD_MESSAGE", b"DPUB failed to read message body size"),
    (b"DPUB t 1\n" + pack(">i", 2), "E_BAD_MESSAGE", b"DPUB failed to read message body"),
    (b"MPUB t\n\x00", "E_BAD_BODY", b"MPUB failed to read body size"),
    (b"MPUB t\n" + pack(">i", 9), "E_BAD_BODY", b"MPUB failed to read message count"),
    (b"MPUB t\n" + pack(">ii", 9, 1), "E_BAD_MESSAGE",
     b"MPUB failed to read message(0) body size"),
    (b"MPUB t\n" + pack(">iii", 9, 3, 1) + b"a" + sized(b"b"), "E_BAD_MESSAGE",
     b"MPUB failed to read message(2) body size"),
    (b"MPUB t\n" + pack(">iii", 9, 1, 2) + b"a", "E_BAD_MESSAGE",
     b"MPUB failed to read message body"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2**20])
@pytest.mark.parametrize(("command", "code", "text"), ENDINGS)
def test_end_of_input_in_a_body(command: bytes, code: str, text: bytes, size: int) -> None:
    """Input that ends inside of a size or body is answered with what could not be read."""
    outcome = parse(MAGIC + command, [size], LIMITS)
    assert (outcome.failure, outcome.at_eof) == (None, (code, text))


@pytest.mark.parametrize("data", [b"", b" ", b"  V", MAGIC, MAGIC + b"NO", MAGIC + b"NOP\nPUB t"])
def test_end_of_input_elsewhere_is_silent(data: bytes) -> None:
    """Input that ends in the magic, in a line or between commands just closes."""
    assert parse(data, [1], LIMITS) == Outcome()


@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"\x00\x00\x00\x00", b" V2\n"])
def test_another_magic_is_refused_without_text(magic: bytes) -> None:
    """Four other bytes are E_BAD_PROTOCOL, bare."""
    assert parse(magic + b"NOP\n", [3], LIMITS).failure == ("E_BAD_PROTOCOL", b"")


@pytest.mark.parametrize("size", [1000, 2**20])
def test_a_line_must_fit_the_read_buffer(size: int) -> None:
    """16384 bytes with the newline are read; one more ends the connection without a frame."""
    fits = b"NOP" + b" " * 16380 + b"\n"
    assert parse(MAGIC + fits, [size], LIMITS) == Outcome()
    for line in (b"NOP" + b" " * 16381 + b"\n", b"N" * 16384):
        assert parse(MAGIC + line, [size], LIMITS).failure == TOO_LONG


def test_tls_required_comes_before_anything_else() -> None:
    """Without TLS only IDENTIFY passes, and the text names any other command, also unknown ones."""
    for name in (b"NOP", b"BOGUS", b"", b"FIN"):
        text = b"cannot " + name + b" in current state (TLS required)"
        failure = parse(MAGIC + name + b"\n", [99], LIMITS, tls_required=True).failure
        assert failure == ("E_INVALID", text)
    outcome = parse(MAGIC + b"IDENTIFY\n" + sized(b"{}"), [99], LIMITS, tls_required=True)
    assert outcome == Outcome([("IDENTIFY", b"{}")])


def test_sub_needs_heartbeats_before_parameters() -> None:
    """A client without heartbeats hears of that first."""
    failure = parse(MAGIC + b"SUB\n", [99], LIMITS, heartbeats=False).failure
    assert failure == ("E_INVALID", b"cannot SUB with heartbeats disabled")


def test_rdy_in_closing_is_not_even_parsed() -> None:
    """After CLS any RDY is passed over."""
    outcome = parse(MAGIC + CLOSING + b"RDY -x\nRDY 99999\n", [99], LIMITS)
    assert outcome == Outcome([("SUB", "t", "c"), ("CLS",)])


def test_an_event_acts_before_the_bytes_behind_it_are_read() -> None:
    """What the broker changes after an event (TLS, heartbeats) holds for the next command."""
    parser = ServerParser(LIMITS, tls_required=True)
    parser.receive(MAGIC + b"IDENTIFY\n" + sized(b"{}") + SUB)
    assert parser.next_event() == Identify(b"{}")
    parser.tls_required = False
    parser.heartbeats = False
    with pytest.raises(ProtocolError, match="heartbeats disabled"):
        parser.next_event()


def test_the_rest_behind_identify_goes_to_the_upgraded_stream() -> None:
    """`pop_rest` gives every byte behind the last event, and the parser goes on without them."""
    parser = ServerParser(LIMITS)
    parser.receive(MAGIC + b"IDENTIFY\n" + sized(b"{}") + b"\x16\x03")
    assert parser.next_event() == Identify(b"{}")
    assert (parser.pop_rest(), parser.buffered) == (b"\x16\x03", 0)
    parser.receive(SUB)
    assert parser.next_event() is not None
    assert parser.state is ConnectionState.SUBSCRIBED


def test_runs_are_one_event() -> None:
    """FINs, and PUBs with the same line, that were read together come as one event."""
    parser = ServerParser(LIMITS)
    pub = b"PUB t\n" + sized(b"abc")
    parser.receive(MAGIC + SUB + b"FIN %b\n" % ID * 400 + pub * 30 + b"PUB u\n" + sized(b"z"))
    parser.next_event()
    assert parser.next_event() == Finish([ID] * 400)
    publish, other = parser.next_event(), parser.next_event()
    assert isinstance(publish, Publish)
    assert isinstance(other, Publish)
    assert (publish.bodies.count, publish.bodies.size, other.topic) == (30, 3, "u")


def test_mpub_tells_of_its_topic_before_its_fault() -> None:
    """The topic of a refused MPUB is created, so its line is an event of its own; whole, it isn't.

    The fault is raised by the next call, and by each one after it.
    """
    parser = ServerParser(LIMITS)
    parser.receive(MAGIC + b"MPUB t\n" + mpub_body([b"a"]) + b"MPUB t\n" + pack(">i", 0))
    assert isinstance(parser.next_event(), PublishMany)
    assert parser.next_event() == PublishManyBegins("t")
    for _ in range(2):
        with pytest.raises(ProtocolError, match="invalid body size 0"):
            parser.next_event()


def test_a_line_too_long_stays_too_long() -> None:
    """Asking again does not skip it."""
    parser = ServerParser(LIMITS)
    parser.receive(MAGIC + b"x" * 20000 + b"\nNOP\n")
    for _ in range(2):
        with pytest.raises(LineTooLong):
            parser.next_event()


# Work and memory in proportion to the input.


class Counted:
    """A struct that counts how often it is used."""

    def __init__(self) -> None:
        self.uses = 0

    def unpack_from(self, buffer: bytes | bytearray, at: int) -> tuple[int]:
        self.uses += 1
        value: tuple[int] = struct.unpack_from(">i", buffer, at)
        return value


@pytest.mark.parametrize("stated", [1, None])
@pytest.mark.parametrize("spread", [0, 1])
def test_a_large_mpub_in_small_pieces_is_walked_once(
    spread: int, stated: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 MB in pieces of 64 bytes: each size is looked at a few times, the buffer copied rarely.

    Also when the body size was stated too small.
    """
    count = 50_000
    run = [b"x" * (90 + spread * (index % 7)) for index in range(count)]
    data = MAGIC + b"MPUB t\n" + mpub_body(run, stated)
    counted = Counted()
    compared = 0

    def same_size_prefix(buffer: bytes | bytearray, at: int, records: int) -> bool:
        nonlocal compared
        compared += records
        return compare(buffer, at, records)

    compare = mpub.same_size_prefix
    monkeypatch.setattr(mpub, "_INT32", counted)
    monkeypatch.setattr(mpub, "same_size_prefix", same_size_prefix)
    parser = ServerParser(CommandLimits())
    feeder = Feeder(parser)
    buffer: object = None
    buffers = 0
    for at in range(0, len(data), 64):
        feeder.feed(data[at : at + 64])
        if parser.buffered > 100_000 and parser._buffer is not buffer:
            buffer, buffers = parser._buffer, buffers + 1
            assert buffers <= 2
    assert feeder.end() == Outcome([("MPUB line", "t"), ("MPUB", "t", *run)])
    assert counted.uses < 2 * count + len(data) // 64 + 10
    assert compared < 4 * count
    assert parser.buffered == 0


class Sliced(bytes):
    """Bytes that count how much was cut from them."""

    cut = 0

    def __getitem__(self, key: slice) -> bytes:  # type: ignore[override]
        part = super().__getitem__(key)
        Sliced.cut += len(part)
        return part


@pytest.mark.parametrize(
    "unit",
    [
        b"FIN " + ID + b"\nNOP\n",
        b"FIN " + ID + b"\nFIN " + ID + b"\r\n",
        b"FIN " + ID[:-1] + b"G\n",
        b"PUB t\n" + sized(b"a") + b"PUB t\n" + sized(b"ab"),
        b"PUB t\n" + sized(b"a") + b"NOP\n",
        b"MPUB t\n" + mpub_body([b"a", b"a", b"bc"]),
    ],
)
def test_short_runs_cost_no_more_than_their_bytes(unit: bytes) -> None:
    """A read full of runs that end at once is not looked through again for each of them."""
    Sliced.cut = 0
    data = MAGIC + SUB + unit * (131_072 // len(unit))
    feeder = Feeder(ServerParser(LIMITS))
    feeder.feed(Sliced(data))
    assert feeder.end() == Reference(data, LIMITS).outcome
    assert 0 < Sliced.cut < 40 * len(data)


@pytest.mark.parametrize(
    "hostile",
    [
        b"PUB t\n" + pack(">i", 2**31 - 1),
        b"DPUB t 1\n" + pack(">i", 2**31 - 1),
        b"MPUB t\n" + pack(">i", 2**31 - 1),
        b"MPUB t\n" + pack(">ii", 100, 2**31 - 1),
        b"MPUB t\n" + pack(">iii", 100, 5, 2**31 - 1),
        b"IDENTIFY\n" + pack(">i", 2**31 - 1),
        b"AUTH\n" + pack(">i", 2**31 - 1),
    ],
)
def test_a_hostile_size_is_refused_before_its_bytes_come(hostile: bytes) -> None:
    """Nothing is gathered for a size over the limit."""
    failure = parse(MAGIC + hostile, [1], CommandLimits()).failure
    assert failure is not None
    assert b"2147483647" in failure[1]
