"""The one HTTP GET that asking an nsqlookupd needs; the server is a script over memory streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import h11
import pytest
import trio
from trio.testing import MockClock

from tests.steps import counted_steps
from trionsq import httpget
from trionsq.testing.streams import MemoryStream, Pipe

URL = "http://example.test:4161/lookup?topic=t"


class Server:
    """Answers each connection with ``script``, and closes it if ``closes``."""

    def __init__(self, script: bytes, *, closes: bool = True) -> None:
        self.script, self.closes = script, closes
        self.dialled: list[tuple[str, int]] = []
        self.ends: list[MemoryStream] = []
        self.requests = b""

    async def dial(self, host: str, port: int) -> trio.abc.Stream:
        self.dialled.append((host, port))
        up, down = Pipe(65536), Pipe(10_000_000)
        self.ends.append(MemoryStream(up, down))
        self.ends[-1].send_nowait(self.script)
        if self.closes:
            self.ends[-1].end_sending()
        await trio.lowlevel.checkpoint()
        return MemoryStream(down, up)

    async def heard(self) -> bytes:
        """What the last connection's client sent, to its end."""
        return b"".join([data async for data in self.ends[-1]])


@asynccontextmanager
async def everything_closed(server: Server) -> AsyncIterator[None]:
    """At the end the client has closed its connections."""
    yield
    with trio.fail_after(30), suppress(trio.BrokenResourceError):
        await server.heard()


async def test_it_returns_status_headers_and_body() -> None:
    """Whatever the status is, the answer is returned as it is."""
    server = Server(
        b"HTTP/1.1 404 Not Found\r\nX-NSQ-Content-Type: nsq\r\nContent-Length: 2\r\n\r\n{}"
    )
    answer = await httpget.get(URL, {"Accept": "a/b"}, dial=server.dial)
    assert (answer.status, answer.body) == (404, b"{}")
    assert answer.headers["x-nsq-content-type"] == "nsq"
    assert server.dialled == [("example.test", 4161)]
    assert (await server.heard()).splitlines() == [
        b"GET /lookup?topic=t HTTP/1.1",
        b"Host: example.test:4161",
        b"Connection: close",
        b"Accept: a/b",
        b"",
    ]


@pytest.mark.parametrize(
    "script",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nabcde",
    ],
)
async def test_every_form_of_body_is_read(script: bytes) -> None:
    """Chunked, and up to the end of the connection."""
    assert (await httpget.get(URL, dial=Server(script).dial)).body == b"abcde"


@pytest.mark.parametrize(
    "url",
    [
        "example.test:4161",
        "ftp://a/",
        "http://",
        "http://a:x/",
        "http://a:0/",
        "http://a/\r\nb: c x",
    ],
)
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    """Nothing is sent for it."""
    server = Server(b"")
    with pytest.raises(httpget.UrlError):
        await httpget.get(url, dial=server.dial)
    assert not server.dialled


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64])
async def test_a_name_that_can_be_no_host(host: str) -> None:
    """A name that can't even be looked up is a wrong URL, not an error of encoding."""
    with pytest.raises(httpget.UrlError, match="is not a host name"):
        await httpget.get(f"http://{host}:1/")


@pytest.mark.parametrize(
    "script",
    [
        b"",
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 10_000,
    ],
)
async def test_nonsense_is_an_answer_error(script: bytes) -> None:
    """No HTTP, cut off, or headers without end."""
    server = Server(script)
    async with everything_closed(server):
        with pytest.raises(httpget.AnswerError):
            await httpget.get(URL, dial=server.dial)


async def test_a_large_body_is_refused() -> None:
    """No more than the limit is kept; one byte less is fine."""
    script = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
    with pytest.raises(httpget.AnswerTooBigError):
        await httpget.get(URL, max_bytes=4, dial=Server(script).dial)
    assert (await httpget.get(URL, max_bytes=5, dial=Server(script).dial)).body == b"abcde"


async def test_an_unreachable_server_is_a_connect_error() -> None:
    """With the address in the text."""

    async def dial(host: str, port: int) -> trio.abc.Stream:
        raise OSError("refused")

    with pytest.raises(httpget.GetConnectError, match=r"example\.test:4161: refused"):
        await httpget.get(URL, dial=dial)


async def test_connecting_has_its_own_limit(autojump_clock: MockClock) -> None:
    """A server that can't be reached is given up after connect_timeout_s."""

    async def dial(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    with pytest.raises(httpget.GetTimeoutError):
        await httpget.get(URL, connect_timeout_s=2, request_timeout_s=5, dial=dial)
    assert trio.current_time() == 2


@pytest.mark.parametrize("script", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"])
async def test_the_whole_request_has_a_limit(script: bytes, autojump_clock: MockClock) -> None:
    """A server that stops in the middle is given up after request_timeout_s, and closed."""
    server = Server(script, closes=False)
    async with everything_closed(server):
        with pytest.raises(httpget.GetTimeoutError):
            await httpget.get(URL, connect_timeout_s=2, request_timeout_s=5, dial=server.dial)
        assert trio.current_time() == 5


async def test_a_post_carries_its_body() -> None:
    """With its length, also if it is empty."""
    for body in (b"{}", b""):
        server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await httpget.post(URL, body, {"Content-Type": "a/b"}, dial=server.dial)
        head, _, sent = (await server.heard()).partition(b"\r\n\r\n")
        assert sent == body
        assert head.splitlines() == [
            b"POST /lookup?topic=t HTTP/1.1",
            b"Host: example.test:4161",
            b"Connection: close",
            b"Content-Length: %d" % len(body),
            b"Content-Type: a/b",
        ]


@pytest.mark.parametrize("scheme", ["http", "ftp"])
async def test_no_error_shows_what_may_be_secret(scheme: str, autojump_clock: MockClock) -> None:
    """The query and the password of a URL stay out of all texts."""
    url = f"{scheme}://user:hush@example.test/auth?secret=hush"
    for odd in (url, url + "\u00e9", url.replace("example", "")):
        with pytest.raises(httpget.GetError) as raised:
            await httpget.get(odd, dial=Server(b"", closes=False).dial)
        assert "hush" not in str(raised.value)


async def test_a_length_that_is_too_large_is_not_waited_for(autojump_clock: MockClock) -> None:
    """What says that it is too large is refused before it comes."""
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", closes=False)
    async with everything_closed(server):
        with pytest.raises(httpget.AnswerTooBigError):
            await httpget.get(URL, max_bytes=999, dial=server.dial)
    assert server.ends


async def test_a_timeout_of_0_is_no_limit(autojump_clock: MockClock) -> None:
    """Neither connecting nor the answer is bounded then."""
    server = Server(b"", closes=False)

    async def dial(host: str, port: int) -> trio.abc.Stream:
        await trio.sleep(1000)
        return await server.dial(host, port)

    async def answer() -> None:
        await trio.sleep(50_000)
        server.ends[0].send_nowait(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        got = await httpget.get(URL, None, 0, 0, dial=dial)
    assert got.body == b"{}"


@pytest.mark.parametrize("chunks", [10, 10_000])
async def test_an_answer_in_tiny_chunks_is_read_in_turns(
    chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends a byte for each chunk costs others no longer wait than any."""
    server = Server(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * chunks
        + b"0\r\n\r\n"
    )
    read = 0
    next_event = h11.Connection.next_event

    def counted(connection: h11.Connection) -> object:
        nonlocal read
        read += 1
        return next_event(connection)

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    with counted_steps(lambda: read) as steps:
        answer = await httpget.get(URL, dial=server.dial)
    assert answer.body == b"x" * chunks
    assert read > chunks
    assert steps.most <= 256
