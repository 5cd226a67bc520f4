"""Requests for an operation: right ones, and ones with a single fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from tests.openapi.documents import Operation, Parameter, validator

__all__ = ["Drawn", "draw"]

# In queries and paths, percent-encoded already.
_ODD: Final = (
    "", "%20", "%00", "%ff", "%C3%A9", "%F0%9F%92%A5", "%ED%A0%80", "a" * 65, "b%24d", "-1", "0",
    "9" * 40, "1e400", "nan", "inf", "0x10", "null", "[]", "%7B%7D", "%25", "%26", "%3D", "%2F",
    "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "x%23ephemeral", "%23ephemeral", "true", "TRUE", "a+b",
    "%0d%0aX:%201", "%3Cscript%3E", "99999999-01-01T00:00:00Z", "2026-02-30T00:00:00Z",
)  # fmt: skip
_BROKEN: Final = ("%", "%zz", ";", "%E", "a;b=c")
_BODIES: Final = (
    b"", b"\0", b"\xff\xfe", b"null", b"[]", b"{}", b'"x"', b"1e999", b"9" * 5000, b"{" * 3000,
    b"[" * 3000, b'{"topic":null}', b'{"topic":1}', b'{"topic":"b$d"}', b'{"topic":"\\ud800"}',
    b'{"action":"fly"}', b'{"action":null}', b'["a"', b'[1]', b'["no port"]', b"\0\0\0\1\0\0\0\1a",
    b"\xff\xff\xff\xff", b"one\ntwo", b"DEBUG", b'{"topic":"t","channel":"b$d"}',
)  # fmt: skip
# Of these a parameter gets what its schema allows.
_TEXTS: Final = (
    "orders", "other", "new.topic_1-x", "e#ephemeral", "n" * 64, "default", "0", "5", "beginning",
    "end", "2020-01-01T00:00:00Z", "2999-01-01T00:00:00.5+01:00", "json", "",
)  # fmt: skip
# nsqadmin sends requests to this parameter: it stays on this machine.
_NODES: Final = (
    "",
    "0",
    "127.0.0.1:1",
    "127.0.0.1:99999",
    "127.0.0.1",
    "[::1]:1",
    "%00",
    "a%20b:c",
)
# Not together with others, and no value of it is known before.
_ALONE: Final = {"after"}
# A measurement takes so long.
_LONGEST: Final = {"seconds": 0.02, "wait": 0.02}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A request.

    Attributes:
        target: path and query.
        body: of the request.
        headers: beside the usual ones.
        fault: what the document does not allow; empty: the request is right.
        must_fail: whether nobody may accept that.
        is_odd_path: whether it may be another path.
    """

    target: str
    body: bytes
    headers: Mapping[str, str]
    fault: str = ""
    must_fail: bool = False
    is_odd_path: bool = False


def draw(
    random: Random,
    operation: Operation,
    names: Mapping[str, str],
    *,
    is_whole: bool = False,
    without: str = "",
) -> Drawn:
    """A request; about half of them are right.

    Args:
        random: the dice.
        operation: what to ask.
        names: values of parameters that exist.
        is_whole: the request is right, has all parameters, and asks for what exists.
        without: a parameter that then lacks, which is a fault.
    """
    parts = [
        (part, _right(random, part, names, is_whole=is_whole))
        for part in operation.parameters
        if (is_whole and part.name not in _ALONE)
        or part.is_required
        or part.name in _LONGEST
        or random.random() < 0.5
    ]
    body = _body(random, operation)
    fault = ""
    must_fail = False
    odd_path = False
    way = random.choice(("right", "right", "right", "value", "value", "query", "body"))
    way = "right" if is_whole else way
    raw = ""
    if without:
        parts = [(part, text) for part, text in parts if part.name != without]
        fault, must_fail = f"no {without}", True
    elif way == "value" and parts:
        place = random.randrange(len(parts))
        part = parts[place][0]
        odd = random.choice(_NODES if part.name == "node" else _ODD)
        odd_path = part.place == "path"
        parts[place] = (part, odd)
        if not _allows(operation.daemon, part, odd):
            # What is no boolean means the default.
            fault, must_fail = f"{part.name}={odd}", part.schema.get("type") != "boolean"
    elif way == "query":
        raw = random.choice(_BROKEN)
        fault = f"query {raw}"
    elif way == "body" and operation.bodies is not None:
        body = random.choice(_BODIES)
        fault = f"body {body[:40]!r}"
    path = operation.path
    pairs = [raw] if raw else []
    headers = {}
    for part, text in parts:
        if part.place == "path":
            path = path.replace(f"{{{part.name}}}", text or "%20")
        elif part.place == "query":
            pairs.insert(random.randint(0, len(pairs)), f"{part.name}={text}")
        else:
            headers[part.name] = quote(text)
    if random.random() < 0.1:
        pairs.append(random.choice(("unknown=1", "unknown", "=", "&")))
    target = f"{path}?{'&'.join(pairs)}" if pairs else path
    return Drawn(target, body, headers, fault, must_fail and not odd_path, odd_path)


def _body(random: Random, operation: Operation) -> bytes:
    if operation.bodies is None:
        return b""
    example = random.choice(operation.bodies)
    return example.encode() if isinstance(example, str) else json.dumps(example).encode()


def _right(random: Random, part: Parameter, names: Mapping[str, str], *, is_whole: bool) -> str:
    """A value that the document allows, percent-encoded."""
    if part.name in names and (is_whole or random.random() < 0.8):
        return quote(names[part.name], safe="")
    return quote(_text(_value(random, part)), safe="")


def _value(random: Random, part: Parameter) -> Any:
    schema = part.schema
    if "const" in schema or "enum" in schema:
        return random.choice(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "boolean":
            return random.choice((True, False))
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 10)
            return random.choice((low, high, random.randint(low, min(high, low + 5))))
        case "number":
            low = schema["minimum"]
            return random.uniform(low, min(schema["maximum"], _LONGEST.get(part.name, 5 + low)))
    known = [one for one in (part.example, *_TEXTS) if one is not None]
    return random.choice([one for one in known if _allows_text("nsqd", part, one)])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _allows(daemon: str, part: Parameter, encoded: str) -> bool:
    """Whether the document allows a value, which is percent-encoded; a header is so once more."""
    if part.place == "header":
        return _allows_text(daemon, part, quote(encoded))
    try:
        text = unquote_to_bytes(encoded.replace("+", " ") if part.place == "query" else encoded)
        return _allows_text(daemon, part, text.decode())
    except UnicodeDecodeError:
        return _allows_text(daemon, part, "\ufffd")


def _allows_text(daemon: str, part: Parameter, text: str) -> bool:
    value: Any = text
    kind = part.schema.get("type")
    if kind in ("integer", "number", "boolean"):
        try:
            value = json.loads(text)
        except ValueError:
            return False
        if isinstance(value, float) and kind == "integer":
            return False
    return validator(daemon, part.schema).is_valid(value)
