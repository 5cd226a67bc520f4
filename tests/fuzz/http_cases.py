"""Requests, right and wrong: what a client of the HTTP API may send."""

from __future__ import annotations

import struct
from random import Random

from tests.fuzz.mutate import case_random, mutated

METHODS = (*["POST"] * 16, *["GET"] * 8, "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "get", "X Y")
PATHS = (
    "/ping", "/info", "/stats", "/pub", "/mpub", "/put", "/mput", "/topic/create", "/topic/delete",
    "/topic/empty", "/topic/pause", "/topic/unpause", "/topic/peek", "/topic/move",
    "/topic/settings", "/topic/note_damage", "/channel/create", "/channel/delete",
    "/channel/empty", "/channel/pause", "/channel/unpause", "/channel/peek", "/channel/seek",
    "/channel/finish", "/channel/requeue", "/log/backup", "/policy", "/policy/p", "/deadletter",
    "/deadletter/add", "/deadletter/replay", "/deadletter/discard", "/channel/deferred/cancel",
    "/channel/deferred/requeue",
    "/channel/settings",
    "/config/nsqlookupd_tcp_addresses", "/config/nothing", "/debug/tasks", "/debug/nothing", "/",
    "/PUB", "//pub", "/pub/", "/pub/../ping", "/%70ub", "*", "http://a/ping", "pub", "/\xff",
)  # fmt: skip
PUBLISHING = ("/pub", "/mpub", "/ping", "/put", "/mput")
PARAMETERS = (
    "topic=t", "topic=u", "topic=v%23ephemeral", "topic=", "topic=b$d", "topic", "topic=t&topic=u",
    "channel=c", "channel=", "channel=x%23ephemeral", "defer=10", "defer=-1", "defer=", "defer=9e9",
    "binary=true", "binary=0", "binary=", "format=json", "format=text", "format=xml", "limit=5",
    "limit=-1", "offset=99999999", "max_bytes=1", "state=in_flight", "state=x", "%", "%zz=1", ";",
    "a+b=c%20d", "topic=%74", "=", "&&", "include_mem=false", "storage=log", "storage=x",
    "durability=always", "durability=", "retain=1h", "retain=-1s", "retain=9e9", "retain_bytes=5",
    "retain_bytes=-5", "retain_bytes=99999999999999999999", "name=b", "name=%2e%2e",
    "id=0123456789abcdef", "id=", "id=%ff", "due=5", "due=-5", "due=99999999999999999999",
    "reason=x", "reason=%00", "rate=5",
    "rate=0", "count=1", "count=x", "older_than=1h", "older_than=%ff", "after=1", "max_body=1",
)  # fmt: skip
POSITIONS = (
    "beginning", "end", "", "0", "3", "-3", "999999999999999999", "9999999999999999999", "%d9%a3",
    "2026-11-23T06:00:00Z", "2999-01-01t00:00:00.5z", "0001-01-01T00:00:00+23:59", "%ff",
    "2026-11-23T06:00:00+25:00", "2026-02-30T06:00:00Z", "9999-12-31T23:59:59-23:59", "now",
)  # fmt: skip
HEADERS = (
    "Connection: close", "Connection: keep-alive", "Connection: upgrade\r\nUpgrade: websocket",
    "Expect: 100-continue", "Expect: nonsense", "Content-Type: text/plain", "X: " + "y" * 300,
    "Content-Length: 5", "Content-Length: -5", "Content-Length: 5, 6", "Content-Length: +5",
    "Content-Length: 99999999999999999999", "Content-Length: 0x5", "Content-Length:",
    "Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 3", "Host: b", "No-Colon", ": empty",
    "Bad Name: x", "X:\ty", " folded", "Cookie: a=b", "Accept: */*", "Nul: \0", "Latin: \xe9",
)  # fmt: skip
LOG_PATHS = (
    "/topic/settings", "/topic/note_damage", "/topic/peek", "/channel/create", "/channel/seek",
    "/channel/peek",
)  # fmt: skip
# Before some cases: a topic with a log, and a channel of it. It stays.
LOGGED = "l"
PREPARATION = b"".join(
    b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (target, len(body), body)
    for target, body in (
        (b"/topic/create?topic=l&storage=log", b""),
        (b"/channel/create?topic=l&channel=c", b""),
        (b"/mpub?topic=l", b"one\ntwo\nthree"),
    )
)
_POSITION = {"/channel/create": "from", "/channel/seek": "to"}
VERSIONS = ("HTTP/1.1",) * 50 + ("HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "http/1.1", "")
ENDS = ("\r\n",) * 80 + ("\n", "\r")


def _method(random: Random, path: str) -> str:
    if random.random() < 0.2:
        return random.choice(METHODS)
    reads = ("/ping", "/info", "/stats", "/config", "/debug", "/topic/peek", "/channel/peek")
    return "GET" if path.startswith(reads) else "POST"


def _target(random: Random, path: str) -> str:
    parameters = random.choices(PARAMETERS, k=random.choice((0, 0, 0, 1, 1, 2, 3)))
    if random.random() < 0.7:
        has_log = path in LOG_PATHS and random.random() < 0.7
        parameters.insert(0, "topic=l" if has_log else "topic=t")
    if path.startswith("/channel") and random.random() < 0.7:
        parameters.append("channel=c")
    if path in ("/channel/create", "/channel/seek") and random.random() < 0.7:
        name = random.choice(("from", "to")) if random.random() < 0.2 else _POSITION[path]
        parameters.append(f"{name}={random.choice(POSITIONS)}")
    return f"{path}?{'&'.join(parameters)}" if parameters else path


def _body(random: Random) -> bytes:
    way = random.randrange(4)
    if way == 0:
        return b""
    if way == 1:
        return b"\n".join(random.randbytes(random.randint(0, 50)) for _ in range(5))
    if way == 2:
        bodies = [random.randbytes(random.randint(1, 50)) for _ in range(random.randint(1, 5))]
        parts = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        return struct.pack(">i", len(bodies)) + parts
    return random.randbytes(random.choice((10, 1000, 100_001)))


def _chunked(random: Random, body: bytes) -> bytes:
    chunks = b""
    while body:
        size = random.randint(1, len(body))
        extension = random.choice(("", "", ";x=y", " "))
        chunks += f"{size:x}{extension}\r\n".encode() + body[:size] + b"\r\n"
        body = body[size:]
    return chunks + b"0\r\n" + random.choice((b"\r\n", b"\r\n", b"Trailer: x\r\n\r\n", b""))


def _request(random: Random) -> bytes:
    body = _body(random)
    path = random.choice(PUBLISHING if random.random() < 0.5 else PATHS)
    version = random.choice(VERSIONS)
    lines = [f"{_method(random, path)} {_target(random, path)} {version}"]
    if random.random() < 0.97:
        lines.append("Host: a")
    framing = random.random()
    if framing < 0.6:
        lines.append(f"Content-Length: {len(body)}")
    elif framing < 0.9:
        lines.append("Transfer-Encoding: chunked")
        body = _chunked(random, body)
    if random.random() < 0.25:
        lines += random.choices(HEADERS, k=random.randint(1, 3))
    end = random.choice(ENDS)
    return (end.join(lines) + end + end).encode("latin-1") + body


def http_case(seed: int, number: int) -> tuple[Random, bytes]:
    """What one connection sends, and the dice for how it does."""
    random = case_random(seed, number)
    said = b"".join(_request(random) for _ in range(random.choice((1, 1, 1, 2, 5))))
    if random.random() < 0.02:
        said = said.replace(b"\r\n\r\n", b"\r\n" + b"X: y\r\n" * 15_000 + b"\r\n", 1)
    said = said if random.random() < 0.4 else mutated(random, said)
    return random, PREPARATION + said if random.random() < 0.2 else said
