"""What IDENTIFY brings in force (trionsq.wire.identify)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire.errors import ProtocolError
from trionsq.wire.identify import Negotiated, ServerFeatures, answer, negotiate

TRANSCRIPTS = Path(__file__).parents[1] / "golden" / "data" / "tcp.jsonl"
# What the recorded nsqd had on: compression by default, TLS where a case says so.
RECORDED = ServerFeatures(deflate=True, snappy=True)
DEFAULT = Negotiated.default(RECORDED)
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"

Recorded: TypeAlias = tuple[str, bytes, ServerFeatures, bytes]
"""Name of the case, body of IDENTIFY, features of the server, text of the answer."""

FEATURES_OF_ARGS: dict[str, dict[str, Any]] = {
    "--max-output-buffer-size=100": {"max_output_buffer_size": 100},
    "--max-heartbeat-interval=2s": {"max_heartbeat_interval_ms": 2_000},
    "--max-msg-timeout=3s": {"max_msg_timeout_ms": 3_000},
    "--max-msg-timeout=1500ms": {"max_msg_timeout_ms": 1_500},
    "--min-output-buffer-timeout=15ms": {"min_output_buffer_timeout_ms": 15},
    "--max-rdy-count=7": {"max_rdy_count": 7},
    "--msg-timeout=1s": {"msg_timeout_ms": 1_000},
    "--msg-timeout=2s": {"msg_timeout_ms": 2_000},
    "--max-deflate-level=2": {"max_deflate_level": 2},
    "--output-buffer-timeout=50ms": {"output_buffer_timeout_ms": 50},
    "--deflate=false": {"deflate": False},
    "--snappy=false": {"snappy": False},
    "--tls-required=tcp-https": {},
    "--auth-http-address={{auth_addr}}": {"auth_required": True},
}


def recorded() -> Iterator[Recorded]:
    """Yield the first IDENTIFY with a body of each transcript, and the text of its answer."""
    for line in TRANSCRIPTS.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        features = RECORDED
        if case.get("tls"):
            features = dataclasses.replace(features, tls_v1=True)
        if set(case.get("args", ())) <= set(FEATURES_OF_ARGS):
            for argument in case.get("args", ()):
                features = dataclasses.replace(features, **FEATURES_OF_ARGS[argument])
            yield from recorded_in(case, features)


def recorded_in(case: dict[str, Any], features: ServerFeatures) -> Iterator[Recorded]:
    for step, reply in pairwise(case["steps"]):
        line, _, rest = step.get("send", "").encode("latin-1").partition(b"\n")
        text = reply.get("text", "").encode("latin-1")
        whole = len(rest) > 4 and int.from_bytes(rest[:4], "big") == len(rest) - 4
        if line.startswith(b"IDENTIFY") and whole and b"in current state" not in text:
            yield case["name"], rest[4:], features, text
            return


RECORDED_CASES = list(recorded())


def ask(body: bytes | dict[str, object], features: ServerFeatures = RECORDED) -> str:
    """Return the text that the client sees: the answer or the error."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        return answer(negotiate(body, features), features).decode()
    except ProtocolError as error:
        return str(error) if error.fatal else f"not fatal: {error}"


@pytest.mark.parametrize(
    ("body", "features", "text"),
    [case[1:] for case in RECORDED_CASES],
    ids=[case[0] for case in RECORDED_CASES],
)
def test_answers_as_recorded(body: bytes, features: ServerFeatures, text: bytes) -> None:
    """Every IDENTIFY of the transcripts gets, to the byte, what nsqd v1.3.0 answered."""
    assert ask(body, features).encode() == text


def test_the_transcripts_are_not_lost() -> None:
    """The oracle above has a good number of cases, those of limits and errors among them."""
    assert len(RECORDED_CASES) >= 60


def test_nothing_asked_leaves_the_defaults() -> None:
    """An empty object changes nothing, but client_id and hostname become empty."""
    current = Negotiated.default(RECORDED, identifier="127.0.0.1")
    expected = dataclasses.replace(current, client_id="", hostname="")
    assert negotiate(b"{}", RECORDED, current) == expected
    assert (current.heartbeat_interval_ms, current.output_buffer_size) == (30_000, 16_384)


def test_metadata_is_taken_over() -> None:
    """client_id, hostname and user_agent are kept as the client gave them."""
    found = negotiate(b'{"client_id":"c","hostname":"h","user_agent":"u/1"}', RECORDED)
    assert (found.client_id, found.hostname, found.user_agent) == ("c", "h", "u/1")


def test_minus_one_switches_off() -> None:
    """-1 means no heartbeats, no flush by time; without a buffer there is no timeout either."""
    body = b'{"heartbeat_interval":-1,"output_buffer_timeout":-1}'
    found = negotiate(body, RECORDED)
    assert (found.heartbeat_interval_ms, found.output_buffer_timeout_ms) == (None, 0)
    found = negotiate(b'{"output_buffer_size":-1,"output_buffer_timeout":100}', RECORDED)
    assert (found.output_buffer_size, found.output_buffer_timeout_ms) == (1, 0)


def test_second_identify_keeps_what_it_does_not_name() -> None:
    """A value of 0 leaves intervals and buffers as the first IDENTIFY set them."""
    first = negotiate(
        b'{"client_id":"c","heartbeat_interval":5000,"msg_timeout":2000,"sample_rate":7,'
        b'"output_buffer_size":100,"output_buffer_timeout":50}',
        RECORDED,
    )
    second = negotiate(b'{"msg_timeout":3000}', RECORDED, first)
    expected = dataclasses.replace(first, client_id="", msg_timeout_ms=3_000, sample_rate=0)
    assert second == expected


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        (["heartbeat_interval", "output_buffer_timeout"], "heartbeat interval (-9)"),
        (["output_buffer_timeout", "output_buffer_size"], "output buffer timeout (-9)"),
        (["output_buffer_size", "sample_rate"], "output buffer size (-9)"),
        (["sample_rate", "msg_timeout"], "sample rate (-9)"),
        (["msg_timeout"], "msg timeout (-9)"),
    ],
)
def test_first_value_out_of_range_is_named(wishes: list[str], text: str) -> None:
    """Ranges are checked in nsqd's order, whatever the order in the JSON is."""
    body = dict.fromkeys(reversed(wishes), -9)
    assert ask({**body}) == f"E_BAD_BODY IDENTIFY {text} is invalid"


def test_the_smallest_integer_is_one() -> None:
    """Go reads all of an int64; what is refused is the value, by its name."""
    refusal = "E_BAD_BODY IDENTIFY msg timeout (-9223372036854775808) is invalid"
    assert ask(b'{"msg_timeout":-9223372036854775808}') == refusal


def test_upgrades_need_both_sides_and_negotiation() -> None:
    """tls_v1, deflate and snappy are on only if asked for, available, and negotiated."""
    wish = {"feature_negotiation": True, "tls_v1": True, "deflate": True, "snappy": True}
    everything = ServerFeatures(tls_v1=True, deflate=True, snappy=True)
    for deflate in (True, False):
        features = dataclasses.replace(everything, deflate=deflate, snappy=not deflate)
        found = negotiate(json.dumps(wish).encode(), features)
        assert (found.tls_v1, found.deflate, found.snappy) == (True, deflate, not deflate)
    found = negotiate(json.dumps(wish).encode(), ServerFeatures())
    assert (found.tls_v1, found.deflate, found.snappy) == (False, False, False)
    text = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert ask({**wish}, everything) == text
    wish["feature_negotiation"] = False
    found = negotiate(json.dumps(wish).encode(), everything)
    assert (found.tls_v1, found.deflate, found.snappy) == (False, False, False)


@pytest.mark.parametrize(
    ("level", "deflate", "effective"), [(3, True, 3), (9, True, 6), (-1, True, 6), (3, False, 6)]
)
def test_deflate_level_counts_only_with_deflate(level: int, deflate: bool, effective: int) -> None:
    """A level above 0 is used, capped, and only if deflate is on."""
    wish = {"feature_negotiation": True, "deflate": deflate, "deflate_level": level}
    assert negotiate(json.dumps(wish).encode(), RECORDED).deflate_level == effective


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"true",
        b"1",
        b'"text"',
        b"[]",
        b"{} {}",
        b"{}\0",
        b"\xef\xbb\xbf{}",
        b"\x0c{}",
        b"\xff",
        b"{msg_timeout:0}",
        b'{"msg_timeout":0,}',
        b'{"msg_timeout":01}',
        b'{"msg_timeout":1000.0}',
        b'{"msg_timeout":1e3}',
        b'{"msg_timeout":true}',
        b'{"msg_timeout":"1000"}',
        b'{"msg_timeout":9223372036854775808}',
        b'{"msg_timeout":-9223372036854775809}',
        b'{"msg_timeout":' + b"9" * 5000 + b"}",
        b'{"sample_rate":2147483648}',
        b'{"msg_timeout":[1000]}',
        b'{"client_id":1}',
        b'{"client_id":{}}',
        b'{"client_id":"a\nb"}',
        b'{"client_id":"\\x41"}',
        b'{"tls_v1":0}',
        b'{"tls_v1":"true"}',
        b'{"other":NaN}',
        b'{"other":Infinity}',
        b'{"other":-Infinity}',
        b'{"msg_timeout":"x","msg_timeout":1000}',
        b'{"heartbeat_interval":1,"msg_timeout":"x"}',
        b"[" * 100_000,
        b'{"other":' * 100_000,
        b'{"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_go_cannot_decode_is_refused(body: bytes) -> None:
    """Bad JSON, a wrong type, a float for an integer, NaN, and nesting bombs are E_BAD_BODY."""
    assert ask(body) == UNDECODABLE


@pytest.mark.parametrize(
    ("body", "msg_timeout_ms"),
    [
        (b"null", 60_000),
        (b" {}\r\n\t", 60_000),
        (b'{"msg_timeout":null}', 60_000),
        (b'{"msg_timeout":-0}', 60_000),
        (b'{"MSG_Timeout":2000}', 2_000),
        ('{"m\u017fg_timeout":2000}'.encode(), 2_000),
        (b'{"m\\u0073g_timeout":2000}', 2_000),
        (b'{"msg_timeout":1000,"msg_timeout":2000}', 2_000),
        (b'{"msg_timeout":2000,"msg_timeout":null}', 2_000),
        (b'{"msg_timeout":1000,"MSG_TIMEOUT":2000}', 2_000),
        (b'{"other":1.5e999,"another":' + b"9" * 5000 + b',"msg_timeout":2000}', 2_000),
        (b'{"other":{"msg_timeout":"x"},"msg_timeout":2000}', 2_000),
        (b'{"msg-timeout":2000}', 60_000),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_what_go_decodes_is_accepted(body: bytes, msg_timeout_ms: int) -> None:
    """Null, other cases of a key, repeated and unknown keys are read as Go reads them."""
    assert negotiate(body, RECORDED).msg_timeout_ms == msg_timeout_ms


@pytest.mark.parametrize(
    ("text", "client_id"),
    [
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xe2\x82x", "\ufffd\ufffdx"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\\ud800", "\ufffd"),
        (b"\\ud83d\\ude00", "\U0001f600"),
        ("é\u2028".encode(), "é\u2028"),
    ],
)
def test_text_that_is_not_unicode_is_replaced(text: bytes, client_id: str) -> None:
    """Bytes that are not UTF-8 and lone surrogates become U+FFFD, so /stats can be encoded."""
    body = b'{"client_id":"' + text + b'"}'
    assert negotiate(body, RECORDED).client_id == client_id


@given(st.binary(max_size=60))
def test_any_bytes_are_answered_or_refused(body: bytes) -> None:
    """No body makes IDENTIFY fail in another way than by a ProtocolError."""
    assert ask(body) in ("OK", UNDECODABLE)


@given(
    st.fixed_dictionaries(
        {"feature_negotiation": st.just(True)},
        optional={
            "heartbeat_interval": st.sampled_from([-1, 0]) | st.integers(1_000, 60_000),
            "output_buffer_size": st.sampled_from([-1, 0]) | st.integers(64, 65_536),
            "output_buffer_timeout": st.sampled_from([-1, 0]) | st.integers(25, 30_000),
            "sample_rate": st.integers(0, 99),
            "msg_timeout": st.just(0) | st.integers(1_000, 900_000),
            "deflate": st.booleans(),
            "deflate_level": st.integers(),
        },
    )
)
def test_answer_says_what_is_in_force(wish: dict[str, object]) -> None:
    """Whatever valid wish a client has, the JSON answer states the effective values."""
    level = wish.get("deflate_level", 0)
    assert isinstance(level, int)
    wish["deflate_level"] = max(min(level, 2**63 - 1), -(2**63))
    found = negotiate(json.dumps(wish).encode(), RECORDED)
    told = json.loads(answer(found, RECORDED))
    assert told["msg_timeout"] == (wish.get("msg_timeout") or 60_000) == found.msg_timeout_ms
    assert told["sample_rate"] == wish.get("sample_rate", 0) == found.sample_rate
    assert told["deflate"] == wish.get("deflate", False) == found.deflate
    assert told["output_buffer_size"] == found.output_buffer_size
    assert told["output_buffer_timeout"] == found.output_buffer_timeout_ms
    assert 1 <= told["deflate_level"] <= told["max_deflate_level"]
