"""Request heads that the fast path recognises: the parser must say the same of them."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trionsq.http.fast_requests import (
    MAX_HEAD_BYTES,
    RequestHead,
    Target,
    is_unknown_start,
    recognise_head,
)

LINE = b"POST /pub?topic=t HTTP/1.1\r\n"
HOST = b"Host: a\r\n"


def parsed(head: bytes, target: Target) -> RequestHead | None:
    """What h11 says of it, None if it refuses it; the body is whatever the length says."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(head)
    try:
        request = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    assert isinstance(request, h11.Request)
    length = int(dict(request.headers).get(b"content-length", 0))
    if length:
        connection.receive_data(b"x" * length)
    came = 0
    while isinstance(event := connection.next_event(), h11.Data):
        came += len(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert came == length
    assert connection.next_event() in (h11.NEED_DATA, h11.PAUSED)
    close = connection.their_state is h11.MUST_CLOSE
    _, _, query = request.target.partition(b"?")
    host = dict(request.headers).get(b"host", b"")
    return RequestHead(target, query, length, close, host)


PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"Host: a\r\n",
                b"host:\t b \r\n",
                b"HOST:\r\n",
                b"Content-Length: 5\r\n",
                b"content-length:0\r\n",
                b"Content-Length:  007\t\r\n",
                b"Content-Length: 5,5\r\n",
                b"Content-Length: +5\r\n",
                b"Content-Length : 5\r\n",
                b"Connection: close\r\n",
                b"Connection: Keep-Alive\r\n",
                b"Connection:\r\n",
                b"Connection: close, x\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Expect: 100-continue\r\n",
                b"Upgrade: x\r\n",
                b"X: y\r\n",
                b"X-Content-Length: 9\r\n",
                b"X: y\nContent-Length: 3\r\n",
                b"X: y\r\rContent-Length: 3\r\n",
                b" Content-Length: 3\r\n",
                b"X\0: y\r\n",
                b"X: \0\r\n",
                b"\r\n",
                b"\n",
                b":\r\n",
            ]
        ),
        st.binary(max_size=6),
    ),
    max_size=5,
).map(b"".join)
LINES = st.one_of(
    st.builds(
        b"%b%b HTTP/%b\r\n".__mod__,
        st.tuples(
            st.sampled_from([b"GET /ping", b"POST /pub", b"POST /put", b"POST /mpub", b"POST /x"]),
            st.sampled_from([b"", b"?", b"?topic=t", b"?a?b", b"?#", b"?\x80", b"? ", b'?%00\\"']),
            st.sampled_from([b"1.1", b"1.0", b"0.9", b"1.10", b"2.0"]),
        ),
    ),
    st.just(LINE),
)


@given(LINES, PIECES)
@example(LINE, b"Host: a\r\nContent-Length: 5\r\n")
def test_what_is_recognised_is_what_the_parser_says(line: bytes, headers: bytes) -> None:
    """Query, length and the end of the connection; nothing that the parser refuses is taken."""
    head = line + HOST + headers + b"\r\n"
    found = recognise_head(head)
    if found is not None:
        assert b"\r\n\r\n" not in head[:-4]
        assert found == parsed(head, found.target)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n", RequestHead(Target.PING, b"", 0, False, b"a")),
        (b"GET /ping?x HTTP/1.0\r\n\r\n", RequestHead(Target.PING, b"x", 0, True)),
        (LINE + HOST + b"\r\n", RequestHead(Target.PUB, b"topic=t", 0, False, b"a")),
        (
            b"POST /mput?topic=t&binary=true HTTP/1.1\r\nUser-Agent: P/8 (x; y)\r\naccept: */*\r\n"
            b"host: [::1]:4151\r\nCONTENT-LENGTH: 12\r\nConnection: Close\r\n\r\n",
            RequestHead(Target.MPUB, b"topic=t&binary=true", 12, True, b"[::1]:4151"),
        ),
    ],
)
def test_usual_requests_are_recognised(head: bytes, expected: RequestHead) -> None:
    """As curl, PHP and the like send them."""
    assert recognise_head(head) == expected


@pytest.mark.parametrize(
    ("begun", "strange"),
    [
        (b"", False),
        (b"P", False),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\n", False),
        (b"\x16\x03\x01", True),
        (b"\r\n", True),
        (b"GET /ping HTTP/1.1\nHost", True),
        (b"G" * MAX_HEAD_BYTES, True),
    ],
)
def test_what_can_not_become_a_known_head_is_not_waited_for(begun: bytes, strange: bool) -> None:
    """The framework's parser may refuse it, or answer it, before an empty line comes."""
    assert is_unknown_start(b"xy" + begun, 2) is strange


def test_a_head_that_does_not_fit_is_given_up_in_linear_time() -> None:
    """Long runs of what might be headers, spaces or a query, with a flaw at the very end."""
    for filler in (b"a: b\r\n" * 1300, b"a:" + b" " * 8000, b"a" * 8000, b":" * 8000):
        assert recognise_head(LINE + filler + b"\0\r\n\r\n") is None
        assert recognise_head(LINE[:-11] + b"%" * 8000 + filler[:100] + b"\0\r\n\r\n") is None
