"""The recorded conversations, read from JSON Lines into typed steps.

All text of the files is Latin-1: a character's code is the byte's value. ``data/`` holds the
recordings of nsqd v1.3.0, ``instead/`` what we promise where we deviate (see deviations.toml).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TCP_FILE = HERE / "data" / "tcp.jsonl"
HTTP_FILE = HERE / "data" / "http_nsqd.jsonl"
TCP_INSTEAD_FILE = HERE / "instead" / "tcp.jsonl"
HTTP_INSTEAD_FILE = HERE / "instead" / "http_nsqd.jsonl"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``template`` on ``conn``, captured bytes put in for ``{{name}}``."""

    conn: str
    template: str


@dataclass(frozen=True, slots=True)
class SendFill:
    """Send ``count`` equal bytes; that the server closes meanwhile is no failure."""

    conn: str
    byte: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Expect:
    """Read one frame; its lower case hex must match ``pattern`` in full."""

    conn: str
    pattern: str
    text: str


@dataclass(frozen=True, slots=True)
class ExpectClose:
    """The server closes; data before that is a failure unless ``discard``."""

    conn: str
    discard: bool


@dataclass(frozen=True, slots=True)
class ExpectNone:
    """Nothing arrives for ``duration_ms``."""

    conn: str
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection."""

    conn: str


@dataclass(frozen=True, slots=True)
class ShutdownWrite:
    """Half close: the server reads EOF and can still answer."""

    conn: str


@dataclass(frozen=True, slots=True)
class RemoveDataPath:
    """Delete the server's data directory under its feet."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Switch the client side of the connection to tls, deflate or snappy."""

    conn: str
    layer: str


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; ``headers`` are sent as they are beside the usual ones."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    https: bool = False


@dataclass(frozen=True, slots=True)
class HttpStatus:
    """An HTTP request amid a TCP case, of which only the status counts."""

    request: Request
    status: int


TcpStep = (
    Send
    | SendFill
    | Expect
    | ExpectClose
    | ExpectNone
    | Sleep
    | Close
    | ShutdownWrite
    | RemoveDataPath
    | Upgrade
    | HttpStatus
)


@dataclass(frozen=True, slots=True)
class Response:
    """What the answer must be; a None member is left unchecked."""

    status: int
    headers: Mapping[str, str] | None
    body: str | None
    body_regex: str | None
    json: Json
    has_json: bool
    unordered: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its expected answer; None means set-up, which must answer 200."""

    request: Request
    response: Response | None


@dataclass(frozen=True, slots=True)
class Helper:
    """A TCP connection beside the HTTP requests; ``fin``: FIN each message it reads."""

    conn: str
    send: bytes
    read_frames: int
    fin: bool
    close: bool


HttpStep = Exchange | Helper | Sleep | RemoveDataPath


@dataclass(frozen=True, slots=True)
class AuthStub:
    """The auth server of a case: what it answers, and what it must have been asked."""

    status: int
    body: Json
    request: Mapping[str, Any] | None
    requests_seen: int | None


@dataclass(frozen=True, slots=True)
class Server:
    """What a case asks of its server; equal ones can be the same server unless ``fresh``."""

    args: tuple[str, ...]
    tls: bool
    fresh: bool
    fixed_ports: bool = False


@dataclass(frozen=True, slots=True)
class TcpCase:
    """One conversation over TCP."""

    name: str
    note: str
    server: Server
    auth: AuthStub | None
    steps: tuple[TcpStep, ...]


@dataclass(frozen=True, slots=True)
class HttpCase:
    """One conversation over HTTP."""

    name: str
    note: str
    server: Server
    steps: tuple[HttpStep, ...]


def load_tcp_cases(path: Path) -> list[TcpCase]:
    """The TCP cases of a file, in its order."""
    return [
        TcpCase(
            name=raw["name"],
            note=raw.get("note", ""),
            server=_server(raw),
            auth=_auth_stub(raw.get("auth_server")),
            steps=tuple(_tcp_step(step) for step in raw["steps"]),
        )
        for raw in _lines(path)
    ]


def load_http_cases(path: Path) -> list[HttpCase]:
    """The HTTP cases of a file, in its order."""
    return [
        HttpCase(
            name=raw["name"],
            note=raw.get("note", ""),
            server=_server(raw),
            steps=tuple(_http_step(step) for step in raw["steps"]),
        )
        for raw in _lines(path)
    ]


def latin1(text: str) -> bytes:
    """The bytes that a recorded text stands for."""
    return text.encode("latin-1")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def _server(raw: Mapping[str, Any]) -> Server:
    return Server(
        args=tuple(raw.get("args", ())),
        tls=bool(raw.get("tls")),
        fresh=bool(raw.get("fresh")) or "auth_server" in raw,
        fixed_ports="_addr>" in json.dumps(raw["steps"]),
    )


def _auth_stub(raw: Mapping[str, Any] | None) -> AuthStub | None:
    if raw is None:
        return None
    return AuthStub(raw["status"], raw["body"], raw.get("request"), raw.get("requests_seen"))


def _tcp_step(raw: Mapping[str, Any]) -> TcpStep:
    conn = raw.get("conn", "a")
    match raw:
        case {"send": str(text)}:
            return Send(conn, text)
        case {"send_fill": {"byte": str(digits), "count": int(count)}}:
            return SendFill(conn, bytes.fromhex(digits), count)
        case {"expect": str(pattern)}:
            return Expect(conn, pattern, f"{raw.get('frame')} {raw.get('text')}")
        case {"expect_close": True}:
            return ExpectClose(conn, bool(raw.get("discard")))
        case {"expect_none_ms": int(duration_ms)}:
            return ExpectNone(conn, duration_ms)
        case {"close": str(closed)}:
            return Close(closed)
        case {"shutdown_write": True}:
            return ShutdownWrite(conn)
        case {"upgrade": str(layer)}:
            return Upgrade(conn, layer)
        case {"http": dict(request), "status": int(status)}:
            return HttpStatus(_request(request), status)
    return _common_step(raw)


def _http_step(raw: Mapping[str, Any]) -> HttpStep:
    match raw:
        case {"request": dict(request)}:
            answer = raw.get("response")
            return Exchange(
                _request(request, https=bool(raw.get("https"))),
                None if answer is None else _response(answer),
            )
        case {"tcp": dict(helper)}:
            return Helper(
                conn=helper["conn"],
                send=latin1(helper.get("send", "")),
                read_frames=helper.get("read_frames", 0),
                fin=bool(helper.get("fin")),
                close=bool(helper.get("close")),
            )
    return _common_step(raw)


def _common_step(raw: Mapping[str, Any]) -> Sleep | RemoveDataPath:
    match raw:
        case {"sleep_ms": int(duration_ms)}:
            return Sleep(duration_ms)
        case {"remove_data_path": True}:
            return RemoveDataPath()
    raise ValueError(f"unknown step {raw!r}")


def _request(raw: Mapping[str, Any], *, https: bool = False) -> Request:
    body = latin1(raw.get("body", ""))
    if fill := raw.get("body_fill"):
        body = bytes.fromhex(fill["byte"]) * fill["count"]
    return Request(raw["method"], raw["path"], raw.get("headers", {}), body, https)


def _response(raw: Mapping[str, Any]) -> Response:
    return Response(
        status=raw["status"],
        headers=raw.get("headers"),
        body=raw.get("body"),
        body_regex=raw.get("body_regex"),
        json=raw.get("json"),
        has_json="json" in raw,
        unordered=bool(raw.get("unordered")),
    )
