"""The fast path and the framework answer the same (trionsq.http.fast_connection)."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.http.ways import Outcome, answers_of, both_ways, cut
from tests.soak import by_level, more_in_soak

PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"

EXAMPLES = settings(max_examples=by_level(test=20, short=60, full=1_000))


def post(target: str, body: bytes, more: bytes = b"", version: bytes = b"1.1") -> bytes:
    """A request with a stated length."""
    head = b"POST %b HTTP/%b\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n"
    return head % (target.encode(), version, len(body), more) + body


def chunked(target: str, *chunks: bytes) -> bytes:
    """A request whose body is in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head % target.encode() + body


def check_same(outcomes: tuple[Outcome, Outcome]) -> None:
    """Both ways did the same.

    One thing is allowed: the framework, which has the chunked bodies of both, may refuse a body
    before it has all of it, and closes the connection then; else the connection goes on.
    """
    if outcomes[0] == outcomes[1]:
        return
    fewer, more = sorted((answers_of(outcome.answers) for outcome in outcomes), key=len)
    assert fewer, "no answer"
    last = len(fewer) - 1
    assert fewer[:last] == more[:last], "the answers differ"
    assert fewer[last].startswith(b"HTTP/1.1 413"), "no early refusal"
    assert _without_close(fewer[last]) == _without_close(more[last]), "the refusals differ"
    if len(fewer) == len(more):
        assert outcomes[0].topics == outcomes[1].topics


def _without_close(answer: bytes) -> bytes:
    return answer.replace(b"connection: close\r\n", b"")


TARGETS = st.sampled_from(["/pub", "/mpub", "/put", "/mput"])
QUERIES = st.one_of(
    st.sampled_from(
        [
            "?topic=t",
            "?topic=u",
            "?topic=t&defer=5",
            "?topic=t&defer=-1",
            "?topic=t&defer=",
            "?topic=t&binary=true",
            "?topic=t&binary=0",
            "?topic=e%23ephemeral",
            "?topic=%74",
            "?topic=bad$",
            "?topic=t%",
            "?a;b",
            "?topic=",
            "?x&topic=t&topic=bad$",
            "?",
            "",
        ]
    ),
    st.text("topic=&%;#/?@[]{}|\\^`\"<>'+$def57", max_size=20).map("?".__add__),
)
BODIES = st.one_of(
    st.binary(max_size=130),
    st.sampled_from([b"", b"a\nb\n", b"x" * 100, b"x" * 101, b"\n", b"y" * 90 + b"\n" + b"z" * 90]),
    st.sampled_from([b"\0\0\0\1\0\0\0\1a", b"\0\0\0\2\0\0\0\1a", b"\0\0\0\1\0\0\0\0"]),
    st.integers(990, 1010).map(lambda count: b"ab\n" * (count // 3) + b"c" * (count % 3)),
)
MORE = st.lists(
    st.sampled_from(
        [
            b"Connection: keep-alive\r\n",
            b"Connection: close\r\n",
            b"connection: Close\r\n",
            b"Connection: keep-alive, close\r\n",
            b"Connection: upgrade\r\nUpgrade: websocket\r\n",
            b"Expect: 100-continue\r\n",
            b"X-Other: \x80\xff\r\n",
            b"X-Empty:\r\n",
            b"Cookie: a=b; c=d\r\n",
            b"Content-Type: multipart/form-data; boundary=x\r\n",
            b"Content-Type: application/x-www-form-urlencoded\r\n",
            b"Content-Encoding: gzip\r\n",
            b"X-HTTP-Method-Override: GET\r\n",
            b"Host: b\r\n",
            b"Content-Length: 1\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b" folded\r\n",
            b"Bad Name: x\r\n",
            b"no colon\r\n",
        ]
    ),
    max_size=2,
).map(b"".join)
REQUESTS = st.one_of(
    st.just(PING),
    st.builds(
        lambda target, query, body, more, version: post(target + query, body, more, version),
        TARGETS,
        QUERIES,
        BODIES,
        MORE,
        st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0", b"1.2", b"2.0"]),
    ),
    st.builds(
        lambda target, chunks: chunked(target + "?topic=t", *chunks),
        TARGETS,
        st.lists(BODIES.filter(bool), max_size=3),
    ),
    st.sampled_from(
        [
            b"GET /info2 HTTP/1.1\r\nHost: a\r\n\r\n",
            b"HEAD /ping HTTP/1.1\r\nHost: a\r\n\r\n",
            b"OPTIONS /pub HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /pub?topic=t HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /ping HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /pub/?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
            b"POST http://a/pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
            b"POST /topic/create?topic=made HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
            b"GET /ping HTTP/1.1\nHost: a\n\n",
            b"GET /ping HTTP/1.0\r\n\r\n",
            b"GET /ping HTTP/1.1\r\n\r\n",
        ]
    ),
)


@more_in_soak
@EXAMPLES
@given(st.lists(REQUESTS, min_size=1, max_size=4), st.lists(st.integers(0, 2000), max_size=6))
def test_requests_are_answered_the_same(requests: list[bytes], places: list[int]) -> None:
    """Whatever is asked, in whatever order and however it is cut, and the topics are the same."""
    check_same(both_ways(cut(b"".join(requests), places)))


@more_in_soak
@EXAMPLES
@given(st.lists(REQUESTS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_damaged_requests_are_answered_the_same(
    requests: list[bytes], random: random.Random
) -> None:
    """Bytes changed, doubled or left out anywhere, lengths and line ends among them."""
    data = bytearray(b"".join(requests))
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        data[at : at + random.randint(0, 2)] = random.choice(
            [b"", b"\r", b"\n", b" ", b"\0", b":", b"0", b"-", b"\xff", b"\r\n", b"\r\n\r\n"]
        )
    check_same(both_ways([bytes(data)]))


@pytest.mark.parametrize(
    "data",
    [
        post("/pub?topic=t", b"hello"),
        post("/mpub?topic=t", b"a\nb\n"),
        PING,
        post("/pub?topic=t", b"") + PING,
        post("/pub?topic=bad$", b"x") + PING,
        post("/pub?topic=t", b"x", version=b"1.0"),
        post("/pub?topic=t", b"x", b"Connection: close\r\n") + PING,
        post("/pub?topic=t", b"x") + post("/pub?topic=t", b"y", b"Connection: close\r\n"),
        post("/pub?topic=t", b"x" * 101),
        post("/mpub?topic=t", b"x\n" * 501),
        chunked("/pub?topic=t", b"ab", b"c") + PING,
        post("/pub?topic=t", b"x", b"Expect: 100-continue\r\n") + PING,
        b"GET /ping HTTP/1.1\nHost: a\n\n",
    ],
)
def test_byte_by_byte_is_the_same(data: bytes) -> None:
    """As whole, and as through the framework.

    Only a refusal that precedes the end of its body closes the connection, and says so.
    """
    outcomes = both_ways(cut(data, range(len(data))))
    check_same(outcomes)
    whole = both_ways([data])[0].answers
    said_close = b"Connection: close" in data
    answers = outcomes[0].answers
    assert (answers if said_close else answers.replace(b"connection: close\r\n", b"")) == whole


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize(
    "query",
    [
        "?topic=t&defer=-1",
        "?topic=t&defer=5",
        "?topic=t&%64efer=x",
        "?%74opic=%74",
        "?topic=t&topic=u",
        "?topic=e%23ephemeral",
        "?topic=t&binary",
        "?topic=a+b",
        "?topic=t;",
        "?topic=%",
        "?topic",
        "",
    ],
)
def test_queries_mean_the_same(path: str, query: str) -> None:
    """Also those that only a look at the decoded names and values tells of."""
    short, framework = both_ways([post(path + query, b"a\nb") * 2])
    assert short == framework


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: \tchunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding:\x0bchunked\r\nContent-Length: 5\r\n",
        b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"X: y\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 5_0\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length: \r\n",
        b"Content-Length : 5\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Content-Length: 9" + b"9" * 5000 + b"\r\n",
        b"Content-Length: 00005\r\n",
        b"Content-Length: 5\x00\r\n",
        b"Content-Length:\r\n 5\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
    ],
)
def test_a_body_of_two_lengths_is_no_second_request(framing: bytes) -> None:
    """Where a body ends is never read in two ways: both answer alike, or refuse."""
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n"
    for body in (b"0\r\n\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"-5\r\nabc", b"ffffffffffffffff\r\nx"):
        check_same(both_ways([head + body + SMUGGLED]))


@more_in_soak
@EXAMPLES
@example(0)
@given(st.integers(0, 2**32))
def test_requests_for_both_keep_their_order(seed: int) -> None:
    """Answers come in the order of the requests, also where the framework takes over."""
    chosen = random.Random(seed)
    asked = [chosen.randrange(4) for _ in range(chosen.randint(2, 12))]
    kinds = [
        (PING, b"OK"),
        (post("/pub?topic=t", b"x"), b"OK"),
        (post("/pub?topic=bad$", b"x"), b'{"message":"INVALID_TOPIC"}'),
        (b"GET /nope HTTP/1.1\r\nHost: a\r\n\r\n", b'{"message":"NOT_FOUND"}'),
    ]
    data = b"".join(kinds[kind][0] for kind in asked)
    short, framework = both_ways(cut(data, [chosen.randrange(len(data))]))
    assert short == framework
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in answers_of(short.answers)]
    assert bodies == [kinds[kind][1] for kind in asked]


def test_what_follows_the_last_request_is_passed_over() -> None:
    """A request that closes the connection is answered, whatever was sent after it."""
    for last in (
        b"GET /ping HTTP/1.0\r\n\r\n",
        post("/pub?topic=t", b"x", b"Connection: close\r\n"),
    ):
        for more in (PING, b"garbage\r\n\r\n"):
            short, framework = both_ways([last + more])
            assert short == framework
            assert short.answers.endswith(b"OK")
