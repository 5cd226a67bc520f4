"""One HTTP/1.1 request over a Connection, byte for byte as the transcript has it.

Written out rather than left to an HTTP library: transcripts send raw chunks, odd paths and
bodies that a server refuses half-way, and no library sends those unchanged.
"""

from __future__ import annotations

import trio

from tests.golden.interfaces import Connection, HttpAnswer
from tests.golden.peer import Peer, TranscriptMismatchError
from tests.golden.transcripts import Request, latin1

HEAD_BYTES_MAX = 65536
METHODS_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


async def exchange_http(connection: Connection, request: Request) -> HttpAnswer:
    """Send ``request`` and read its answer, at once: a server may answer before the end.

    Raises:
        TranscriptMismatchError: the connection ended before the answer did.
        ValueError: the answer is not HTTP/1.1.
    """
    peer = Peer(connection)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, connection, _encoded(request))
        answer = await _read_answer(peer, request.method)
        nursery.cancel_scope.cancel()
    await connection.close()
    return answer


def _encoded(request: Request) -> bytes:
    headers = {"Host": "127.0.0.1", "Connection": "close", **request.headers}
    has_body = request.body or request.method not in METHODS_WITHOUT_BODY
    if has_body and "Transfer-Encoding" not in headers:
        headers["Content-Length"] = str(len(request.body))
    lines = [f"{request.method} {request.path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return latin1("\r\n".join(lines) + "\r\n\r\n") + request.body


async def _send(connection: Connection, data: bytes) -> None:
    try:
        await connection.send_all(data)
    except trio.BrokenResourceError:
        return  # refused before its end; the answer tells


async def _read_answer(peer: Peer, method: str) -> HttpAnswer:
    status_line, *header_lines = (await _read_until(peer, b"\r\n\r\n")).split(b"\r\n")
    version, status, *_ = status_line.split(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ValueError(f"not an HTTP answer: {status_line!r}")
    pairs = (line.decode("latin-1").partition(":") for line in header_lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = b"" if method == "HEAD" else await _read_body(peer, headers)
    return HttpAnswer(int(status), headers, body)


async def _read_body(peer: Peer, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await _read_until(peer, b"\r\n"), 16):
            body += await peer.read_exactly(size)
            await peer.read_exactly(len(b"\r\n"))
        return body
    if "content-length" in headers:
        return await peer.read_exactly(int(headers["content-length"]))
    while await peer.read_more():
        pass
    return bytes(peer.received)


async def _read_until(peer: Peer, mark: bytes) -> bytes:
    while (end := peer.received.find(mark)) < 0:
        if len(peer.received) > HEAD_BYTES_MAX:
            raise ValueError(f"no {mark!r} in {HEAD_BYTES_MAX} bytes")
        if not await peer.read_more():
            raise TranscriptMismatchError(f"closed after {bytes(peer.received)!r}")
    return (await peer.read_exactly(end + len(mark)))[:end]
