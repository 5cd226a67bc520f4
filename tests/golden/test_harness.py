"""The replay itself: it must notice what it is there to notice."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import needs
from tests.golden.admin_cases import ADMIN_FILE, ADMIN_INSTEAD_FILE, read_admin_cases
from tests.golden.cutting import CUTTINGS, Cutter, Cutting
from tests.golden.interfaces import Connection, HttpAnswer
from tests.golden.peer import TranscriptMismatchError
from tests.golden.replay_http import compare_answer, compare_json
from tests.golden.replay_tcp import HEARTBEAT, LAST_ANSWERS, LAST_COMMAND, replay_tcp_case
from tests.golden.transcripts import (
    HTTP_FILE,
    HTTP_INSTEAD_FILE,
    TCP_FILE,
    TCP_INSTEAD_FILE,
    Expect,
    ExpectClose,
    ExpectNone,
    Json,
    Request,
    Response,
    Send,
    SendFill,
    Server,
    Sleep,
    TcpCase,
    TcpStep,
    load_http_cases,
    load_tcp_cases,
)

OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
KNOWN_NEEDS = {"tls", "compression", "auth", "disk", "e2e", "stats_text", "config", "debug"}


class ScriptedConnection:
    """Plays what it was given, then ends or, with ``stays_open``, stays silent.

    It answers the last command, and closes. Input breaks after ``hears`` bytes.
    """

    def __init__(self, says: bytes, *, stays_open: bool, hears: int, answer: bytes) -> None:
        self.says = says
        self.stays_open = stays_open
        self.heard = b""
        self.closed = False
        self._hears = hears
        self._answer = answer

    async def send_all(self, data: bytes) -> None:
        """See Connection."""
        if len(self.heard) >= self._hears:
            raise trio.BrokenResourceError
        self.heard += data
        if self.heard.endswith(LAST_COMMAND) and self.stays_open:
            self.says += self._answer
            self.stays_open = not self._answer

    async def receive_some(self) -> bytes:
        """See Connection; one byte at a time."""
        if not self.says and self.stays_open:
            await trio.sleep(math.inf)
        await trio.lowlevel.checkpoint()
        data, self.says = self.says[:1], self.says[1:]
        return data

    async def shutdown_write(self) -> None:
        """See Connection."""

    async def close(self) -> None:
        """See Connection."""
        self.closed = True


class ScriptedServer:
    """A ServerUnderTest with one scripted connection."""

    addresses: Mapping[str, str] = {}

    def __init__(
        self,
        says: bytes,
        *,
        stays_open: bool = True,
        hears: int = 1 << 30,
        answer: bytes = LAST_ANSWERS[0],
    ) -> None:
        self.connection = ScriptedConnection(
            says, stays_open=stays_open, hears=hears, answer=answer
        )

    async def open_tcp(self) -> Connection:
        """See ServerUnderTest."""
        return self.connection

    async def http(self, request: Request) -> HttpAnswer:
        """See ServerUnderTest."""
        raise NotImplementedError

    async def remove_data_path(self) -> None:
        """See ServerUnderTest."""
        raise NotImplementedError

    def log_tail(self) -> str:
        """See ServerUnderTest."""
        return "the log"


async def replay(server: ScriptedServer, *steps: TcpStep, cutting: Cutting = "whole") -> None:
    """Replay the steps as one case."""
    case = TcpCase("scripted", "", Server((), False, False), None, steps)
    await replay_tcp_case(case, server, Cutter(cutting, "scripted"))


EXPECT_OK = Expect("a", OK_FRAME.hex(), "response OK")


async def test_matching_conversation_passes_and_closes(autojump_clock: trio.abc.Clock) -> None:
    """A server that says what was recorded passes, and its connection is closed."""
    server = ScriptedServer(OK_FRAME, stays_open=False)
    await replay(server, Send("a", "  V2"), EXPECT_OK, ExpectClose("a", False))
    assert server.connection.heard == b"  V2"
    assert server.connection.closed


async def test_captured_bytes_are_sent_back(autojump_clock: trio.abc.Clock) -> None:
    """What an expectation captured fills the placeholders of later sends and expectations."""
    server = ScriptedServer(OK_FRAME * 2)
    await replay(
        server,
        Expect("a", "0000000600000000(?P<m1>[0-9a-f]{4})", ""),
        Send("a", "FIN {{m1}}\n"),
        Expect("a", "0000000600000000{{m1}}", ""),
    )
    assert server.connection.heard == b"FIN OK\n" + LAST_COMMAND


@pytest.mark.parametrize(
    ("says", "stays_open", "step"),
    [
        pytest.param(OK_FRAME[:-1] + b"J", True, EXPECT_OK, id="other bytes"),
        pytest.param(OK_FRAME[:-1], True, EXPECT_OK, id="frame never ends"),
        pytest.param(OK_FRAME[:-1], False, EXPECT_OK, id="closed amid a frame"),
        pytest.param(b"", True, EXPECT_OK, id="silence for a frame"),
        pytest.param(b"x", True, ExpectNone("a", 150), id="data for silence"),
        pytest.param(b"", False, ExpectNone("a", 150), id="close for silence"),
        pytest.param(b"", True, ExpectClose("a", False), id="left open"),
        pytest.param(b"x", False, ExpectClose("a", False), id="data before the close"),
        pytest.param(b"x", True, ExpectClose("a", True), id="discarded and left open"),
    ],
)
async def test_every_departure_is_noticed(
    says: bytes, stays_open: bool, step: TcpStep, autojump_clock: trio.abc.Clock
) -> None:
    """A server that does otherwise than recorded fails the case; the text carries its log."""
    with pytest.raises(TranscriptMismatchError, match="the log"):
        await replay(ScriptedServer(says, stays_open=stays_open), step)


FATAL_FRAME = b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID"
EXPECT_FATAL = Expect("a", FATAL_FRAME.hex(), "error E_INVALID")
IDENTIFY = Send("a", 'IDENTIFY\n{"heartbeat_interval": 1000}')


@pytest.mark.parametrize(
    ("server", "steps"),
    [
        pytest.param(ScriptedServer(OK_FRAME * 2), [EXPECT_OK], id="a frame more"),
        pytest.param(ScriptedServer(OK_FRAME + b"\x00"), [EXPECT_OK], id="a byte more"),
        pytest.param(ScriptedServer(OK_FRAME, stays_open=False), [EXPECT_OK], id="closed"),
        pytest.param(ScriptedServer(OK_FRAME, hears=0), [EXPECT_OK], id="closed for input"),
        pytest.param(ScriptedServer(OK_FRAME, answer=b""), [EXPECT_OK], id="no last answer"),
        pytest.param(
            ScriptedServer(OK_FRAME, answer=LAST_ANSWERS[0] + b"x"),
            [EXPECT_OK],
            id="a byte after the last answer",
        ),
        pytest.param(ScriptedServer(FATAL_FRAME), [EXPECT_FATAL], id="open after a fatal error"),
        pytest.param(
            ScriptedServer(FATAL_FRAME + OK_FRAME, stays_open=False),
            [EXPECT_FATAL],
            id="a frame after a fatal error",
        ),
        pytest.param(
            ScriptedServer(OK_FRAME + HEARTBEAT), [EXPECT_OK, Sleep(29_000)], id="early heartbeat"
        ),
        pytest.param(
            ScriptedServer(HEARTBEAT * 3), [IDENTIFY, Sleep(2_500)], id="too many heartbeats"
        ),
        pytest.param(
            ScriptedServer(OK_FRAME * 2), [EXPECT_OK, Send("a", "FIN\n")], id="after a last send"
        ),
        pytest.param(
            ScriptedServer(OK_FRAME, hears=1), [Send("a", "FIN\n"), EXPECT_OK], id="broken send"
        ),
        pytest.param(
            ScriptedServer(OK_FRAME, hears=0),
            [SendFill("a", b"x", 9), EXPECT_OK],
            id="broken fill",
        ),
    ],
)
async def test_the_end_of_each_connection_is_checked(
    server: ScriptedServer, steps: list[TcpStep], autojump_clock: trio.abc.Clock
) -> None:
    """A case fails if its server sends anything after the last step, or closes where no close is
    recorded, or stays open after a fatal error."""
    with pytest.raises(TranscriptMismatchError, match="after the last step"):
        await replay(server, *steps, cutting="bytewise")


@pytest.mark.parametrize(
    ("server", "steps"),
    [
        pytest.param(ScriptedServer(OK_FRAME), [EXPECT_OK], id="nsqd"),
        pytest.param(ScriptedServer(OK_FRAME, answer=LAST_ANSWERS[1]), [EXPECT_OK], id="lookupd"),
        pytest.param(
            ScriptedServer(HEARTBEAT * 2), [IDENTIFY, Sleep(2_500)], id="heartbeats that are due"
        ),
        pytest.param(
            ScriptedServer(FATAL_FRAME, stays_open=False), [EXPECT_FATAL], id="fatal error"
        ),
        pytest.param(
            ScriptedServer(b"", stays_open=False, hears=1),
            [Send("a", "FIN\n"), ExpectClose("a", False)],
            id="broken send and close",
        ),
    ],
)
async def test_a_case_may_end_silent_or_closed(
    server: ScriptedServer, steps: list[TcpStep], autojump_clock: trio.abc.Clock
) -> None:
    """A connection that is open and silent after the last step passes, as does a recorded close,
    also one that came while the rest of a command was sent."""
    await replay(server, *steps, cutting="bytewise")
    assert server.connection.closed


@given(st.binary(max_size=300), st.sampled_from(CUTTINGS), st.text())
def test_cut_pieces_are_the_whole(data: bytes, cutting: Cutting, seed: str) -> None:
    """However bytes are cut, the pieces put together are the bytes, none is empty, and the
    same seed cuts the same way."""
    pieces = Cutter(cutting, seed).pieces(data)
    assert b"".join(pieces) == data
    assert all(pieces)
    assert pieces == Cutter(cutting, seed).pieces(data)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("<int>", 1.5),
        ("<int>", True),
        ("<number>", None),
        ("<str>", 1),
        ("<addr>", "localhost"),
        (0, False),
        (None, []),
        ([], None),
        ([1], [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
    ],
)
def test_json_differences_are_noticed(expected: Json, got: Json) -> None:
    """Other values, types, lengths, keys or key order are no match."""
    with pytest.raises(TranscriptMismatchError):
        compare_json({"at": expected}, {"at": got}, "$")


def test_a_header_too_many_is_noticed() -> None:
    """Of the compared headers exactly the recorded ones may be present."""
    expected = Response(200, {"allow": "GET"}, "", None, None, False, False)
    compare_answer(expected, HttpAnswer(200, {"allow": "GET", "date": "x"}, b""), {})
    with pytest.raises(TranscriptMismatchError):
        compare_answer(expected, HttpAnswer(200, {"allow": "GET", "vary": "x"}, b""), {})


def test_each_deviation_names_its_cases() -> None:
    """A deviation names a recorded case and a case in instead/, and nothing else is there."""
    recorded = {
        "tcp": {case.name for case in load_tcp_cases(TCP_FILE)},
        "http": {case.name for case in load_http_cases(HTTP_FILE)},
        "nsqadmin": {case["name"] for case in read_admin_cases(ADMIN_FILE)},
    }
    instead = {
        *(case.name for case in load_tcp_cases(TCP_INSTEAD_FILE)),
        *(case.name for case in load_http_cases(HTTP_INSTEAD_FILE)),
        *(case["name"] for case in read_admin_cases(ADMIN_INSTEAD_FILE)),
    }
    deviations = needs.deviations()
    assert all(entry.case in recorded[entry.suite] for entry in deviations)
    assert all(entry.reason for entry in deviations)
    assert {entry.checked_instead for entry in deviations} == instead


def test_only_known_needs_are_left_out() -> None:
    """needs.toml has no entry that deselects nothing because of a slip of the pen."""
    assert needs.not_built().keys() <= KNOWN_NEEDS
