"""Input that is no HTTP, or nearly: drawn from a seed, so that a failure repeats."""

from __future__ import annotations

from random import Random

__all__ = ["malformed"]

_LINES = [
    b"POST /pub?topic=t HTTP/1.1\r\n",
    b"POST /mpub?topic=t&binary=1 HTTP/1.1\r\n",
    b"POST /mpub?topic=t HTTP/1.0\r\n",
    b"GET /ping HTTP/1.1\r\n",
    b"GET /stats?format=json HTTP/1.1\r\n",
    b"POST /pub?topic=%ff%00 HTTP/1.1\r\n",
    b"PUT /config/log_level HTTP/1.1\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n",
]
_HEADERS = [
    b"Host: a\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: -3\r\n",
    b"Content-Length: 999999999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b" folded\r\n",
    b"\x00: \x00\r\n",
]
_BODIES = [
    b"",
    b"abc",
    b"3\r\nabc\r\n0\r\n\r\n",
    b"-1\r\nabc",
    b"ffffffffffffffffffff\r\n",
    b"zz\r\n",
    b"\0\0\0\2\0\0\0\1a\xff\xff\xff\xff",
]
_FRAGMENTS = [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b"\xff" * 9, b"HTTP/1.1", b"0"]


def malformed(random: Random) -> bytes:
    """Random bytes, or a few requests that are put together at random and then damaged."""
    if random.random() < 0.2:
        return random.randbytes(random.randint(1, 300))
    data = bytearray()
    for _ in range(random.randint(1, 3)):
        data += random.choice(_LINES)
        data += b"Host: a\r\n" if random.random() < 0.7 else b""
        data += b"".join(random.choices(_HEADERS, k=random.randint(0, 3)))
        data += b"X: " + b"x" * random.choice([9000, 70_000]) if random.random() < 0.01 else b""
        data += b"\r\n" + random.choice(_BODIES)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        at = random.randrange(len(data) + 1)
        data[at : at + random.choice([0, 1, 3, 20])] = random.choice(_FRAGMENTS)
    if random.random() < 0.3:
        del data[random.randrange(1, len(data) + 1) :]
    return bytes(data)
