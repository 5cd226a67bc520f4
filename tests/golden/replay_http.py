"""Replays one recorded HTTP conversation against any ServerUnderTest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import trio

from tests.golden.interfaces import HttpAnswer, ServerUnderTest
from tests.golden.peer import EXPECT_LIMIT_S, Peer, TranscriptMismatchError
from tests.golden.transcripts import (
    Exchange,
    Helper,
    HttpCase,
    HttpStep,
    Json,
    RemoveDataPath,
    Response,
    Sleep,
)

COMPARED_HEADERS = (
    "content-type",
    "x-nsq-content-type",
    "allow",
    "location",
    "content-encoding",
    "vary",
    "access-control-allow-origin",
)
MESSAGE_FRAME = 2
"""See tcp-protocol.md, section 5: size, type, timestamp and attempts precede the id."""
ID_SLICE = slice(18, 34)

_ADDRESS = re.compile(r"[^\s:]+:\d+|\[[^\s\]]+\]:\d+")


async def replay_http_case(case: HttpCase, server: ServerUnderTest) -> None:
    """Run every step of ``case``.

    Raises:
        TranscriptMismatchError: at the first step that went otherwise; the text names it.
    """
    replay = _HttpReplay(server)
    try:
        for number, step in enumerate(case.steps):
            try:
                await replay.run(step)
            except (TranscriptMismatchError, trio.BrokenResourceError) as error:
                raise TranscriptMismatchError(
                    f"{case.name}, step {number}: {step}\n{type(error).__name__}: {error}"
                    f"\n--- the end of nsqd's log\n{server.log_tail()}"
                ) from error
    finally:
        with trio.CancelScope(shield=True):
            await replay.close_all()


class _HttpReplay:
    def __init__(self, server: ServerUnderTest) -> None:
        self._server = server
        self._helpers: dict[str, Peer] = {}

    async def run(self, step: HttpStep) -> None:
        match step:
            case Exchange():
                await self._exchange(step)
            case Helper():
                with trio.fail_after(EXPECT_LIMIT_S):
                    await self._help(step)
            case Sleep():
                await trio.sleep(step.duration_ms / 1000)
            case RemoveDataPath():
                await self._server.remove_data_path()

    async def close_all(self) -> None:
        for helper in self._helpers.values():
            await helper.connection.close()

    async def _exchange(self, step: Exchange) -> None:
        path = with_addresses(step.request.path, self._server.addresses)
        with trio.fail_after(EXPECT_LIMIT_S):
            answer = await self._server.http(replace(step.request, path=path))
        if step.response is not None:
            compare_answer(step.response, answer, self._server.addresses)
        elif answer.status != 200:
            raise TranscriptMismatchError(f"set-up answered {answer}")

    async def _help(self, step: Helper) -> None:
        if step.conn not in self._helpers:
            self._helpers[step.conn] = Peer(await self._server.open_tcp())
        helper = self._helpers[step.conn]
        if step.send:
            await helper.connection.send_all(step.send)
        for _ in range(step.read_frames):
            frame = await helper.read_frame()
            if step.fin and frame[7] == MESSAGE_FRAME:
                await helper.connection.send_all(b"FIN " + frame[ID_SLICE] + b"\n")
        if step.close:
            await helper.connection.close()


def with_addresses(text: str, addresses: Mapping[str, str]) -> str:
    """``text`` with ``<http_addr>`` and its like filled in."""
    for name, address in addresses.items():
        text = text.replace(f"<{name}>", address)
        text = text.replace(f"<{name}_underscored>", re.sub(r"[.:]", "_", address))
    return text


def compare_answer(expected: Response, answer: HttpAnswer, addresses: Mapping[str, str]) -> None:
    """Raises TranscriptMismatchError where ``answer`` is not as ``expected``."""
    if answer.status != expected.status:
        raise TranscriptMismatchError(f"status {answer.status}: {answer.body!r}")
    if expected.headers is not None:
        headers = {
            name: answer.headers[name] for name in COMPARED_HEADERS if name in answer.headers
        }
        if headers != dict(expected.headers):
            raise TranscriptMismatchError(f"headers {headers}\nexpected {expected.headers}")
    body = answer.body.decode("latin-1")
    if expected.body is not None and body != with_addresses(expected.body, addresses):
        raise TranscriptMismatchError(f"body {body!r}")
    if expected.body_regex is not None:
        pattern = with_addresses(expected.body_regex, addresses)
        if not re.fullmatch(pattern, body, re.DOTALL):
            raise TranscriptMismatchError(f"body {body!r}\nnot {pattern}")
    if expected.has_json:
        _compare_json_body(expected, answer.body)


def _compare_json_body(expected: Response, body: bytes) -> None:
    try:
        got = json.loads(body)
    except ValueError:
        raise TranscriptMismatchError(f"not JSON: {body!r}") from None
    wanted = expected.json
    if expected.unordered:
        got, wanted = _sorted(got), _sorted(wanted)
    compare_json(wanted, got, "$")


def compare_json(expected: Json, got: Json, at: str) -> None:
    """Equal values, keys in the same order, masks respected; ``at`` says where we are.

    Raises:
        TranscriptMismatchError: at the first difference.
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        if list(expected) != list(got):
            raise TranscriptMismatchError(f"{at}: keys {list(got)}\nexpected {list(expected)}")
        for key, value in expected.items():
            compare_json(value, got[key], f"{at}.{key}")
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            raise TranscriptMismatchError(f"{at}: {got!r}\nexpected {expected!r}")
        for number, (value, other) in enumerate(zip(expected, got, strict=True)):
            compare_json(value, other, f"{at}[{number}]")
    elif not _same_scalar(expected, got):
        raise TranscriptMismatchError(f"{at}: {got!r}\nexpected {expected!r}")


def _same_scalar(expected: Json, got: Json) -> bool:
    match expected:
        case "<int>":
            return isinstance(got, int) and not isinstance(got, bool)
        case "<number>":
            return isinstance(got, int | float) and not isinstance(got, bool)
        case "<str>" | "<version>":
            return isinstance(got, str)
        case "<addr>":
            return isinstance(got, str) and _ADDRESS.fullmatch(got) is not None
    return isinstance(got, bool) == isinstance(expected, bool) and got == expected


def _sorted(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=json.dumps)
    return value
